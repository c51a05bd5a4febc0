"""Answers for programs."""

from __future__ import annotations

from typing import Any

import typer

from trainbook.runs.jsonl import dumps


def print_json(answer: Any) -> None:
    """One JSON object; NaN and infinities as strings, as in a run's files."""
    typer.echo(dumps(answer))
