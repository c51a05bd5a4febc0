"""kill -9 of one of several processes costs nothing but time, and one message."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [
    pytest.mark.slow,  # a run must be hit while it goes on: on a busy machine it may have ended by then
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]

MARK = "TRAINBOOK_TEST_MARK"  # in the environment of all that a test starts, and of what those start
SECONDS = 30.0  # from the kill to the end of the command
AGAIN = "Restarting all ranks (1 of 1 restarts)."


class Killed(NamedTuple):
    code: int
    err: str
    seconds: float


class TwoRanks:
    """The command line with --nproc 2."""

    def __init__(self, shell, started: list[subprocess.Popen[str]]) -> None:
        self.shell, self.started = shell, started

    def start(self, name: str, verb: str, *options: str) -> subprocess.Popen[str]:
        what = (name,) if verb == "resume" else (*self.shell.small, "--name", name)
        environment = {MARK: name, "TMPDIR": str(self.shell.root)}  # logs of ranks that fail are kept there
        process = self.shell.start(verb, *what, *options, "--nproc", "2", "--quiet", environment=environment)
        self.started.append(process)
        return process

    def run(self, name: str, verb: str, *options: str) -> None:
        out, err = self.start(name, verb, *options).communicate(timeout=120)
        assert self.started[-1].returncode == 0, err
        assert (out, err) == ("", "")

    def kill(self, name: str, verb: str, rank: int, step: int, *options: str, delay: float = 0.0) -> Killed | None:
        """Kill this rank once the row of this step is written. None: the run ended before it was hit."""
        process = self.start(name, verb, *options)
        if not self.shell.wait_for_row(name, step, process):
            assert process.wait() == 0, process.stderr and process.stderr.read()
            return None
        victim = rank_of(process.pid, rank)
        time.sleep(delay)
        killed_at = time.monotonic()
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
        _, err = process.communicate(timeout=120)
        return Killed(process.returncode, err, time.monotonic() - killed_at)


@pytest.fixture
def two(shell, started: list[subprocess.Popen[str]]) -> TwoRanks:
    return TwoRanks(shell, started)


@pytest.fixture(scope="module")
def whole(shell) -> Callable[[str], str]:
    """The name of a run of two ranks that nothing interrupted, by its strategy."""

    @functools.cache
    def train(strategy: str) -> str:
        name = f"whole-{strategy}"
        ended = shell.train(name, f"distributed.strategy={strategy}", "--nproc", "2", "--quiet")
        assert (ended.returncode, ended.stderr) == (0, "")
        return name

    return train


def facts(pid: int) -> tuple[int, dict[str, str]]:
    """The parent of a process, and its environment; of one that is gone or is not ours, nothing."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return 0, {}
    return parent, dict(entry.split("=", 1) for entry in entries if "=" in entry)


def processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def rank_of(launcher: int, rank: int) -> int:
    of_it = {pid: facts(pid) for pid in processes()}
    (found,) = [pid for pid, (parent, env) in of_it.items() if parent == launcher and env.get("RANK") == str(rank)]
    return found


def must_have_left_nothing(name: str) -> None:
    deadline = time.monotonic() + 5
    while left := [pid for pid in processes() if facts(pid)[1].get(MARK) == name]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def must_have_said_so(killed: Killed, rank: int) -> None:
    assert killed.code == 1, killed.err
    assert killed.seconds < SECONDS
    lines = killed.err.splitlines()
    assert lines[0] == (
        f"error: rank {rank} of 2 was killed (SIGKILL, perhaps because the machine ran out of memory). "
        "The other ranks were stopped."
    )
    assert killed.err.count("error:") == 1
    # Then where its log is. That may have lines of data workers that lost it; nothing else is said, by nobody.
    assert all(line.startswith("  ") for line in lines[2:]), killed.err


def test_a_run_goes_on_bit_for_bit_after_either_rank_was_killed(two: TwoRanks, whole: Callable[[str], str]):
    first = two.kill("killed", "train", 1, 17, "data.num_workers=1")
    assert first is not None
    must_have_said_so(first, 1)
    must_have_left_nothing("killed")
    assert two.shell.folder("killed").read_manifest().status == "failed"
    second = two.kill("killed", "resume", 0, 36, "data.num_workers=0")
    assert second is not None
    must_have_said_so(second, 0)
    must_have_left_nothing("killed")
    two.run("killed", "resume")
    two.shell.must_be_equal(whole("ddp"), "killed")
    resumed = [event["step"] for event in two.shell.folder("killed").events() if event["kind"] == "resume"]
    assert len(resumed) == 2 and 0 < resumed[0] < resumed[1]


def test_with_restarts_a_run_survives_a_killed_rank_by_itself(two: TwoRanks, whole: Callable[[str], str]):
    killed = two.kill("restarted", "train", 1, 30, "--max-restarts", "1")
    assert killed is not None and killed.code == 0, killed
    lines = killed.err.splitlines()
    assert lines[0].startswith("rank 1 of 2 was killed (SIGKILL") and lines[-1] == AGAIN
    assert "error:" not in killed.err and "Traceback" not in killed.err
    must_have_left_nothing("restarted")
    two.shell.must_be_equal(whole("ddp"), "restarted")
    (resumed,) = [event for event in two.shell.folder("restarted").events() if event["kind"] == "resume"]
    assert resumed["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_any_rank_may_be_killed_anywhere(two: TwoRanks, whole: Callable[[str], str], seed: int):
    draw = random.Random(seed)
    rank, strategy, name = draw.randrange(2), "fsdp" if seed % 2 else "ddp", ""
    for attempt in range(5):  # a slow machine may let the run end before it is hit
        name = f"anywhere-{seed}-{attempt}"
        step, delay = draw.randrange(0, 56), draw.uniform(0, 0.05)
        killed = two.kill(name, "train", rank, step, f"distributed.strategy={strategy}", delay=delay)
        if killed is not None and killed.code != 0:
            must_have_said_so(killed, rank)
            break
    else:
        pytest.fail("the kill must come before the end")
    must_have_left_nothing(name)
    two.run(name, "resume")
    two.shell.must_be_equal(whole(strategy), name)
