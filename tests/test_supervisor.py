"""Small processes, as ranks and workers are supervised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainbook.supervisor import Signals, Supervisor, python_module, signal_name

# What it is told, it writes down; it ends when its input does.
LISTENS = "import os, sys; open(sys.argv[1], 'wb').write(os.read(0, 9)); os.read(0, 1)"


def start(processes: Supervisor[str], key: str, *command: str) -> None:
    processes.start(key, command, os.environ, stdin=subprocess.PIPE)


def all_ended(processes: Supervisor[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    while processes.alive:
        found |= dict(processes.ended())
        time.sleep(0.01)
    return found


def test_each_end_is_told_once_with_its_exit_code():
    processes: Supervisor[str] = Supervisor()
    start(processes, "good", "true")
    start(processes, "bad", "sh", "-c", "exit 3")
    start(processes, "killed", "sh", "-c", "kill -9 $$")
    assert all_ended(processes) == {"good": 0, "bad": 3, "killed": -signal.SIGKILL}
    assert processes.ended() == []


def test_what_is_asked_to_stop_hears_it_once(tmp_path: Path):
    processes: Supervisor[str] = Supervisor()
    start(processes, "one", sys.executable, "-c", LISTENS, str(tmp_path / "heard"))
    for _ in range(3):
        processes.ask_to_stop(signal.SIGINT)
    while not (tmp_path / "heard").exists() or not (tmp_path / "heard").read_bytes():
        time.sleep(0.01)
    assert (tmp_path / "heard").read_bytes() == bytes([signal.SIGINT])
    assert dict(processes.end()) == {"one": -signal.SIGKILL}


def test_what_does_not_leave_in_time_is_killed_with_what_it_has_started(tmp_path: Path):
    processes: Supervisor[str] = Supervisor()
    start(processes, "deaf", "sh", "-c", f"sleep 99 & echo $! > {tmp_path / 'child'}; wait")
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        time.sleep(0.01)
    assert processes.end(0.1) == [("deaf", -signal.SIGKILL)]
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}")
    while child.exists() and child.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_handed_over_and_the_handlers_of_before_come_back(number: signal.Signals):
    heard: list[int] = []
    before = signal.getsignal(number)
    with Signals(heard.append):
        os.kill(os.getpid(), number)
    assert heard == [number] and signal.getsignal(number) is before
    assert signal_name(number) == ("Ctrl-C" if number is signal.SIGINT else number.name)


def test_a_module_is_run_without_the_current_directory_if_this_process_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert python_module("m") == [sys.executable, "-P", "-m", "m"]
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert python_module("m") == [sys.executable, "-m", "m"]
