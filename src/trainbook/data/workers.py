"""Processes that prepare data together: each does its share, and all know of everything afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from trainbook.errors import TrainbookError

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
