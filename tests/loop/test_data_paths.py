from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainbook import api
from trainbook.errors import DataError, ResumeError
from trainbook.knobs import load
from trainbook.loop.data_paths import with_paths_found
from trainbook.runs import Manifest, RunFolder

RELATIVE = ("data.source=text.txt", "data.cache_dir=cache")


@pytest.fixture
def elsewhere(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the lab's folder a run was trained and another one cut short; now the user is in another folder."""
    monkeypatch.chdir(lab.root)
    lab.train(*RELATIVE, name="whole")
    with lab.crashing_at(8):
        lab.train(*RELATIVE, "checkpoint.save_steps=3", name="run")
    other = lab.root / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    return other


def test_a_run_is_resumed_from_another_directory(lab: Any, elsewhere: Path):
    api.resume(lab.runs / "run", quiet=True)
    lab.must_be_equal("run", "whole")
    found = [event["reason"] for event in lab.events("notice") if "was found in" in event["reason"]]
    assert found == [
        f"{knob}: {value} is not in the current directory and was found in {lab.root}"
        for knob, value in (("data.source", "text.txt"), ("data.cache_dir", "cache"))
    ]
    assert lab.open().recorded().data.source == "text.txt"
    assert lab.open().read_manifest().working_directory == str(lab.root)
    assert not (elsewhere / "cache").exists()


def test_a_project_that_was_moved_goes_on_where_it_is(lab: Any, elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    moved = elsewhere / "project"
    moved.mkdir()
    for name in ("text.txt", "runs", "cache"):
        shutil.move(lab.root / name, moved)
    monkeypatch.chdir(moved)
    api.resume("run", quiet=True)
    run = RunFolder(moved / "runs" / "run")
    assert run.read_manifest().working_directory == str(moved)
    assert run.metrics("train")[-1]["step"] == 12


def test_the_folder_beside_the_runs_is_looked_in_for_runs_that_recorded_none(lab: Any, elsewhere: Path):
    manifest = json.loads(lab.open().manifest.read_text())
    del manifest["working_directory"], manifest["id"]
    lab.open().manifest.write_text(json.dumps(manifest))
    api.resume(lab.runs / "run", quiet=True)
    lab.must_be_equal("run", "whole")


def test_another_file_of_that_name_here_is_not_taken_for_the_data(lab: Any, elsewhere: Path):
    (elsewhere / "text.txt").write_text("something else altogether " * 400)
    with pytest.raises(ResumeError):
        api.resume(lab.runs / "run", quiet=True)


def test_data_that_is_nowhere_is_told_by_the_name_that_was_given(lab: Any, elsewhere: Path):
    lab.text.unlink()
    with pytest.raises(DataError, match=r"data\.source: 'text\.txt' does not exist"):
        api.resume(lab.runs / "run", quiet=True)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("books/*.txt", "{}/books/*.txt"),
        ("@list.txt", "@{}/list.txt"),
        ("books", "{}/books"),
        ("books#train", "{}/books#train"),
        ("nowhere.txt", "nowhere.txt"),
        ("builtin:pystdlib", "builtin:pystdlib"),
        ("my_data:texts", "my_data:texts"),
        ("/books", "/books"),
    ],
)
def test_every_kind_of_source(given: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "base"
    (base / "books").mkdir(parents=True)
    (base / "books" / "one.txt").touch()
    (base / "list.txt").touch()
    run = RunFolder.create(tmp_path / "runs", "run")
    run.write_manifest(Manifest("run", working_directory=str(base)))
    config, _ = with_paths_found(load("gpt-tiny", [f"data.source={given}"]).config, run)
    assert config.data.source == found.format(base)


def test_data_beside_the_file_that_names_it_is_pointed_out(lab: Any, elsewhere: Path):
    file = lab.root / "my run.yaml"
    file.write_text("data: {source: text.txt}\n")
    with pytest.raises(DataError) as error:
        api.train(load(file, ["training.max_steps=1"]), recipe=str(file), runs_dir=elsewhere / "runs", quiet=True)
    source = lab.root / "text.txt"
    assert str(error.value) == (
        f"data.source: 'text.txt' is not in the current directory, but in {lab.root}. Change to that directory, or "
        f"add data.source={source}."
    )


def test_the_data_of_a_run_whose_configuration_is_trained_again_is_pointed_out(lab: Any, elsewhere: Path):
    file = lab.runs / "whole" / "config.yaml"
    with pytest.raises(DataError, match=f"is not in the current directory, but in {lab.root}"):
        api.train(load(file), recipe=str(file), runs_dir=elsewhere / "runs", quiet=True)
