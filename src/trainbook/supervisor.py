"""Processes that a command starts, watches and ends: the ranks of a run and the workers of a study.

Each has a session of its own. So Ctrl-C on the terminal reaches it through us alone, once; and what it has started
itself can be ended with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO, Any, Generic, TypeVar

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Key = TypeVar("Key")


class Supervisor(Generic[Key]):
    def __init__(self) -> None:
        self.alive: dict[Key, subprocess.Popen[bytes]] = {}
        self._told: set[int] = set()  # to stop

    def start(
        self,
        key: Key,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.alive[key] = subprocess.Popen(
            command,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def ended(self) -> list[tuple[Key, int]]:
        """Those that have ended since, with their exit codes. A negative one is the signal that killed it."""
        found = [(key, code) for key, process in self.alive.items() if (code := process.poll()) is not None]
        for key, code in found:
            process = self.alive.pop(key)
            if code < 0:  # what it had started holds its connections open, and others may wait for it on those
                _to_group(process, signal.SIGKILL)
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        return found

    def send(self, number: int) -> None:
        """A signal to the processes themselves: what they have started ends with them."""
        for process in self.alive.values():
            process.send_signal(number)

    def write(self, key: Key, line: bytes) -> None:
        """To its input, which must be a pipe."""
        _write(self.alive[key], line)

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Each is told once, through its input, and takes it for this signal: see `Stopping` in study."""
        for process in self.alive.values():
            if process.pid not in self._told:
                self._told.add(process.pid)
                _write(process, bytes([number]))

    def pause(self) -> None:
        """Ctrl-Z, until the shell says to go on."""
        self._to_groups(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._to_groups(signal.SIGCONT)

    def kill(self, *keys: Key) -> None:
        """These, or all of them."""
        for key in keys or self.alive:
            _to_group(self.alive[key], signal.SIGKILL)

    def wait(self) -> None:
        for process in self.alive.values():
            process.wait()

    def end(self, seconds: float = 0.0) -> list[tuple[Key, int]]:
        """Wait for all of them, at most so long, and kill those that are left."""
        until = time.monotonic() + seconds
        try:
            for process in self.alive.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
        finally:
            self.kill()
            self.wait()
        return self.ended()

    def _to_groups(self, number: int) -> None:
        for process in self.alive.values():
            _to_group(process, number)


def _to_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _write(process: subprocess.Popen[bytes], what: bytes) -> None:
    with suppress(OSError):  # it is gone already
        if process.stdin is not None:
            os.write(process.stdin.fileno(), what)  # by no buffer: a signal may break in here and say something too


class Signals:
    """Handed to a function instead of breaking into what is under way. A hang-up that is ignored, as under nohup, stays
    so."""

    def __init__(self, heard: Callable[[int], object], numbers: Sequence[int] = STOPS) -> None:
        self._heard, self._numbers = heard, numbers
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for number in self._numbers:
                if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        self._heard(number)


def signal_name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def python_module(name: str) -> list[str]:
    """The command that runs a module. As for this process, no file of the current directory takes the place of an
    installed package."""
    is_here = os.getcwd() in sys.path or "" in sys.path
    return [sys.executable, *(() if is_here else ("-P",)), "-m", name]
