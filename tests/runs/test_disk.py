from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainbook.errors import RunError
from trainbook.runs.disk import write_text_atomically


def test_the_text_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path):
    file = tmp_path / "a.json"
    write_text_atomically(file, "old")
    write_text_atomically(file, "new")
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_full_disk_keeps_the_old_text_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.json"
    write_text_atomically(file, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"a\.json: cannot be written: No space left on device"):
        write_text_atomically(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_new_text_is_on_disk_before_it_takes_the_old_ones_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("replace"), replace(old, new)))
    write_text_atomically(tmp_path / "a.json", "text")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_folder_is_no_file_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for folder in (Path("."), Path("/"), tmp_path):
        with pytest.raises(RunError, match=f"^{folder}: cannot be written: "):
            write_text_atomically(folder, "text")
    assert os.listdir(tmp_path) == []
