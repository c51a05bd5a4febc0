from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from trainbook.cli.trial import train_trial
from trainbook.errors import CheckpointError, OutOfMemory, RunInUse, TooLarge
from trainbook.runs import RunFolder
from trainbook.study.child_run import ChildRun
from trainbook.study.tune.trial import Trial
from trainbook.study.tune.trial_run import Busy, Failed, TrialTask


@pytest.fixture
def task(tmp_path: Path) -> TrialTask:
    return TrialTask(Trial(3, "search", {}), tmp_path, "loss")


def ends_with(monkeypatch: pytest.MonkeyPatch, *errors: Exception | Any) -> list[object]:
    """What each training in turn ends with."""
    left, calls = list(errors), []

    def train(child: ChildRun) -> None:
        calls.append(child)
        ended = left.pop(0)
        if isinstance(ended, Exception):
            raise ended
        for name in ("metrics", "events", "recorded"):
            monkeypatch.setattr(RunFolder, name, getattr(ended, name))

    monkeypatch.setattr(ChildRun, "_train", train)
    return calls


def result(rows: list[dict[str, Any]], total: int = 90, patience: int | None = None) -> Any:
    config = SimpleNamespace(evaluation=SimpleNamespace(early_stopping_patience=patience))
    return SimpleNamespace(
        metrics=lambda run, split: rows,
        events=lambda run: [{"kind": "start", "total_updates": total}],
        recorded=lambda run: config,
    )


def test_too_little_memory_is_the_trials_answer(task: TrialTask, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(monkeypatch, OutOfMemory("the GPU ran out of memory while building the model"))
    outcome = train_trial(task)
    assert outcome.loss is None and outcome.reason == "out of memory"


def test_beside_other_workers_it_is_tried_again_alone_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = TrialTask(Trial(3, "search", {}), tmp_path, "loss", shares_gpu=True)
    calls = ends_with(monkeypatch, OutOfMemory("x"), result([{"step": 90, "loss": 2.0}]))
    assert train_trial(shared).loss == 2.0 and len(calls) == 2
    ends_with(monkeypatch, OutOfMemory("x"), OutOfMemory("x"))
    assert train_trial(shared).reason == "out of memory"


def test_what_no_device_of_this_kind_holds_is_the_trials_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = ends_with(monkeypatch, TooLarge("the run needs at least 90 GB"))
    outcome = train_trial(TrialTask(Trial(3, "search", {}), tmp_path, "loss", shares_gpu=True))
    assert outcome.loss is None and outcome.reason == "too large: the run needs at least 90 GB"
    assert len(calls) == 1, "alone it would be as large"


def test_errors_are_told_apart(task: TrialTask, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(monkeypatch, RunInUse("runs/x is in use"), CheckpointError("the disk is full"), RuntimeError("CUDA"))
    with pytest.raises(Busy):
        train_trial(task)
    with pytest.raises(Failed, match="the disk is full") as ours:
        train_trial(task)
    with pytest.raises(Failed, match="RuntimeError: CUDA") as another:
        train_trial(task)
    assert ours.value.is_expected and not another.value.is_expected


def test_a_trial_that_is_further_than_its_rung_is_judged_at_the_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = TrialTask(Trial(3, "search", {}), tmp_path, "loss", until=1 / 9)
    ends_with(monkeypatch, result([{"step": 5, "loss": 4.0}, {"step": 10, "loss": 3.0}, {"step": 40, "loss": 1.0}]))
    assert train_trial(rung).loss == 3.0


def test_a_run_that_may_stop_early_is_judged_at_its_best_by_the_studys_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"step": 10, "loss": 3.0, "accuracy": 0.1}, {"step": 20, "loss": 4.0, "accuracy": 0.5}]
    rows.append({"step": 30, "loss": 5.0, "accuracy": 0.2})
    by_accuracy = TrialTask(Trial(3, "search", {}), tmp_path, "accuracy")
    ends_with(monkeypatch, result(rows, patience=2), result(rows))
    assert train_trial(by_accuracy).loss == 0.5
    assert train_trial(by_accuracy).loss == 0.2  # without patience: at its end


def test_a_worker_without_anybody_at_the_other_end_leaves_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainbook.cli.trial", str(tmp_path), "--worker", "w", "--lease", "60"]
    source = str(Path(__file__).parents[2] / "src")
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, env={"PYTHONPATH": source}, capture_output=True)
    assert ended.returncode == 130 and not list(tmp_path.iterdir())
