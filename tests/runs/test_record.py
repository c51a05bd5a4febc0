"""A record is what is known of a run, from its files alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import NewerRun, RunFolderError
from trainbook.knobs import load
from trainbook.runs import Manifest, RunFolder
from trainbook.runs.jsonl import JsonlWriter
from trainbook.runs.record import open_record
from trainbook.runs.run_record import read_run


class Written:
    """A run folder written by hand."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder.create(path, "run")
        config = load({"optimizer": {"learning_rate": 0.25}, "training": {"max_steps": 9}}).config
        Manifest("run", seed=7, config=config.model_dump(mode="json")).write(self.run.manifest)

    def rows(self, *rows: dict[str, Any]) -> None:
        with JsonlWriter(self.run.metrics_file) as writer:
            for row in rows:
                writer.append({"segment": 0, "split": "train", **row})

    def events(self, *rows: dict[str, Any]) -> None:
        with JsonlWriter(self.run.events_file) as writer:
            for row in rows:
                writer.append({"segment": 0, "step": 0, **row})


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_a_record_has_rows_settings_and_facts_of_the_run(written: Written):
    written.rows({"step": 1, "loss": 5.0}, {"step": 2, "loss": math.nan}, {"step": 2, "split": "eval", "loss": 4.0})
    written.events(
        {"kind": "start", "total_updates": 9, "left_out": []},
        {"kind": "facts", "tokens_in_data": 100},
        {"kind": "skip", "step": 2, "reason": "NaN"},
    )
    record = read_run(written.run)
    assert (record.name, record.origin, record.path) == ("run", "trainbook", written.run.path)
    assert [row["step"] for row in record.train] == [1, 2] and math.isnan(record.train[1]["loss"])
    assert [row["loss"] for row in record.evaluations] == [4.0]
    assert record.settings["optimizer.learning_rate"] == 0.25 and record.settings["training.max_steps"] == 9
    assert record.config is not None and record.config.optimizer.learning_rate == 0.25
    assert record.facts["seed"] == 7 and record.facts["status"] == "running"  # of the manifest
    assert record.facts["total_updates"] == 9 and record.facts["tokens_in_data"] == 100
    assert [event["kind"] for event in record.events] == ["start", "facts", "skip"]
    assert record.series("loss", "eval") == ([2], [4.0])
    assert record.has("loss") and not record.has("loss", "grad_norm")


def test_what_an_abandoned_segment_wrote_is_left_out(written: Written):
    written.rows({"step": 1, "loss": 5.0}, {"step": 2, "loss": 9.0}, {"step": 3, "loss": 9.0})
    written.rows({"step": 2, "loss": 4.0, "segment": 1})
    written.events({"kind": "start"}, {"kind": "resume", "step": 1, "segment": 1})
    assert read_run(written.run).series("loss") == ([1, 2], [5.0, 4.0])


def test_a_run_in_progress_is_read_up_to_its_last_whole_row(written: Written):
    written.rows({"step": 1, "loss": 5.0})
    with written.run.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_run(written.run).series("loss") == ([1], [5.0])


def test_without_a_manifest_the_configuration_file_tells_the_settings(written: Written):
    written.run.manifest.unlink()
    written.run.config.write_text("optimizer: {learning_rate: 0.5}\n")
    written.rows({"step": 1, "loss": 5.0})
    record = open_record(written.run.path)
    assert record.settings["optimizer.learning_rate"] == 0.5 and record.facts == {}


def test_without_any_configuration_the_rows_are_still_there_and_the_reason_is_told(written: Written):
    content = json.loads(written.run.manifest.read_text())
    content["config"] = {"optimizer": {"learning_rate": "fast"}}
    written.run.manifest.write_text(json.dumps(content))
    written.rows({"step": 1, "loss": 5.0})
    record = open_record(written.run.path)
    assert record.config is None and record.settings == {} and len(record.train) == 1
    assert "optimizer.learning_rate" in record.facts["config_problem"]


def test_a_run_that_has_logged_nothing_yet_is_an_empty_record(written: Written):
    record = open_record(written.run.path)
    assert record.train == record.evaluations == record.events == []


def test_a_run_is_found_by_name_by_folder_and_by_one_of_its_files(written: Written, tmp_path: Path):
    written.rows({"step": 1, "loss": 5.0})
    for path in ("run", written.run.path, written.run.manifest, written.run.metrics_file):
        assert open_record(path, tmp_path).name == "run"


def test_an_unknown_name_gets_what_was_looked_for_and_the_nearest_run(written: Written, tmp_path: Path):
    with pytest.raises(RunFolderError) as error:
        open_record("runn", tmp_path)
    text = str(error.value)
    assert "there is no run runn" in text and f"Did you mean {tmp_path / 'run'}?" in text
    assert all(kind in text for kind in ("run folder", "trainer_state.json", "TensorBoard", "W&B", ".csv"))


def test_the_beginning_of_a_name_is_nearer_than_another_name_of_like_letters(tmp_path: Path):
    for name in ("rate-low-and-longer", "rate-lou"):
        Manifest(name).write(RunFolder.create(tmp_path, name).manifest)
    with pytest.raises(RunFolderError, match=r"Did you mean .*rate-low-and-longer\?"):
        open_record("rate-low", tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "other.json", "folder"])
def test_what_is_no_run_is_said_to_be_none(tmp_path: Path, name: str):
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_text('{"a": 1}')
    with pytest.raises(RunFolderError, match=r"(no|not a) readable run\. Looked for"):
        open_record(path)


def test_a_run_of_a_newer_version_is_refused(written: Written):
    content = json.loads(written.run.manifest.read_text()) | {"schema_version": 99}
    written.run.manifest.write_text(json.dumps(content))
    with pytest.raises(NewerRun):
        open_record(written.run.path)


def test_a_trained_run_is_a_record_that_knows_all_knobs(lab):
    result = lab.train("training.max_steps=4", "evaluation.eval_steps=4", "logging.logging_steps=1")
    record = open_record("run", lab.runs)
    assert record.config == result.run.recorded()
    assert record.series("loss")[0] == [1, 2, 3, 4] and len(record.evaluations) == 1
    assert record.facts["status"] == "finished" and record.facts["total_updates"] == 4
    assert record.settings.keys() == {knob.path for knob in _declarations()}


def _declarations() -> Any:
    from trainbook.knobs.config import declarations

    return list(declarations())


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_file_that_cannot_be_read_is_a_message(written: Written, name: str):
    written.rows({"step": 1, "loss": 5.0})
    (written.run.path / name).unlink(missing_ok=True)
    (written.run.path / name).mkdir()
    with pytest.raises(RunFolderError, match=rf"{name} cannot be read: Is a directory"):
        open_record(written.run.path)
