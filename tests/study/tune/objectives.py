"""Objectives that take no time, for workers in processes of their own: named by their Python path."""

from __future__ import annotations

import math
import os
import signal
import time
from typing import Any

FIRST_TO_DIE = 3  # the number of the trial whose first worker is killed


def bowl(task: Any) -> Any:
    """Best at a rate of 1e-3; diverges above 5e-3. Notes down who began and ended what."""
    from trainbook.study.tune.trial_run import TrialOutcome

    _note(task, "begun")
    rate = task.trial.values.get("optimizer.learning_rate", 2e-3)
    if rate > 5e-3:
        return TrialOutcome(None, 10, "diverged: of course")
    time.sleep(0.1)  # so that all workers get some
    _note(task, "ended")
    return TrialOutcome((math.log10(rate) + 3) ** 2 + 1 + 0.001 * ((task.trial.seed or 0) % 7), tokens=100)


def slower(task: Any) -> Any:
    """As `bowl`, but long enough for all to have some."""
    time.sleep(1.0)
    return bowl(task)


def deadly(task: Any) -> Any:
    """As `bowl`, but one trial kills the worker that takes it first, as a machine's memory killer would."""
    began = task.folder / "notes.txt"
    is_again = began.is_file() and f"begun {FIRST_TO_DIE} " in began.read_text()
    if task.trial.number == FIRST_TO_DIE and not is_again:
        _note(task, "begun")
        os.kill(os.getpid(), signal.SIGKILL)
    return bowl(task)


def patient(task: Any) -> Any:
    """The first trial waits until somebody asks the worker to stop; when it is taken again, it ends."""
    is_again = (task.folder / "notes.txt").is_file()
    _note(task, "begun")
    if not is_again:
        time.sleep(600)
    return bowl(task)


def stubborn(task: Any) -> Any:
    """The first trial takes no notice of anything, and has to be killed."""
    is_again = (task.folder / "notes.txt").is_file()
    if not is_again:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _note(task, "begun")
        time.sleep(600)
    return bowl(task)


def deaf(task: Any) -> Any:
    """The first trial is in its last evaluation, where a training takes no notice of a signal any more, and ends."""
    is_again = (task.folder / "notes.txt").is_file()
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    _note(task, "begun")
    while not is_again and not heard:
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, before)
    return bowl(task)


def broken(task: Any) -> Any:
    """All but the base fail as a device does that is never well again; until somebody mends it."""
    _note(task, "begun")
    if task.trial.kind != "base" and not (task.folder / "mended").exists():
        raise RuntimeError(f"CUDA error {task.trial.number}: an illegal memory access")
    return bowl(task)


def taken_away(task: Any) -> Any:
    """The first trial finds that another worker has it by now."""
    from trainbook.study.tune.ledger import opened, sqlite_url

    is_again = (task.folder / "notes.txt").is_file()
    _note(task, "begun")
    if not is_again:
        with opened(sqlite_url(task.folder / "study.db"), task.folder.name) as ledger:
            ledger.bury(task.trial.worker)
        time.sleep(600)
    return bowl(task)


def told_to_leave(task: Any) -> Any:
    """A scheduler, or somebody, tells the worker of the first trial to stop."""
    is_again = (task.folder / "notes.txt").is_file()
    _note(task, "begun")
    if not is_again:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    return bowl(task)


def _note(task: Any, what: str) -> None:
    with open(task.folder / "notes.txt", "a", encoding="utf-8") as notes:
        notes.write(f"{what} {task.trial.number} {os.getpid()}\n")
