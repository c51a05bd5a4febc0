"""Logging a run: its files first, then the terminal, then mirrors that can neither stop nor slow it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.errors import MissingExtra
from trainbook.runs import RunFolder
from trainbook.tracking.console import ConsoleTracker
from trainbook.tracking.mirror import Mirror
from trainbook.tracking.tracker import FileTracker, NoFiles, Tracker, Trackers, is_due

if TYPE_CHECKING:
    from rich.console import Console

    from trainbook.knobs.sections.logging import LoggingKnobs

__all__ = [
    "ConsoleTracker",
    "FileTracker",
    "Mirror",
    "Tracker",
    "Trackers",
    "build",
    "is_due",
    "must_be_installed",
    "silent",
]


def silent(segment: int, start_step: int) -> Trackers:
    """The trackers of a rank that does not write: the same interface, without output."""
    return Trackers(NoFiles(), segment=segment, start_step=start_step)


def build(
    logging: LoggingKnobs,
    run: RunFolder,
    *,
    segment: int,
    total_steps: int,
    start_step: int = 0,
    quiet: bool = False,
    config_dict: Mapping[str, Any] | None = None,
    console: Console | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    close_seconds: float = 5.0,
    counted: str = "tokens",
) -> Trackers:
    """All that `logging` asks for; a package that is missing is said here, before any training.

    `start_step` is the step that the run goes on from; `quiet` leaves out the terminal; `on_event` gets each event row;
    `counted` is the unit of the rows' `tokens`.
    """
    must_be_installed(logging)
    trackers = Trackers(FileTracker(run), segment=segment, start_step=start_step, on_event=on_event)
    if not quiet:
        trackers.add("console", ConsoleTracker(total_steps, start_step=start_step, console=console, counted=counted))
    if "tensorboard" in logging.report_to:
        from trainbook.tracking.tensorboard import TensorBoardTracker

        # A folder that several runs share needs a name for each, or TensorBoard draws them as one.
        folder = Path(logging.logging_dir) / run.name if logging.logging_dir else run.tensorboard
        trackers.add(
            "tensorboard",
            Mirror(
                "tensorboard",
                lambda: TensorBoardTracker(folder, start_step=start_step),
                trackers.report,
                close_seconds=close_seconds,
            ),
        )
    if "wandb" in logging.report_to:
        from trainbook.tracking import wandb

        trackers.add(
            "wandb",
            Mirror(
                "wandb",
                lambda: wandb.WandbTracker(run, config_dict or {}, lambda reason: trackers.report("wandb", reason)),
                trackers.report,
                close_seconds=close_seconds,
                abandon=wandb.abandon,
            ),
        )
    return trackers


def must_be_installed(logging: LoggingKnobs) -> None:
    """The packages that `logging` asks for."""
    for package in logging.report_to:
        spec = find_spec(package)
        # W&B leaves folders called `wandb` behind; one in the current folder looks like a package without a file.
        if spec is None or spec.origin is None:
            raise MissingExtra(f"logging.report_to={package}", package, package)
