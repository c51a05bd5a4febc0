"""What passes between the command and the end of its first step, by part: `trainbook train --timing`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from trainbook.bounded.files import read_text

HARDLY = 0.005  # seconds: a part below it is not worth a word


class StartUp:
    def __init__(self, began: float) -> None:
        self._began = self._last = began
        self._seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        now = time.time()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._last
        self._last = now

    def told(self) -> str:
        last = list(self._seconds)[-1]  # what it all leads to, however short
        parts = [f"{part} {took:.2f} s" for part, took in self._seconds.items() if took >= HARDLY or part == last]
        return f"{self._last - self._began:.2f} s from the command to the end of the first step: {', '.join(parts)}"


_measured: ContextVar[StartUp | None] = ContextVar("start_up", default=None)


@contextmanager
def measured_start_up(is_wanted: bool = True) -> Iterator[None]:
    """From when this process began."""
    token = _measured.set(StartUp(_process_began()) if is_wanted else None)
    try:
        yield
    finally:
        _measured.reset(token)


def end_of(part: str) -> None:
    """The time since the part before was spent on this one. Nothing is done unless somebody measures."""
    if (start_up := _measured.get()) is not None:
        start_up.end(part)


def end_of_start_up(part: str) -> str | None:
    """Ends the last part, and tells all of them, once."""
    start_up = _measured.get()
    if start_up is None:
        return None
    start_up.end(part)
    _measured.set(None)
    return start_up.told()


def _process_began() -> float:
    """By the clock of the wall; now, where the system does not say it."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError):
            ticks = int(read_text("/proc/self/stat").rpartition(")")[2].split()[19])  # since the system started
            return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return time.time()
