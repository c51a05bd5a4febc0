"""Processes that prepare data together: each does its share, and all know of everything afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from trainbook.errors import TrainbookError
from trainbook.terminal import echo, new_console

Item = TypeVar("Item")
Result = TypeVar("Result")

BEAT_SECONDS = 1.0


class DataWorkers(Protocol):
    """Those that write into one cache. Whatever they tell each other can be pickled."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def advance(self) -> None:
        """Say that something was done: the others wait as long as this is heard from anybody."""
        ...

    def give_up(self) -> None:
        """Say that there is no use in going on: the others come to the next meeting soon."""
        ...

    @property
    def has_given_up(self) -> bool: ...

    def meet(self, told: Any) -> list[Any]:
        """What each of them has to tell, in order of rank, once all have come."""
        ...


class SingleWorker:
    rank, world = 0, 1
    has_given_up = False

    def advance(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    def meet(self, told: Any) -> list[Any]:
        return [told]


SINGLE_WORKER = SingleWorker()


def share_out(workers: DataWorkers, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """The result of each item, of which process r does numbers r, r + world, … The results go to all of them.

    What is wrong with one item is known to all as well, and each of them raises it: that of the first such item.
    """
    done: dict[int, Result] = {}
    own: TrainbookError | None = None
    wrong: tuple[int, type[TrainbookError], str] | None = None
    for number in range(workers.rank, len(items), workers.world):
        if workers.has_given_up:
            break
        try:
            done[number] = work(items[number])
        except TrainbookError as error:
            own, wrong = error, (number, type(error), str(error))
            workers.give_up()
            break
        workers.advance()
    told: list[tuple[dict[int, Result], tuple[int, type[TrainbookError], str] | None]] = workers.meet((done, wrong))
    mistakes = [(its_wrong[0], rank) for rank, (_, its_wrong) in enumerate(told) if its_wrong is not None]
    if mistakes:
        _, rank = min(mistakes)
        raise own if own is not None and rank == workers.rank else _as_told(told[rank][1])
    everything = {number: result for its_done, _ in told for number, result in its_done.items()}
    return [everything[number] for number in range(len(items))]


def _as_told(wrong: tuple[int, type[TrainbookError], str] | None) -> TrainbookError:
    assert wrong is not None
    _, kind, message = wrong
    return kind.__new__(kind, message)  # not by calling the class: its constructor may take other things


def of_the_first(workers: DataWorkers, make: Callable[[], Result]) -> Result:
    """What the first of them makes, or what is wrong with it, told to all."""

    def make_and_be_heard() -> Result:
        with _heard(workers):
            return make()

    return share_out(workers, [None], lambda _: make_and_be_heard())[0]


@contextmanager
def _heard(workers: DataWorkers) -> Iterator[None]:
    """What takes long in one call, such as dividing a hundred million documents, says nothing itself."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            workers.advance()

    thread = threading.Thread(target=beat, daemon=True)
    if workers.world > 1:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if workers.world > 1:
            thread.join()


# How far the preparation of data is, in bytes: a bar on a terminal, and now and then a line in a log.


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
