"""Answers for programs."""

from __future__ import annotations

from typing import Any

from trainbook.runs.jsonl import dumps
from trainbook.terminal import echo


def print_json(answer: Any) -> None:
    """One JSON object; NaN and infinities as strings, as in a run's files."""
    echo(dumps(answer))
