"""--trust, of every verb that may import code that a run folder names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer


def _trust(context: typer.Context, value: bool) -> bool:
    """For this command, and for the processes that it starts."""
    if value:
        context.with_resource(_trusted())
    return value


@contextmanager
def _trusted() -> Iterator[None]:
    from trainbook.runs.trust import VARIABLE, trusting

    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        with trusting():
            yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_trust,
        help="Import the Python code that a run folder names, even if you have not trained that run on this machine.",
    ),
]
