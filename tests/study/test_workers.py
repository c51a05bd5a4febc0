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
from tests import forked
from tests.conftest import slow

from trainbook.errors import ConfigError, MissingExtra, OutOfMemory, Problem, RunError, TrainbookError
from trainbook.study.child_run import ChildRun
from trainbook.study.transfer.rates import CellOutcome
from trainbook.study.workers import Stopping, automatic_workers, least_gpu_gigabytes, side_by_side

REPOSITORY = Path(__file__).parents[2]
NUMBER = 9


def children(folder: Path) -> list[ChildRun]:
    return [ChildRun(Path("base.yaml"), [], f"seed-{seed}", folder) for seed in range(NUMBER)]


def seeds_in(folder: Path) -> set[int]:
    return {int(path.name.rsplit("-", 1)[1]) for path in folder.glob("seed-*")}


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


def first_dies(child: ChildRun) -> CellOutcome:
    child.run.path.touch()
    wait_for(child.runs_dir, {0, 1})
    if child.name.endswith("-0"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    (child.runs_dir / "ended").touch()
    return CellOutcome(1.0)


def all_but_the_first_never_end(child: ChildRun) -> CellOutcome:
    return counts(child) if child.name.endswith("-0") else never_ends(child)


def counts(child: ChildRun) -> CellOutcome:
    child.run.path.touch()
    return CellOutcome(float(child.name.rsplit("-", 1)[1]))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_all_of_them_are_trained_by_several_workers(tmp_path: Path):
    found = dict(side_by_side(counts, children(tmp_path), workers=2))
    assert {seed: outcome.loss for seed, outcome in found.items()} == {seed: seed for seed in range(NUMBER)}


@pytest.mark.usefixtures("forked_workers")
def test_when_one_fails_no_more_begin_than_are_under_way(tmp_path: Path):
    with pytest.raises(ValueError, match="of the first run") as failed:
        list(side_by_side(first_fails, children(tmp_path), workers=2))
    assert "in first_fails" in failed.value.__notes__[0], "where it failed in the other process"
    # The second may have ended first, and a third have taken its place.
    assert seeds_in(tmp_path) <= {0, 1, 2}


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_dies_is_an_error_and_the_others_come_to_their_end(tmp_path: Path):
    with pytest.raises(RunError, match="a worker died"):
        list(side_by_side(first_dies, children(tmp_path)[:2], workers=2))
    assert (tmp_path / "ended").is_file()


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


@pytest.mark.usefixtures("forked_workers")
def test_whoever_asks_for_no_more_has_what_is_under_way_stopped(tmp_path: Path):
    answers = side_by_side(all_but_the_first_never_end, children(tmp_path), workers=2)
    assert next(answers)[0] == 0
    wait_for(tmp_path, {1})
    answers.close()
    assert seeds_in(tmp_path) <= {0, 1, 2}, "nothing begins afterwards"


def test_nothing_begins_in_a_worker_that_was_asked_to_stop_meanwhile():
    begun: list[int] = []
    stopping, (reads, writes) = Stopping(), os.pipe()
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # between two trainings it breaks into nothing
    try:
        stopping.follow(reads)
        os.write(writes, bytes([signal.SIGINT]))
        for thread in threading.enumerate():
            if thread.name == "parent watch":
                thread.join()
        with pytest.raises(KeyboardInterrupt):
            stopping.breaking_into(begun.append)(1)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(writes)
    assert begun == []


@pytest.mark.parametrize("after", [slow(0.2), 0.8])
def test_an_interruption_of_the_first_seconds_is_quiet_and_leaves_no_process(tmp_path: Path, after: float):
    script = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from tests.study.test_workers import children, never_ends\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background\n"
        "from trainbook.study.workers import side_by_side\n"
        "try:\n"
        f"    list(side_by_side(never_ends, children(Path({str(tmp_path)!r})), workers=2))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
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
    return [child for child in children if b"trainbook.study.workers" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_workers_end_with_who_started_them(tmp_path: Path):
    script = (
        "from pathlib import Path\n"
        "from tests.study.test_workers import children, never_ends\n"
        "from trainbook.study.workers import side_by_side\n"
        f"list(side_by_side(never_ends, children(Path({str(tmp_path)!r})), workers=2))\n"
    )
    process = forked.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
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


@pytest.mark.parametrize(
    ("cores", "gpus", "gigabytes", "workers"),
    [(16, 1, 140, 16), (64, 1, 140, 16), (64, 2, 140, 32), (4, 1, 140, 4), (16, 1, 8, 2), (16, 1, 2, 1), (2, 4, 80, 4)],
)
def test_automatic_workers_are_as_many_as_cores_and_memory_allow(
    cores: int, gpus: int, gigabytes: float, workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr("trainbook.study.workers.least_gpu_gigabytes", lambda: gigabytes)
    given = {"CUDA_VISIBLE_DEVICES": ",".join(str(each) for each in range(gpus))}
    assert automatic_workers(given) == workers
    assert automatic_workers({"CUDA_VISIBLE_DEVICES": ""}) == cores


def test_the_memory_of_gpus_is_asked_for_or_taken_to_be_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script.write_text("#!/bin/sh\necho 143771\necho 24576\n")
    script.chmod(0o755)
    assert least_gpu_gigabytes() == 24
    for broken in ("#!/bin/sh\nexit 9\n", "#!/bin/sh\necho no devices\n", "#!/bin/sh\n"):
        script.write_text(broken)
        assert least_gpu_gigabytes() == 8
