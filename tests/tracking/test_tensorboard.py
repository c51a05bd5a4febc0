from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainbook.tracking.tensorboard import TensorBoardTracker


def train_row(step: int, loss: float) -> dict[str, object]:
    return {"step": step, "segment": 0, "split": "train", "time": 50.0 + step, "loss": loss, "memory_kind": "host_rss"}


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_scalars_are_named_by_split_and_carry_step_and_time(tmp_path: Path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_metrics(train_row(3, 1.5))
    tracker.log_metrics({"step": 3, "segment": 0, "split": "eval", "time": 9.0, "loss": 1.25, "best": True})
    tracker.close("finished")
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["eval/loss", "train/loss"]
    [scalar] = events.Scalars("train/loss")
    assert (scalar.step, scalar.value, scalar.wall_time) == (3, 1.5, 53.0)


def test_a_metric_that_is_a_dict_has_a_curve_for_each_of_its_numbers(tmp_path: Path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_metrics({**train_row(3, 1.5), "grad_norms": {"body.blocks.3": 0.25, "head": 2.0}})
    tracker.close("finished")
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["train/grad_norms/body.blocks.3", "train/grad_norms/head", "train/loss"]
    [scalar] = events.Scalars("train/grad_norms/body.blocks.3")
    assert (scalar.step, scalar.value) == (3, 0.25)


def test_a_row_can_be_seen_before_the_run_ends(tmp_path: Path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_metrics(train_row(1, 1.5))
    assert len(read(tmp_path).Scalars("train/loss")) == 1
    tracker.close("finished")


def test_events_are_readable_as_text(tmp_path: Path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_event({"step": 4, "segment": 0, "time": 1.0, "kind": "skip", "reason": "norm is NaN"})
    tracker.close("finished")
    [tensor] = read(tmp_path).Tensors("events/skip")
    assert tensor.step == 4 and tensor.tensor_proto.string_val[0] == b"norm is NaN"


def test_a_resumed_run_replaces_the_points_after_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = TensorBoardTracker(tmp_path)
    for step in (10, 15, 20):
        first.log_metrics(train_row(step, 1.0))
    first.close("failed")
    # Two files of one second are read in the order of their names, which end in a counter.
    second = TensorBoardTracker(tmp_path, start_step=10)
    second.log_metrics(train_row(20, 2.0))
    second.close("finished")
    assert [(scalar.step, scalar.value) for scalar in read(tmp_path).Scalars("train/loss")] == [(10, 1.0), (20, 2.0)]


def test_neither_torch_nor_tensorflow_is_imported():
    code = "import sys, trainbook.tracking.tensorboard; print({'torch', 'tensorflow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
