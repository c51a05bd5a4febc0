"""Links and names that lead out of a folder that somebody handed over: nothing is read or written through them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import trainbook
from trainbook.checkpoints import CheckpointStore
from trainbook.contained import create_anew, is_plain_name, must_stay_inside, open_no_link
from trainbook.errors import CheckpointError, LeadsOut, TrainbookError, UserError
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.runs.jsonl import JsonlWriter
from trainbook.runs.record import open_record

PRECIOUS = "not yours\n"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Files of the user's, outside of every run folder."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text(PRECIOUS)
    return folder


def is_unharmed(precious: Path) -> bool:
    return [path.name for path in precious.iterdir()] == ["file"] and (precious / "file").read_text() == PRECIOUS


FILES = ("lock", "metrics.jsonl", "events.jsonl", "config.yaml", "manifest.json", "report.md", "quarantine.jsonl")
FOLDERS = ("checkpoints", "tokenizer", "network", "tensorboard", "wandb")
INSIDE = ("tokenizer/tokenizer.json", "tokenizer/facts.json", "checkpoints/index.json")


@pytest.fixture(scope="module")
def trained(shared_lab: Any) -> Path:
    shared_lab.train("training.max_steps=2", "schedule.warmup_steps=1", "evaluation.eval_steps=2", name="run")
    return shared_lab.runs / "run"


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, *INSIDE])
def test_a_link_that_leads_out_of_a_run_folder_is_refused(name: str, trained: Path, tmp_path: Path, precious: Path):
    copy = tmp_path / "runs" / "run"
    shutil.copytree(trained, copy)
    link = copy / name
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(precious if name in FOLDERS else precious / "file")
    with pytest.raises(UserError):
        trainbook.resume(copy, ["training.max_steps=4"], accept_changes=True, quiet=True)
    with pytest.raises(UserError):
        trainbook.train(copy / "config.yaml", ["training.max_steps=4"], name="run", runs_dir=copy.parent, quiet=True)
    assert is_unharmed(precious)
    if name not in ("manifest.json", "checkpoints"):  # without these it is no run of ours
        for opened in (RunFolder.find, open_record):
            with pytest.raises(LeadsOut, match=f"{name}.* is a link to {precious}.*outside of"):
                opened(copy)


def test_a_link_prepared_for_a_file_that_is_not_there_yet(tmp_path: Path, precious: Path):
    path = tmp_path / "config.yaml"
    (tmp_path / f".config.yaml.{os.getpid()}.tmp").symlink_to(precious / "file")
    write_text_atomically(path, "ours")
    assert path.read_text() == "ours" and not path.is_symlink() and is_unharmed(precious)
    for name in ("rows.jsonl", "lock"):
        (tmp_path / name).symlink_to(precious / "file")
    with pytest.raises(LeadsOut):
        JsonlWriter(tmp_path / "rows.jsonl")
    with pytest.raises(LeadsOut):
        open_no_link(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.close(create_anew(tmp_path / "lock"))
    assert is_unharmed(precious)


def test_links_that_stay_inside_and_folders_that_are_links_still_work(trained: Path, tmp_path: Path):
    real = tmp_path / "real" / "run"
    shutil.copytree(trained, real)
    (real / "wandb").mkdir()
    (real / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    (tmp_path / "shortcut").symlink_to(real)
    must_stay_inside(real)
    assert RunFolder.open(tmp_path / "runs" / "run").name == "run"
    assert open_record(tmp_path / "shortcut").train
    trainbook.resume(tmp_path / "shortcut", ["training.max_steps=4"], accept_changes=True, quiet=True)
    assert RunFolder(real).metrics("train")[-1]["step"] == 4


def test_a_pipe_in_a_run_folder_is_refused_instead_of_waited_for(trained: Path, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    (copy / "metrics.jsonl").unlink()
    os.mkfifo(copy / "metrics.jsonl")
    with pytest.raises(LeadsOut, match="neither a file nor a folder"):
        open_record(copy)


# Checkpoints


def reseal(folder: Path) -> None:
    """As somebody does who knows how markers are made."""
    marker = json.loads((folder / "complete.json").read_text())
    state = (folder / "state.json").read_bytes()
    marker["files"]["state.json"] = {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
    del marker["sha256"]
    marker["sha256"] = hashlib.sha256(json.dumps(marker, indent=1).encode()).hexdigest()
    (folder / "complete.json").write_bytes(json.dumps(marker, indent=1).encode())


@pytest.fixture
def checkpoint(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return max((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("name", ["../../../precious/model.safetensors", "/precious/model.safetensors"])
def test_a_resealed_state_cannot_name_a_file_elsewhere(name: str, checkpoint: Path, precious: Path):
    name = name.replace("/precious", str(precious)) if name.startswith("/") else name
    shutil.copy(checkpoint / "model.safetensors", precious)
    marker = json.loads((checkpoint / "complete.json").read_text())
    marker["files"][name] = marker["files"].pop("model.safetensors")
    (checkpoint / "complete.json").write_text(json.dumps(marker))
    state = json.loads((checkpoint / "state.json").read_text())
    state["parts"]["model"]["file"] = name
    (checkpoint / "state.json").write_text(json.dumps(state))
    reseal(checkpoint)
    store = CheckpointStore(checkpoint.parent, read_only=True, on_event=lambda kind, facts: None)
    assert store.steps() == []
    with pytest.raises(CheckpointError, match="which is no file of this folder"):
        store.load("latest")


def test_a_checkpoint_that_is_or_has_a_link_is_damaged(checkpoint: Path, precious: Path):
    elsewhere = precious / "model"
    (checkpoint / "model.safetensors").rename(elsewhere)
    (checkpoint / "model.safetensors").symlink_to(elsewhere)
    store = CheckpointStore(checkpoint.parent, read_only=True, on_event=lambda kind, facts: None)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a link"):
        store.load("latest")
    (checkpoint / "model.safetensors").unlink()
    elsewhere.rename(checkpoint / "model.safetensors")
    assert store.load("latest") is not None
    checkpoint.rename(precious / "moved")
    checkpoint.symlink_to(precious / "moved")
    with pytest.raises(CheckpointError, match="it is a link"):
        store.load("latest")


# Caches, datasets, models, studies


def test_a_cache_is_not_read_or_written_through_links(lab: Any, precious: Path):
    lab.train("training.max_steps=2", "schedule.warmup_steps=1", name="first")
    cache = lab.root / "cache"
    for entry in (*(cache / "tokens").iterdir(), *(cache / "parts").iterdir()):
        if entry.is_dir():
            moved = precious / f"{entry.parent.name}-{entry.name}"
            entry.rename(moved)
            entry.symlink_to(moved)
    before = {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()}
    lab.train("training.max_steps=2", "schedule.warmup_steps=1", name="second")
    assert {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()} == before
    assert not any(entry.is_symlink() for entry in (cache / "tokens").iterdir())
    lab.must_be_equal("first", "second")
    shutil.rmtree(cache / "hashes", ignore_errors=True)
    (cache / "hashes").symlink_to(precious)
    with pytest.raises(LeadsOut, match="hashes is a link"):
        lab.train("training.max_steps=2", "schedule.warmup_steps=1", name="third")


def test_an_index_that_names_parts_elsewhere_is_not_believed(lab: Any, precious: Path):
    from trainbook.data.prepare.folder_cache import read_checked, write_checked

    lab.train("training.max_steps=2", "schedule.warmup_steps=1", name="first")
    index = next((lab.root / "cache" / "tokens").glob("*/index.json"))
    content = read_checked(index)
    assert content is not None
    write_checked(index, content | {"shelf": str(precious)})
    lab.train("training.max_steps=2", "schedule.warmup_steps=1", name="second")
    lab.must_be_equal("first", "second")


def test_lists_of_files_name_only_what_is_beside_them(tmp_path: Path, precious: Path):
    from trainbook.data.sources.opening import files_of
    from trainbook.models.formats.folder import open_weights

    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../precious/file"}}))
    with pytest.raises(UserError, match="which is no file of its folder"), open_weights(tmp_path):
        pass
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": str(precious / "file")}]}))
    with pytest.raises(UserError, match="which is not a file of the dataset"):
        files_of(tmp_path, None, "here", "data.source")


def test_a_study_with_links_is_refused_and_its_ledger_deletes_nothing_elsewhere(tmp_path: Path, precious: Path):
    from types import SimpleNamespace

    from trainbook.runs import make_folder
    from trainbook.study.tune import worker

    study = tmp_path / "study"
    (study / "trials").mkdir(parents=True)
    (study / "logs").symlink_to(precious)
    with pytest.raises(LeadsOut):
        make_folder(study)
    for place in (precious / "run", study / "trials" / "run"):
        (place / "checkpoints").mkdir(parents=True)
    named = SimpleNamespace(state="done", run=str(precious / "run"), number=1)
    planning = SimpleNamespace(keeps=lambda trials: set())
    made: Any = worker.Worker.__new__(worker.Worker)
    made.ledger, made.planning, made.folder = SimpleNamespace(trials=lambda: [named]), planning, study
    made._make_room()
    assert (precious / "run" / "checkpoints").is_dir() and not (study / "trials" / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        ("model.safetensors", True),
        ("tokenizer/merges.txt", True),
        ("..", False),
        ("a/../../b", False),
        ("/etc/passwd", False),
        ("", False),
        (".", False),
        ("a\0b", False),
        (7, False),
    ],
)
def test_names_that_stay_in_their_folder(name: object, is_plain: bool):
    assert is_plain_name(name) == is_plain


def test_what_is_refused_is_an_input_error():
    assert issubclass(LeadsOut, UserError) and issubclass(LeadsOut, TrainbookError)
