"""Several processes that prepare data together, played by threads of one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Together:
    """A workers that meets at a barrier. What each of them did is written down."""

    def __init__(self, rank: int, world: int, table: dict[str, Any], barrier: threading.Barrier) -> None:
        self.rank, self.world, self.table, self.barrier = rank, world, table, barrier
        self.beats = 0

    def advance(self) -> None:
        self.beats += 1

    def give_up(self) -> None:
        self.table["given up"] = True

    @property
    def has_given_up(self) -> bool:
        return "given up" in self.table

    def meet(self, told: Any) -> list[Any]:
        self.table[f"{self.rank}"] = told
        self.barrier.wait(60)
        found = [self.table[f"{rank}"] for rank in range(self.world)]
        self.barrier.wait(60)
        return found


def in_workers(world: int, work: Callable[[Together], Result]) -> list[Result | Exception]:
    """What each of them answers, or what it raises."""
    table: dict[str, Any] = {}
    barrier = threading.Barrier(world)
    answers: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            answers[rank] = work(Together(rank, world, table, barrier))
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
