"""Runs side by side: no more begin than can be stopped, and none outlives who asked for it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import slow

from trainbook.errors import ConfigError, MissingExtra, OutOfMemory, Problem, TrainbookError
from trainbook.study.child_run import ChildRun
from trainbook.study.transfer import cells
from trainbook.study.transfer.cells import Asked, CellOutcome, TransferCell, in_turn

REPOSITORY = Path(__file__).parents[3]
NUMBER = 9


def asked(folder: Path) -> list[Asked]:
    cells = [TransferCell("mup", 16, 0.1, seed) for seed in range(NUMBER)]
    return [(cell, ChildRun(Path("base.yaml"), [], cell.name, folder)) for cell in cells]


def seeds_in(folder: Path) -> set[int]:
    return {int(path.name.rsplit("-", 1)[1]) for path in folder.iterdir()}


def wait_for(folder: Path, seeds: set[int]) -> None:
    while not seeds_in(folder) >= seeds:
        time.sleep(0.01)


def first_fails(child: ChildRun) -> CellOutcome:
    child.run.path.touch()
    wait_for(child.runs_dir, {0, 1})
    if child.name.endswith("-0"):
        raise ValueError("of the first run")
    time.sleep(1)  # under way when the first one fails
    return CellOutcome(1.0)


def never_ends(child: ChildRun) -> CellOutcome:
    child.run.path.write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def counts(child: ChildRun) -> CellOutcome:
    child.run.path.touch()
    return CellOutcome(float(child.name.rsplit("-", 1)[1]))


@pytest.mark.slow
def test_all_of_them_are_trained_by_several_workers(tmp_path: Path):
    found = dict(in_turn(asked(tmp_path), counts, workers=2))
    assert {cell.seed: outcome.loss for cell, outcome in found.items()} == {seed: seed for seed in range(NUMBER)}


def test_when_one_fails_no_more_begin_than_are_under_way(tmp_path: Path):
    with pytest.raises(ValueError, match="of the first run"):
        list(in_turn(asked(tmp_path), first_fails, workers=2))
    # The second may have ended first, and a third have taken its place.
    assert seeds_in(tmp_path) <= {0, 1, 2}


ERRORS: list[TrainbookError] = [
    ConfigError([Problem("run.yaml:3", "batch.max_grad_norm", "must be > 0, but got -1.", "Leave it out.")]),
    MissingExtra("8-bit AdamW", "bitsandbytes", "bitsandbytes"),
    OutOfMemory("too large", is_heard=True),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_worker_fails_with_is_told_as_it_was(error: TrainbookError):
    """Processes hand errors over by pickle."""
    told = pickle.loads(pickle.dumps(error))
    assert type(told) is type(error) and str(told) == str(error)
    assert getattr(told, "problems", None) == getattr(error, "problems", None)
    assert getattr(told, "is_heard", None) == getattr(error, "is_heard", None)


def test_a_worker_begins_nothing_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    heard = cells._Interruption()
    monkeypatch.setattr(cells, "_interruption", heard)
    heard.hear(signal.SIGINT, None)  # between two runs: remembered, and the process lives on to say so
    with pytest.raises(KeyboardInterrupt):
        cells._trained_by_worker(counts, asked(tmp_path)[0][1])
    assert not seeds_in(tmp_path) and not heard.has_run


def test_an_interruption_before_a_worker_can_hear_it_is_heard_later(monkeypatch: pytest.MonkeyPatch):
    import torch

    heard, ready, threads = cells._Interruption(), threading.Event(), torch.get_num_threads()
    monkeypatch.setattr(cells, "_interruption", heard)
    before = signal.getsignal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as it is in a process that `in_turn` has started
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert not heard.is_asked
        cells._prepare(1, ready)  # pyright: ignore[reportArgumentType]
        assert heard.is_asked and ready.is_set()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.sigtimedwait({signal.SIGINT}, 0)  # one that nobody has heard ends here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("after", [slow(0.2), 0.8])
def test_an_interruption_of_the_first_seconds_is_quiet_and_leaves_no_process(tmp_path: Path, after: float):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.study.transfer.test_cells import asked, never_ends\n"
        "from trainbook.study.transfer.cells import in_turn\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        f"        list(in_turn(asked(Path({str(tmp_path)!r})), never_ends, workers=2))\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    while process.poll() is None and len(workers_of(process.pid)) < 2:
        time.sleep(0.01)
    time.sleep(after)  # Python has begun in them, and torch is not there yet
    pids = workers_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does with Ctrl-C
    told, _ = process.communicate()
    assert (process.returncode, told.decode()) == (130, "")
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def workers_of(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_workers_end_with_who_started_them(tmp_path: Path):
    script = (
        "from pathlib import Path\n"
        "from tests.study.transfer.test_cells import asked, never_ends\n"
        "from trainbook.study.transfer.cells import in_turn\n"
        f"if __name__ == '__main__':\n    list(in_turn(asked(Path({str(tmp_path)!r})), never_ends, workers=2))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    pids: list[str] = []
    while process.poll() is None and not (len(pids) == 2 and all(pids)):
        time.sleep(0.01)
        pids = [path.read_text() for path in tmp_path.iterdir()]
    process.kill()
    process.wait()
    tries = 0
    while tries < 3000 and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.01)
        tries += 1
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert len(pids) == 2 and not left
