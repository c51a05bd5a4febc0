"""A worker of a study: a process that `trainbook tune` starts, or that a test starts with an objective of its own."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.bounded import json_text
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.knobs import Loaded
    from trainbook.study.tune.trial import Planning
    from trainbook.study.tune.trial_run import TrialOutcome, TrialTask

OURS = "trainbook.cli.trial:train_trial"
UNWELL, MORE = 75, 76  # exit codes: this process may have been hurt, another one is to go on; there may be more trials


def train_trial(task: TrialTask) -> TrialOutcome:
    from trainbook.report import write_report
    from trainbook.study.tune import trial_run

    return trial_run.train_trial(task, write_report)


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
    from trainbook.study.space import BASE
    from trainbook.study.tune.ledger import opened
    from trainbook.study.tune.worker import MayBeUnwell, Worker
    from trainbook.study.workers import Stopping

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
            planning = _planning(ledger.question(), load(asked.folder / BASE))
            if asked.objective == OURS:
                import_module("trainbook.loop.build")  # PyTorch with it: the first trial's time is not that of starting
            worker = Worker(
                ledger,
                planning,
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


def _planning(facts: dict[str, Any], loaded: Loaded) -> Planning:
    """Of the kind of study that the ledger has."""
    from trainbook.study.ablate.planning import Ablating
    from trainbook.study.ablate.study_file import KIND, AblateQuestion
    from trainbook.study.space import BASE
    from trainbook.study.tune.planning import Tuning
    from trainbook.study.tune.study_file import StudyQuestion

    if facts.get("kind") == KIND:
        return Ablating(AblateQuestion.from_json(facts, loaded, BASE))
    return Tuning(StudyQuestion.from_json(facts, loaded, BASE))


def _first_line() -> bytes:
    """Not by sys.stdin, which would read on."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
