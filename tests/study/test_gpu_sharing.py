"""NVIDIA's service itself needs a GPU: here a script stands in for it, that notes down what it is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainbook.study import gpu_sharing
from trainbook.study.gpu_sharing import LOGS, PIPES, shared_gpu
from trainbook.study.workers import sharing

SERVICE = """#!/bin/sh
told=${0%/*}/told
if [ "$1" = -d ]; then
    echo "start $CUDA_MPS_PIPE_DIRECTORY ${CUDA_VISIBLE_DEVICES-all}" >> "$told"; touch "$CUDA_MPS_PIPE_DIRECTORY/runs"
    exit 0
fi
read command
[ -f "$CUDA_MPS_PIPE_DIRECTORY/runs" ] || exit 1
echo "$command" >> "$told"
if [ "$command" = quit ]; then rm "$CUDA_MPS_PIPE_DIRECTORY/runs"; fi
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the service was told."""
    script = tmp_path / "bin" / gpu_sharing.CONTROL
    script.parent.mkdir()
    script.write_text(SERVICE)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(gpu_sharing, "MACHINES_OWN", tmp_path / "nothing")
    monkeypatch.setattr(gpu_sharing, "TRIES", "")
    monkeypatch.delenv(PIPES, raising=False)
    return script.parent / "told"


def folder(tmp_path: Path) -> Path:
    return tmp_path / f"trainbook-mps-{os.getuid()}"


def test_the_first_study_starts_the_service_and_the_last_one_ends_it(told: Path, tmp_path: Path):
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "3"}
    with shared_gpu(8, given) as first:
        assert first == {PIPES: str(folder(tmp_path)), LOGS: str(folder(tmp_path))}
        assert folder(tmp_path).stat().st_mode & 0o777 == 0o700
        with shared_gpu(2, given) as second:
            assert second == first
        assert "quit" not in told.read_text(), "the first one still works through it"
    assert told.read_text().split("\n") == [f"start {folder(tmp_path)} all", "get_server_list", "quit", ""]


def test_a_service_that_a_killed_study_left_behind_is_used_again_and_ended(told: Path, tmp_path: Path):
    folder(tmp_path).mkdir(mode=0o700)
    (folder(tmp_path) / "runs").touch()
    with shared_gpu(8) as added:
        assert added
    assert told.read_text().split("\n") == ["get_server_list", "quit", ""]


def test_a_service_that_no_process_can_work_through_is_ended_and_not_used(told: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_sharing, "TRIES", "raise SystemExit(805)")
    with shared_gpu(8) as added:
        assert added == {}
    assert told.read_text().split("\n")[-2] == "quit"


def test_none_is_started_where_it_would_not_help(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with shared_gpu(1) as added:
        assert added == {}, "each worker has a GPU of its own"
    with shared_gpu(8, {**os.environ, PIPES: "elsewhere"}) as added:
        assert added == {}, "the user has chosen one"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with sharing(8) as added:
        assert added == {}, "no GPU"
    monkeypatch.setattr(gpu_sharing, "MACHINES_OWN", tmp_path)
    with shared_gpu(8) as added:
        assert added == {}, "the machine has one"
    assert not told.exists()


def test_a_folder_that_others_can_write_to_is_not_used(told: Path, tmp_path: Path):
    folder(tmp_path).mkdir()
    folder(tmp_path).chmod(0o777)
    with shared_gpu(8) as added:
        assert added == {}
    assert not told.exists()
