"""TensorBoard's event files, written by its own writers, read as a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs

from trainbook.errors import UserError
from trainbook.runs.foreign.tensorboard import event_files
from trainbook.runs.record import open_record

pytestmark = needs("tensorboard")


class Events:
    """One file of events, as TensorBoard's own writer writes it; a later one has a later second in its name."""

    def __init__(self, folder: Path, second: int = 1) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.folder = folder
        self.writer = EventFileWriter(str(folder))
        self.second = second

    def add(self, step: int, time: float = 1000.0, **values: float) -> Events:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        parts = [Summary.Value(tag=tag.replace("__", "/"), simple_value=value) for tag, value in values.items()]
        return self.event(step=step, wall_time=time, summary=Summary(value=parts))

    def event(self, **content: Any) -> Events:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self.writer.add_event(Event(**content))
        return self

    def close(self) -> Path:
        self.writer.close()
        [file] = [file for file in self.folder.iterdir() if ".tfevents." in file.name and "done" not in file.name]
        return file.rename(file.with_name(f"events.out.tfevents.{self.second}.host.done"))


def test_scalars_become_rows(tmp_path: Path):
    events = Events(tmp_path)
    for step in range(1, 5):
        events.add(step, 1000.0 + step, train__loss=5.0 - step, lr=0.01)
    file = events.add(4, 1010.0, eval__loss=0.5, eval__accuracy=0.25).close()
    for path in (tmp_path, file):
        record = open_record(path)
        assert record.origin == "tensorboard" and record.name == tmp_path.name
        assert record.series("loss") == ([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0])
        assert record.series("learning_rate")[1] == [0.01] * 4  # not 0.009999999776
        assert [row["time"] for row in record.train] == [1001.0, 1002.0, 1003.0, 1010.0]
        assert record.evaluations == [
            {"step": 4, "segment": 0, "split": "eval", "loss": 0.5, "accuracy": 0.25, "time": 1010.0}
        ]


def test_the_torch_writer_is_read_with_its_texts_and_hyper_parameters(tmp_path: Path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "mine"))
    for step in range(3):
        writer.add_scalar("loss/train", 3.0 - step, step)
        writer.add_scalar("loss/valid", 4.0 - step, step, new_style=True)
    writer.add_scalar("loss/train", math.nan, 3)
    writer.add_hparams({"lr": 0.125, "optimizer": "AdamW"}, {"hparam/loss": 1.0})
    writer.close()
    record = open_record(tmp_path / "mine")
    steps, losses = record.series("loss")
    assert steps == [0, 1, 2, 3] and losses[:3] == [3.0, 2.0, 1.0] and math.isnan(losses[3])
    assert record.series("loss", "eval") == ([0, 1, 2], [4.0, 3.0, 2.0])
    assert record.settings == {"optimizer.learning_rate": 0.125, "optimizer.type": "adamw"}
    assert record.names["optimizer.learning_rate"] == "lr"


def test_hyper_parameters_are_numbers_words_and_switches(tmp_path: Path):
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    summary = hparams_pb({"lr": 0.5, "optimizer": "lion", "qk_norm": True})
    Events(tmp_path).event(step=0, wall_time=1.0, summary=summary).add(1, loss=1.0).close()
    expected = {"optimizer.learning_rate": 0.5, "optimizer.type": "lion", "model.qk_norm": True}
    assert open_record(tmp_path).settings == expected


def test_a_resumed_run_is_read_over_its_files_and_the_later_steps_count(tmp_path: Path):
    first = Events(tmp_path, second=1)
    for step in (10, 20, 30, 40):
        first.add(step, train__loss=float(step))
    first.close()
    second = Events(tmp_path, second=2)
    for step in (25, 35):
        second.add(step, train__loss=-float(step))
    second.close()
    record = open_record(tmp_path)
    assert record.series("loss") == ([10, 20, 25, 35], [10.0, 20.0, -25.0, -35.0])
    assert [(event["kind"], event["step"]) for event in record.events] == [("resume", 20)]


def test_a_file_that_is_still_written_is_read_up_to_its_last_whole_record(tmp_path: Path):
    events = Events(tmp_path)
    for step in range(1, 4):
        events.add(step, loss=float(step))
    file = events.close()
    whole = file.read_bytes()
    for cut in range(1, 60):
        file.write_bytes(whole[:-cut])
        steps = open_record(tmp_path).series("loss")[0]
        assert steps in ([1, 2], [1])
    file.write_bytes(whole + b"\0" * 100)
    assert open_record(tmp_path).series("loss")[0] == [1, 2, 3]


def test_folders_named_for_training_and_validation_are_one_run(tmp_path: Path):
    for folder, loss in (("train", 1.0), ("validation", 2.0)):
        Events(tmp_path / folder).add(1, epoch_loss=loss).close()
    record = open_record(tmp_path)
    assert record.series("loss") == ([1], [1.0]) and record.series("loss", "eval") == ([1], [2.0])


def test_several_runs_in_one_folder_are_named(tmp_path: Path):
    for folder in ("version_0", "version_1"):
        Events(tmp_path / folder).add(1, loss=1.0).close()
    with pytest.raises(
        UserError, match=r"must hold one run, but 'loss' is in several: version_0, version_1\. Name one"
    ):
        open_record(tmp_path)


def test_what_is_no_file_of_events_is_a_message(tmp_path: Path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"this is some text, and not what it is named")
    with pytest.raises(UserError, match="does not start like one"):
        open_record(tmp_path)
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    with pytest.raises(UserError, match="has no logged numbers"):
        open_record(tmp_path)


def test_the_mirror_of_a_run_of_ours_tells_the_same_as_the_run(lab):
    lab.train("logging.report_to=[tensorboard]", "training.max_steps=6", "logging.logging_steps=1")
    ours, mirror = open_record("run", lab.runs), open_record(lab.runs / "run" / "tensorboard")
    assert [row["step"] for row in mirror.train] == [row["step"] for row in ours.train]
    for name in ("loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second", "epoch"):
        assert [row[name] for row in mirror.train] == pytest.approx([row[name] for row in ours.train], rel=1e-6)
    assert mirror.train[0]["grad_norms"] == pytest.approx(ours.train[0]["grad_norms"], rel=1e-6)
    assert mirror.series("loss", "eval")[1] == pytest.approx(ours.series("loss", "eval")[1], rel=1e-6)


def test_what_a_trainer_told_tensorboard_is_the_same_run_as_its_state(trained_elsewhere: Path):
    state, events = open_record(trained_elsewhere), open_record(trained_elsewhere / "runs")
    assert len(event_files(trained_elsewhere / "runs")) == 1
    assert events.series("loss")[1] == pytest.approx(state.series("loss")[1], rel=1e-6)
    assert events.series("loss", "eval")[1] == pytest.approx(state.series("loss", "eval")[1], rel=1e-6)
    assert events.settings["optimizer.beta2"] == 0.98
    assert events.names["optimizer.learning_rate"] == "learning_rate"
