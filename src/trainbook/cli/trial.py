"""A worker of a study: a process that `trainbook tune` starts, or that a test starts with an objective of its own."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.bounded import json_text
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.api import Result
    from trainbook.runs import RunFolder
    from trainbook.study.tune.task import TrialOutcome, TrialTask

OURS = "trainbook.cli.trial:train_trial"
UNWELL, MORE = 75, 76  # exit codes: this process may have been hurt, another one is to go on; there may be more trials


def train_trial(task: TrialTask) -> TrialOutcome:
    """A trial as an ordinary run, which goes on from its checkpoint if it was begun before."""
    from trainbook.errors import OutOfMemory
    from trainbook.study.tune.sharing import alone, beside_others

    if not task.shares_gpu:
        return _train(task)
    try:
        with beside_others(task.folder):
            return _train(task, is_last_try=False)
    except OutOfMemory:
        pass  # perhaps only because of the others
    with alone(task.folder):
        return _train(task)


def _train(task: TrialTask, is_last_try: bool = True) -> TrialOutcome:
    """`is_last_try`: too little memory is the trial's answer, and not raised."""
    import gc

    import torch

    from trainbook import api
    from trainbook.errors import (
        ConfigError,
        Diverged,
        Interrupted,
        OutOfMemory,
        RunInUse,
        TooLarge,
        TrainbookError,
    )
    from trainbook.runs import RunFolder
    from trainbook.study.tune.task import Busy, Failed, TrialOutcome, without

    folder = RunFolder(task.runs_dir / task.name)
    path = str(folder.path)
    stop_after = None if task.until >= 1 else task.until
    try:
        result = api.train(
            task.base, task.overrides, name=task.name, runs_dir=task.runs_dir, quiet=True, stop_after=stop_after
        )
    except ConfigError as error:
        return TrialOutcome(None, reason=f"refused: {error.problems[0]}")
    except Diverged as error:
        return TrialOutcome(None, _tokens(folder), f"diverged: {error}", path)
    except TooLarge as error:  # others on the device or none
        return TrialOutcome(None, _tokens(folder), f"too large: {error}", path)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        if not is_last_try:
            raise OutOfMemory(str(error)) from None
        return TrialOutcome(None, _tokens(folder), "out of memory", path)
    except RunInUse:
        raise Busy from None
    except Interrupted:
        raise
    except TrainbookError as error:
        raise Failed(str(error), _tokens(folder), path) from error
    except Exception as error:
        traceback.print_exc()
        told = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise Failed(told, _tokens(folder), path, is_expected=False) from error
    finally:
        gc.collect()  # the next one needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    row = _row(task, result)
    loss = None if row is None else row.get(task.metric)
    reason = without(task.metric) if loss is None else None
    return TrialOutcome(loss, _tokens(folder), reason, path)


def _row(task: TrialTask, result: Result) -> dict[str, Any] | None:
    """The evaluation by which a trial is judged."""
    from trainbook.runs.schema import METRICS

    rows = [row for row in result.run.metrics("eval") if isinstance(row.get(task.metric), int | float)]
    if task.until < 1:
        # One that was taken over may be further than its rung, where others were judged.
        total = next((event["total_updates"] for event in result.run.events() if event["kind"] == "start"), 0)
        rung = max(1, round(task.until * total))
        return next((row for row in reversed(rows) if row["step"] == rung), rows[-1] if rows else None)
    # A run that may stop early is used at its best; every other one at its end, where its schedule has led it.
    if rows and result.run.recorded().evaluation.early_stopping_patience is not None:
        sign = -1 if METRICS[task.metric].higher_is_better else 1
        return min(rows, key=lambda row: sign * row[task.metric])
    return rows[-1] if rows else None


def _tokens(folder: RunFolder) -> int:
    rows = folder.metrics("train") if folder.path.is_dir() else []
    return int(rows[-1]["tokens"]) if rows else 0


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument(
        "--storage", help="Without it: the first line of the input has it, and the end of the input stops the worker."
    )
    options.add_argument("--worker", required=True)
    options.add_argument("--lease", type=float, required=True)
    options.add_argument("--most", type=int, help="The maximum number of trials.")
    options.add_argument("--objective", default=OURS)
    asked = options.parse_args()

    from trainbook.errors import Interrupted, TrainbookError
    from trainbook.knobs import load
    from trainbook.python_path import load_object
    from trainbook.study.tune.ledger import opened
    from trainbook.study.tune.stopping import Stopping
    from trainbook.study.tune.study_file import StudyQuestion
    from trainbook.study.tune.task import BASE
    from trainbook.study.tune.worker import MayBeUnwell, Worker

    stopping = Stopping()
    stopping.listen()
    told = {"storage": asked.storage, "share": 1.0}
    if asked.storage is None:
        line = _first_line()
        if not line:
            return 130  # whoever started us is gone
        told = json_text.loads(line)
        stopping.follow(0)
    try:
        with opened(told["storage"], asked.folder.name, asked.lease) as ledger:
            ledger.database.is_asked_to_stop = stopping.is_asked
            objective = stopping.breaking_into(load_object(asked.objective, "--objective"))
            question = StudyQuestion.from_json(ledger.question(), load(asked.folder / BASE), BASE)
            if asked.objective == OURS:
                import_module("trainbook.loop.build")  # PyTorch with it: the first trial's time is not that of starting
            worker = Worker(
                ledger,
                question,
                asked.folder,
                objective,
                asked.worker,
                share=told["share"],
                is_asked_to_stop=stopping.is_asked,
                interrupt=stopping.interrupt,
            )
            return 0 if worker.work(asked.most) else MORE
    except (Interrupted, KeyboardInterrupt):
        return 130
    except MayBeUnwell as error:
        echo(f"error: {error}", err=True)
        return UNWELL
    except TrainbookError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code


def _first_line() -> bytes:
    """Not by sys.stdin, which would read on."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
