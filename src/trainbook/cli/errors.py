"""From errors to messages and exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 interrupted and saved.

main.py adds 141: nobody reads the output any more, as with `| head`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from trainbook.errors import ConfigError, Interrupted, OutOfMemory, TrainbookError
from trainbook.folding import folded
from trainbook.terminal import echo

P = ParamSpec("P")
R = TypeVar("R")


# What Ctrl-C leaves, by verb, where the verb does not say more itself.
BEFORE_TRAINING = "interrupted before the first step: nothing was lost"
STOPPED = {
    "train": BEFORE_TRAINING,
    "resume": BEFORE_TRAINING,
    "predict": "interrupted before the first prediction: nothing was written",
    "export": "interrupted: nothing was exported",
    "generate": "\ninterrupted",  # behind what was written so far
}


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """A user's mistake is a message, never a traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except Interrupted as error:
            if not error.is_told:
                echo(folded(str(error), stream=sys.stderr), err=True)
            raise typer.Exit(error.exit_code) from None
        except TrainbookError as error:
            if not (isinstance(error, OutOfMemory) and error.is_heard):
                echo(folded(_shown(error), 4, sys.stderr), err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            echo(STOPPED.get(command.__name__, "interrupted"), err=True)
            raise typer.Exit(130) from None

    return wrapped


def _shown(error: TrainbookError) -> str:
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return f"error: {len(error.problems)} problems\n" + "\n".join(f"  {problem}" for problem in error.problems)
    return f"error: {error}"
