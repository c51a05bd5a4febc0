"""How far the preparation of data is: a bar where somebody looks, and now and then a line in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LINES = 10  # that a log gets of each stage
ENOUGH = 20  # parts that are worth a line


class Stage:
    """What is being worked on, in parts."""

    def __init__(self, name: str, num_parts: int) -> None:
        self.name, self.num_parts, self.done = name, num_parts, 0

    def part_done(self) -> None:
        self.done += 1


class _Lines(Stage):
    def part_done(self) -> None:
        super().part_done()
        told = self.done * LINES // self.num_parts
        if self.num_parts >= ENOUGH and told > (self.done - 1) * LINES // self.num_parts:
            print(f"{self.name}: {self.done:,} of {self.num_parts:,} parts", file=sys.stderr, flush=True)


@contextmanager
def stage(name: str, num_parts: int, is_shown: bool) -> Iterator[Stage]:
    if not is_shown:
        yield Stage(name, num_parts)
    elif not sys.stderr.isatty():
        yield _Lines(name, num_parts)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(name, total=num_parts)

            class Bar(Stage):
                def part_done(self) -> None:
                    bar.advance(task)

            yield Bar(name, num_parts)
