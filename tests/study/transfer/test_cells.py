"""Runs side by side: no more begin than can be stopped, and none outlives who asked for it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainbook.errors import ConfigError, MissingExtra, OutOfMemory, Problem, TrainbookError
from trainbook.study.transfer import cells
from trainbook.study.transfer.cells import Asked, Cell, Outcome, in_turn

REPOSITORY = Path(__file__).parents[3]
NUMBER = 9


def asked(folder: Path) -> list[Asked]:
    return [Asked(Cell("mup", 16, 0.1, seed), Path("base.yaml"), [], folder) for seed in range(NUMBER)]


def seeds_in(folder: Path) -> set[int]:
    return {int(path.name.rsplit("-", 1)[1]) for path in folder.iterdir()}


def wait_for(folder: Path, seeds: set[int]) -> None:
    while not seeds_in(folder) >= seeds:
        time.sleep(0.01)


def first_fails(base: Path, overrides: Sequence[str], name: str, runs_dir: Path) -> Outcome:
    (runs_dir / name).touch()
    wait_for(runs_dir, {0, 1})
    if name.endswith("-0"):
        raise ValueError("of the first run")
    time.sleep(1)  # under way when the first one fails
    return Outcome(1.0)


def never_ends(base: Path, overrides: Sequence[str], name: str, runs_dir: Path) -> Outcome:
    (runs_dir / name).write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def counts(base: Path, overrides: Sequence[str], name: str, runs_dir: Path) -> Outcome:
    (runs_dir / name).touch()
    return Outcome(float(name.rsplit("-", 1)[1]))


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
        cells._trained_by_worker(counts, asked(tmp_path)[0])
    assert not seeds_in(tmp_path) and not heard.has_run


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
