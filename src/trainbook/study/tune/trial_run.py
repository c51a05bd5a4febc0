"""What a worker is to train for a trial, what it answers, and how the trial is trained."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.contained import open_no_link
from trainbook.errors import ConfigError, Interrupted, RunInUse, TrainbookError
from trainbook.knobs.dumping import yaml_value
from trainbook.runs import RunFolder
from trainbook.runs.schema import METRICS
from trainbook.study.child_run import ChildResult, ChildRun, WriteReport, tokens_of
from trainbook.study.space import BASE
from trainbook.study.tune.trial import Trial

TRIALS = "trials"  # the folder of their runs, in that of the study


@dataclass(frozen=True)
class TrialTask:
    trial: Trial
    folder: Path  # of the study
    metric: str
    until: float = 1.0  # the share of the whole run after which to pause
    shares_gpu: bool = False  # with other workers: memory that is too little may be enough alone

    @property
    def name(self) -> str:
        return f"trial-{self.trial.number:04d}"

    def child(self, write_report: WriteReport | None = None) -> ChildRun:
        """The run that it is trained as."""
        seed = {} if self.trial.seed is None else {"training.seed": self.trial.seed}
        return ChildRun(
            self.folder / BASE,
            [f"{path}={yaml_value(value)}" for path, value in {**self.trial.values, **seed}.items()],
            self.name,
            self.folder / TRIALS,
            None if self.until >= 1 else self.until,
            write_report,
        )


@dataclass(frozen=True)
class TrialOutcome:
    loss: float | None  # by the study's metric; None: infeasible
    tokens: int = 0
    reason: str | None = None  # why it is infeasible
    run: str | None = None


def without(metric: str) -> str:
    """The reason of a run that came to its end, and was not judged by this."""
    return f"it has no {metric}"


class Busy(Exception):
    """Another process still works in the trial's folder."""


class Failed(Exception):
    """A trial that ended by an error, and what it had cost by then."""

    def __init__(self, reason: str, tokens: int = 0, run: str | None = None, *, is_expected: bool = True) -> None:
        """`is_expected`: not an error that the process may not be well after, such as one of the device."""
        super().__init__(reason)
        self.reason, self.tokens, self.run, self.is_expected = reason, tokens, run, is_expected


Objective = Callable[[TrialTask], TrialOutcome]


def train_trial(task: TrialTask, write_report: WriteReport | None = None) -> TrialOutcome:
    """A trial as an ordinary run. One without memory beside other workers is tried again when it has the GPU alone."""
    child = task.child(write_report)
    try:
        if task.shares_gpu:
            with beside_others(task.folder):
                ended = child.train()
            if ended.failure == "out of memory":
                with alone(task.folder):
                    ended = child.train()
        else:
            ended = child.train()
    except ConfigError as error:
        return TrialOutcome(None, reason=f"refused: {error.problems[0]}")
    except RunInUse:
        raise Busy from None
    except Interrupted:
        raise
    except TrainbookError as error:
        raise Failed(str(error), tokens_of(child.run), str(child.run.path)) from error
    except Exception as error:
        traceback.print_exc()
        told = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise Failed(told, tokens_of(child.run), str(child.run.path), is_expected=False) from error
    return _outcome(task, ended)


def _outcome(task: TrialTask, ended: ChildResult) -> TrialOutcome:
    path = str(ended.run.path)
    if ended.failure is not None:
        reason = ended.failure if ended.failure == "out of memory" else f"{ended.failure}: {ended.reason}"
        return TrialOutcome(None, ended.tokens, reason, path)
    row = _judged_row(task, ended.run)
    loss = None if row is None else row.get(task.metric)
    return TrialOutcome(loss, ended.tokens, without(task.metric) if loss is None else None, path)


def _judged_row(task: TrialTask, run: RunFolder) -> dict[str, Any] | None:
    """The evaluation by which a trial is judged."""
    rows = [row for row in run.metrics("eval") if isinstance(row.get(task.metric), int | float)]
    if task.until < 1:
        # One that was taken over may be further than its rung, where others were judged.
        total = next((event["total_updates"] for event in run.events() if event["kind"] == "start"), 0)
        rung = max(1, round(task.until * total))
        return next((row for row in reversed(rows) if row["step"] == rung), rows[-1] if rows else None)
    # A run that may stop early is used at its best; every other one at its end, where its schedule has led it.
    if rows and run.recorded().evaluation.early_stopping_patience is not None:
        sign = -1 if METRICS[task.metric].higher_is_better else 1
        return min(rows, key=lambda row: sign * row[task.metric])
    return rows[-1] if rows else None


# Several workers on one GPU


@contextmanager
def beside_others(folder: Path) -> Iterator[None]:
    # Through the door, behind whoever waits there to have it alone.
    with _held(folder, "door", fcntl.LOCK_EX) as door, _held(folder, "room", fcntl.LOCK_SH):
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until the others have ended their trials, and lets none of them begin another."""
    with _held(folder, "door", fcntl.LOCK_EX), _held(folder, "room", fcntl.LOCK_EX):
        yield


@contextmanager
def _held(folder: Path, name: str, kind: int) -> Iterator[int]:
    device = re.sub(r"\W", "-", os.environ.get("CUDA_VISIBLE_DEVICES") or "all")
    path = folder / "logs" / f"gpu-{socket.gethostname()}-{device}.{name}"
    path.parent.mkdir(exist_ok=True)
    descriptor = open_no_link(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)
