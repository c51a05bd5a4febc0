from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainbook.errors import RunFolderError, UserError
from trainbook.runs import Manifest, RunFolder

HOLD = "import sys; from trainbook.runs import RunFolder\nwith RunFolder(sys.argv[1]).lock(): {}"
WAIT = "print('held', flush=True); sys.stdin.read()"
# A data worker: forked while the lock is held, and still there when its parent has been killed.
FORK_AND_WAIT = "import os; (os.fork() == 0 and sys.stdin.read()) or (print('held', flush=True), sys.stdin.read())"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "a")
    folder.write_manifest(Manifest("a"))
    return folder


@contextmanager
def other_process(run: RunFolder, body: str = WAIT) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(body), str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def test_a_second_process_is_refused_and_told_who_holds_the_folder(run: RunFolder):
    with (
        other_process(run) as other,
        pytest.raises(RunFolderError, match=f"in use by process {other.pid} on {socket.gethostname()}"),
        run.lock(),
    ):
        pass


def test_the_lock_is_free_after_the_holder_ends(run: RunFolder):
    with other_process(run):
        pass
    with run.lock() as held:
        assert held


def test_kill_9_frees_the_lock(run: RunFolder):
    with other_process(run) as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait(10)
        assert run.is_abandoned()
        with run.lock():
            assert not run.is_abandoned()


def test_a_forked_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(run: RunFolder):
    with other_process(run, FORK_AND_WAIT) as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait(10)
        with run.lock():  # the worker still waits for its input
            pass


def test_a_run_that_is_being_written_is_not_abandoned(run: RunFolder):
    with other_process(run):
        assert not run.is_abandoned()


def test_the_lock_can_be_taken_again_by_the_same_process_after_it_was_left(run: RunFolder):
    for _ in range(2):
        with run.lock(), pytest.raises(RunFolderError, match=f"process {os.getpid()}"), run.lock():
            pass


def test_a_run_whose_writer_left_without_saying_how_it_ended_is_abandoned(run: RunFolder):
    with run.lock():
        assert not run.is_abandoned()
    assert run.is_abandoned()
    manifest = run.read_manifest()
    manifest.end_segment("finished")
    run.write_manifest(manifest)
    assert not run.is_abandoned()


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path):
    with pytest.raises(RunFolderError, match="cannot be opened: No such file"), RunFolder(tmp_path / "none").lock():
        pass


@pytest.mark.parametrize("former", ["", '{"pid": 4711, "host": "elsewhere"}'])
def test_a_holder_that_is_refused_leaves_the_lock_as_it_was(run: RunFolder, former: str):
    run.lock_file.write_text(former)
    with pytest.raises(UserError), run.lock():
        assert str(os.getpid()) in run.lock_file.read_text()
        raise UserError("this is not how the run was started")
    assert run.lock_file.read_text() == former
    with run.lock():
        pass
    assert run.lock_file.read_text() == ""
