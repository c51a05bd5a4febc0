"""What several commands share: output, messages, trust."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from trainbook.errors import ConfigError, Interrupted, OutOfMemory, TrainbookError, UserError
from trainbook.runs.jsonl import dumps
from trainbook.terminal import echo, folded

Recipe = Annotated[
    str, typer.Argument(help="The name of a packaged recipe, or a YAML or Python file.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, such as optimizer.learning_rate=1e-3.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no summary card.")]
MOST_WORKERS = 1_024  # processes that this machine would have to start
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="The folder that holds the runs.")]


Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|auto",
        help="The number of parallel runs. With several GPUs, each worker uses one. auto: eight for each GPU, or one "
        "for each core.",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="A PostgreSQL database that workers on several machines share. Run the same command on each.",
    ),
]
StudyName = Annotated[
    str | None, typer.Option("--name", help="The name of the study. An existing study of that name is resumed.")
]


def worker_count(asked: str | None) -> int | None:
    if asked is None:
        return None
    if asked == "auto":
        from trainbook.study.workers import automatic_workers

        return automatic_workers()
    if not asked.isdecimal() or int(asked) < 1:
        raise UserError(f"--workers: must be a whole number >= 1 or auto, but got {asked}.")
    if len(asked) > 9 or int(asked) > MOST_WORKERS:
        raise UserError(f"--workers: must be at most {MOST_WORKERS}, but got {asked}.")
    return int(asked)


AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Resume with changed knobs that affect the rest of the run.")
]


# Answers for programs.


def print_json(answer: Any) -> None:
    """One JSON object; NaN and infinities as strings, as in a run's files."""
    echo(dumps(answer))


# --trust, of every verb that may import code that a run folder names.


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


# From errors to messages and exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 interrupted and saved.
# main.py adds 141: nobody reads the output any more, as with `| head`.


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
