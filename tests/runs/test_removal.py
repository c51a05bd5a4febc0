from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from tests.run_folders import make_run

from trainbook.errors import LeadsOut, RunError, RunFolderError, RunInUse
from trainbook.runs import RunFolder
from trainbook.runs.removal import Extent, delete_run, extent_of, find_deletable


def test_a_run_is_deleted_whole_and_nothing_else(tmp_path: Path):
    make_run(tmp_path / "a")
    (tmp_path / "a/checkpoints/step-1").mkdir(parents=True)
    (tmp_path / "a/checkpoints/step-1/weights").write_bytes(bytes(1000))
    make_run(tmp_path / "b")
    folder = find_deletable("a", tmp_path)
    extent = extent_of(folder)
    assert extent.files == 4 and extent.bytes > 1000
    delete_run(folder)
    assert os.listdir(tmp_path) == ["b"] and RunFolder(tmp_path / "b").manifest.is_file()


def test_what_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("plain", "file", "none", "..", "/", str(tmp_path)):
        with pytest.raises(RunFolderError):
            find_deletable(name, tmp_path)
    assert (tmp_path / "plain/notes.txt").read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    make_run(tmp_path / "runs/a")
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs/a")
    with pytest.raises(RunFolderError, match="is a link to"):
        find_deletable("link", tmp_path / "runs")
    folder = find_deletable("a", tmp_path / "runs")
    (folder.path / "out").symlink_to(outside)
    with pytest.raises(LeadsOut):
        find_deletable("a", tmp_path / "runs")
    with pytest.raises(LeadsOut):  # also of one that appears later
        delete_run(folder)
    (folder.path / "out").unlink()
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints/newest").symlink_to(folder.path)
    delete_run(folder)
    assert not folder.path.exists() and (outside / "mine").read_text() == "mine"


def test_a_run_in_which_a_process_writes_is_refused(tmp_path: Path):
    run = make_run(tmp_path / "a")
    with run.lock(), pytest.raises(RunInUse, match="stop the run before it is deleted"):
        find_deletable("a", tmp_path)
    folder = find_deletable("a", tmp_path)
    with run.lock(), pytest.raises(RunInUse):  # one that began between the question and the answer
        delete_run(folder)
    run.lock_file.write_text(json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}"}))
    with pytest.raises(RunInUse, match=r"If it is gone, remove .*lock first"):
        find_deletable("a", tmp_path)
    run.lock_file.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))  # it was killed
    delete_run(find_deletable("a", tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_holds_other_runs_is_refused(tmp_path: Path):
    make_run(tmp_path)
    make_run(tmp_path / "a")
    with pytest.raises(RunFolderError, match="it holds another run: "):
        find_deletable(tmp_path)


def test_the_folder_that_one_stands_in_is_deleted_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    folder = find_deletable(".")
    assert folder.path == tmp_path / "a" and extent_of(folder) == Extent(3, extent_of(folder).bytes)
    delete_run(folder)
    assert os.listdir(tmp_path) == []


def test_what_an_interruption_leaves_is_still_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run(tmp_path / "a")
    (tmp_path / "a/checkpoints/step-1").mkdir(parents=True)

    def fail(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", fail)
        with pytest.raises(RunError, match=r"was not deleted completely: .*Permission denied"):
            delete_run(find_deletable("a", tmp_path))
    delete_run(find_deletable("a", tmp_path))
    assert os.listdir(tmp_path) == []
