"""Real processes, but tiny ones: a script of a few lines stands for training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import trainbook
from trainbook.errors import RunError
from trainbook.parallel import launcher

SOURCE = str(Path(trainbook.__file__).parents[1])
LAUNCH = "import sys; from trainbook.parallel.launcher import run_processes; "
LAUNCH += "sys.exit(run_processes([sys.executable, 'worker.py', *sys.argv[1:]], 2))"

# As the command line's own beginning; then whatever a test wants of each rank.
BEGIN = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def write(name, text):  # whole or not at all: others wait for the file
    path = f"{name}-{rank}"
    so_far = open(path).read() if os.path.exists(path) else ""
    with open(path + ".part", "w") as stream:
        stream.write(so_far + text + "\\n")
    os.replace(path + ".part", path)
def alive(process):
    try:
        return open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
"""
# As a run does it: the first signal saves, which takes a while for the first rank only; the second ends at once.
SAVES_WHEN_ASKED = """
got = []
def on_signal(number, frame):
    got.append(number)
    if len(got) > 1:
        write("ended", "at once")
        os._exit(130)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, on_signal)
write("ready", "")
while not got:
    time.sleep(0.01)
time.sleep({saving} if rank == 0 else 0)
write("ended", f"saved after {{signal.Signals(got[0]).name}}")
sys.exit(143 if got[0] == signal.SIGTERM else 130)
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """A folder with a worker.py. The launcher is this process, but for one that has the terminal's group to itself."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.capfd, self.monkeypatch = root, capfd, monkeypatch

    def write(self, worker: str) -> None:
        (self.root / "worker.py").write_text(BEGIN + worker)

    def run(
        self,
        worker: str,
        *arguments: str,
        nproc: int = 2,
        restarts: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Ended:
        self.write(worker)
        thread = threading.Thread(target=meanwhile) if meanwhile else None
        if thread is not None:
            thread.start()
        code = launcher.run_processes([sys.executable, "worker.py", *arguments], nproc, max_restarts=restarts)
        if thread is not None:
            thread.join()
        out, err = self.capfd.readouterr()
        return Ended(code, str(out), str(err))

    def wait_for(self, *names: str) -> None:
        deadline = time.monotonic() + 30
        while not all((self.root / name).exists() for name in names):
            assert time.monotonic() < deadline, names
            time.sleep(0.01)

    def read(self, name: str) -> str:
        return (self.root / name).read_text().strip()

    @property
    def left_over(self) -> list[str]:
        return os.listdir(self.root / "tmp")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Place(tmp_path, capfd, monkeypatch)


def must_be_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_each_rank_has_its_place_and_its_arguments_as_they_were_given(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    worker = "import json; write('seen', json.dumps([dict(os.environ), sys.argv[1:]]))"
    ended = place.run(worker, "a b", "$$c", "${local_rank}", "--fp16", nproc=3)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    seen = [json.loads(place.read(f"seen-{rank}")) for rank in range(3)]
    assert [environment["LOCAL_RANK"] for environment, _ in seen] == ["0", "1", "2"]
    threads = str(max(1, len(os.sched_getaffinity(0)) // 3))
    for environment, arguments in seen:
        assert (environment["WORLD_SIZE"], environment["MASTER_ADDR"]) == ("3", "127.0.0.1")
        assert environment["MASTER_PORT"] == seen[0][0]["MASTER_PORT"]
        assert environment["OMP_NUM_THREADS"] == threads
        assert arguments == ["a b", "$$c", "${local_rank}", "--fp16"]
    assert place.left_over == []


def test_threads_are_left_as_the_user_set_them(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    place.run("write('threads', os.environ['OMP_NUM_THREADS'])")
    assert place.read("threads-0") == place.read("threads-1") == "7"


def test_the_terminal_is_the_first_ranks_and_the_others_have_logs(place: Place):
    ended = place.run("print('out', rank); print('err', rank, file=sys.stderr)\nif rank: sys.exit(3)")
    assert (ended.code, ended.out) == (1, "out 0\n")
    log = next((place.root / "tmp").glob("trainbook-ranks-*/rank-1.log"))
    assert ended.err.splitlines() == [
        "err 0",
        "error: rank 1 of 2 ended with exit code 3. The other ranks were stopped.",
        f"{log} ends with:",
        "  err 1",
    ]
    assert log.with_suffix(".out").read_text() == "out 1\n"


def test_two_launches_at_once_do_not_meet(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    worker = """
import socket
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
socket.create_connection(meeting).close()
write(sys.argv[1], str(meeting[1]))
while not os.path.exists(f"{sys.argv[2]}-{rank}"):
    time.sleep(0.01)
"""
    place.write(worker)
    other = subprocess.Popen([sys.executable, "-c", LAUNCH, "other", "this"])
    assert place.run(worker, "this", "other").code == other.wait(timeout=60) == 0
    assert place.read("this-0") == place.read("this-1") != place.read("other-0") == place.read("other-1")


def test_a_killed_rank_is_one_message_and_the_others_are_ended(place: Place, monkeypatch: pytest.MonkeyPatch):
    assert launcher.GRACE_SECONDS <= 15
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.5)

    def kill_one() -> None:
        place.wait_for("ready-0", "ready-1", "ready-2")
        os.kill(int(place.read("ready-1")), signal.SIGKILL)

    worker = "print('so far', rank, file=sys.stderr, flush=True)\n"  # then deaf, as in an exchange that never ends
    worker += "signal.signal(signal.SIGTERM, signal.SIG_IGN); write('ready', str(os.getpid()))\ntime.sleep(99)"
    ended = place.run(worker, nproc=3, meanwhile=kill_one)
    assert ended.code == 1
    lines = ended.err.splitlines()
    assert lines[:2] == [
        "so far 0",
        "error: rank 1 of 3 was killed (SIGKILL, perhaps because the machine ran out of memory). "
        "The other ranks were stopped.",
    ]
    assert re.fullmatch(r"\S+/rank-1\.log ends with:", lines[2]) and lines[3:] == ["  so far 1"]
    for rank in (0, 2):
        must_be_gone(int(place.read(f"ready-{rank}")))


def test_what_a_killed_rank_had_started_is_ended_at_once(place: Place):
    """Not after the grace of the others: they may wait for the very connections that it holds open."""
    worker = """
import subprocess
if rank == 1:
    child = subprocess.Popen(["sleep", "99"])
    write("child", str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists("child-1"):
    time.sleep(0.01)
child = int(open("child-1").read())
while alive(child):
    time.sleep(0.01)
write("ended", "by itself")
"""
    ended = place.run(worker)
    assert ended.code == 1 and ended.err.startswith("error: rank 1 of 2 was killed (SIGKILL")
    assert place.read("ended-0") == "by itself"


def test_a_mistake_that_the_first_rank_tells_is_told_once_however_soon_the_others_leave(place: Place):
    ended = place.run("time.sleep(0.5 * (rank == 0)); print('error: the law', file=sys.stderr); sys.exit(2)")
    assert (ended.code, ended.err, place.left_over) == (2, "error: the law\n", [])


def test_a_mistake_that_only_another_rank_has_met_is_told(place: Place):
    ended = place.run("if rank: print('error: no such GPU', file=sys.stderr); sys.exit(2)")
    assert ended.code == 2
    assert ended.err.startswith("error: rank 1 of 2 ended with exit code 2.")
    assert ended.err.endswith("  error: no such GPU\n")


def test_ctrl_c_on_the_terminal_reaches_each_rank_once_and_saving_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    place.write(SAVES_WHEN_ASKED.format(saving=1.0))  # longer than the others need to leave
    process = subprocess.Popen([sys.executable, "-c", LAUNCH], start_new_session=True)
    place.wait_for("ready-0", "ready-1")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert place.read("ended-0") == place.read("ended-1") == "saved after SIGINT"
    assert place.capfd.readouterr() == ("", "")


def test_a_signal_to_the_launcher_alone_reaches_each_rank_once(place: Place):
    def terminate() -> None:
        place.wait_for("ready-0", "ready-1")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    ended = place.run(SAVES_WHEN_ASKED.format(saving=0.5), meanwhile=terminate)
    assert (ended.code, ended.out, ended.err, place.left_over) == (143, "", "", [])
    assert place.read("ended-0") == place.read("ended-1") == "saved after SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_them_at_once(place: Place):
    def interrupt_twice() -> None:
        place.wait_for("ready-0")
        os.kill(os.getpid(), signal.SIGINT)
        place.wait_for("asked-0")
        os.kill(os.getpid(), signal.SIGINT)

    worker = SAVES_WHEN_ASKED.format(saving=60).replace("time.sleep(60", "write('asked', ''); time.sleep(60")
    assert place.run(worker, nproc=1, meanwhile=interrupt_twice).code == 130
    assert place.read("ended-0") == "at once"


def test_ranks_that_no_longer_answer_are_killed_after_the_second_signal(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launcher, "AT_ONCE_SECONDS", 0.5)

    def terminate_twice() -> None:
        place.wait_for("ready-0", "ready-1")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)  # two at once would be one: the system does not count them

    worker = "signal.signal(signal.SIGTERM, signal.SIG_IGN); write('ready', str(os.getpid())); time.sleep(99)"
    ended = place.run(worker, meanwhile=terminate_twice)
    assert (ended.code, ended.err) == (143, "")
    must_be_gone(int(place.read("ready-0")))


def test_after_a_crash_all_are_started_again(place: Place):
    worker = """
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
write("starts", restart)
write("ports", os.environ["MASTER_PORT"])
if restart == "0" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print("finished", restart)
"""
    ended = place.run(worker, restarts=2)
    assert (ended.code, ended.out) == (0, "finished 0\nfinished 1\n")
    assert place.read("starts-0") == place.read("starts-1") == "0\n1"
    # What ranks that are gone have left at their meeting point would lead the new ones astray.
    assert len(set(place.read("ports-0").splitlines())) == 2 and place.read("ports-0") == place.read("ports-1")
    assert ended.err.startswith("rank 1 of 2 was killed (SIGKILL")
    assert ended.err.endswith("Restarting all ranks (1 of 2 restarts).\n")


def test_what_fails_each_time_is_given_up(place: Place):
    ended = place.run("write('starts', ''); sys.exit(1)", nproc=1, restarts=1)
    assert ended.code == 1 and (place.root / "starts-0").read_text() == "\n\n"
    lines = [line for line in ended.err.splitlines() if not line.startswith("Its output is above")]
    assert lines == [
        "rank 0 of 1 ended with exit code 1. The other ranks were stopped.",
        "Restarting all ranks (1 of 1 restarts).",
        "error: rank 0 of 1 ended with exit code 1. The other ranks were stopped.",
    ]


@pytest.mark.parametrize("code", [2, 130, 143])
def test_mistakes_and_interruptions_are_not_tried_again(place: Place, code: int):
    ended = place.run(f"write('starts', 'one'); sys.exit({code})", restarts=3)
    assert (ended.code, ended.err, place.read("starts-0")) == (code, "", "one")


def test_what_cannot_be_started_is_an_error(place: Place):
    with pytest.raises(RunError, match=r"the 2 processes could not be started: .*nowhere"):
        launcher.run_processes(["nowhere"], 2)
    assert place.left_over == []


def test_a_start_that_ranks_ask_for_is_not_counted_and_tells_them_that_it_is_one(place: Place):
    """The second one asks, and the first one waits for it; it is told once, and no log is left."""
    worker = """
from pathlib import Path
write("starts", os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        Path(os.environ["TRAINBOOK_NOTE"]).with_suffix(".again").write_text("Less, please.")
        sys.exit(1)
    time.sleep(60)
"""
    place.monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.2)
    ended = place.run(worker)
    assert (ended.code, ended.err) == (0, "Less, please.\n")
    assert [place.read(f"starts-{rank}").split() for rank in range(2)] == [["0", "1"]] * 2
    assert place.left_over == []
