"""How far the preparation of data is, in bytes: a bar on a terminal, and now and then a line in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainbook.terminal import echo, new_console

LINES = 10  # that a log gets of each stage
ENOUGH_BYTES = 1 << 24  # that are worth a line, or this many parts
ENOUGH_PARTS = 20
NOTE_SECONDS = 10.0  # between the lines of a log on what has no measure


class Stage:
    """What is being worked on, in parts whose sizes are known beforehand."""

    def __init__(self, name: str, num_bytes: int, num_parts: int = 1) -> None:
        self.name, self.num_bytes, self.num_parts = name, num_bytes, num_parts
        self.before, self.within = 0, 0  # bytes of parts that are done, and of the one that is worked on

    @property
    def done(self) -> int:
        return min(self.before + self.within, self.num_bytes)

    def advance(self, num_bytes: int) -> None:
        self.within += num_bytes
        self._show()

    def part_done(self, num_bytes: int) -> None:
        """Whatever was read of it: a compressed file is smaller than its content, and a part may be known already."""
        self.before, self.within = self.before + num_bytes, 0
        self._show()

    def note(self, text: str) -> None:
        """What is worked on now, if nobody can say how far it is."""

    def _show(self) -> None:
        pass


class _StageLines(Stage):
    told = 0
    noted: float | None = None

    def _show(self) -> None:
        share = self.done * LINES // self.num_bytes if self.num_bytes else 0
        if share > self.told and (self.num_bytes >= ENOUGH_BYTES or self.num_parts >= ENOUGH_PARTS):
            self.told = share
            echo(f"{self.name}: {shown(self.done)} of {shown(self.num_bytes)}", err=True)

    def note(self, text: str) -> None:
        now = time.monotonic()
        if self.noted is None or now - self.noted >= NOTE_SECONDS:
            self.noted = now
            echo(f"{self.name}: {text}", err=True)


class _Bar(Stage):
    def __init__(self, bar: Any, *facts: Any) -> None:
        super().__init__(*facts)
        self.bar, self.task = bar, bar.add_task(self.name, total=self.num_bytes or None)

    def _show(self) -> None:
        self.bar.update(self.task, completed=self.done)

    def note(self, text: str) -> None:
        self.bar.update(self.task, description=f"{self.name}: {text}")


def shown(num_bytes: int) -> str:
    """A size in words, in units of a thousand."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


@contextmanager
def stage(name: str, num_bytes: int, is_shown: bool = True, num_parts: int = 1) -> Iterator[Stage]:
    facts = (name, num_bytes, num_parts)
    if not is_shown:
        yield Stage(*facts)
    elif not sys.stderr.isatty():
        yield _StageLines(*facts)
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=new_console(stderr=True), transient=True) as bar:
            yield _Bar(bar, *facts)
