from __future__ import annotations

import threading

import pytest
from tests.data.workers import Together, in_workers

from trainbook.data.prepare.workers import SINGLE_WORKER, of_the_first, share_out
from trainbook.errors import DataError, MissingExtra


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_each_does_every_nth_item_and_all_know_all_results(world: int) -> None:
    done: dict[int, list[int]] = {rank: [] for rank in range(world)}

    def work(workers: Together) -> list[int]:
        def square(number: int) -> int:
            done[workers.rank].append(number)
            return number**2

        return share_out(workers, range(10), square)

    assert in_workers(world, work) == [[number**2 for number in range(10)]] * world
    assert done == {rank: list(range(rank, 10, world)) for rank in range(world)}


def test_one_alone_does_everything() -> None:
    assert share_out(SINGLE_WORKER, "abc", str.upper) == ["A", "B", "C"]
    assert of_the_first(SINGLE_WORKER, lambda: 3) == 3


def test_the_first_is_heard_while_it_makes_something_in_one_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.prepare.workers.BEAT_SECONDS", 0.001)
    heard = threading.Event()

    def work(workers: Together) -> bool:
        workers.advance = heard.set  # type: ignore[method-assign]
        return of_the_first(workers, lambda: heard.wait(60))

    assert in_workers(2, work) == [True, True]


def test_what_is_wrong_for_one_is_raised_by_all() -> None:
    def work(workers: Together) -> None:
        def fail(number: int) -> None:
            if number == 5:
                raise DataError(f"shard {number}: is wrong")

        share_out(workers, range(40), fail)

    answers = in_workers(3, work)
    assert [type(answer) for answer in answers] == [DataError] * 3
    assert {str(answer) for answer in answers} == {"shard 5: is wrong"}


def test_an_error_is_of_the_same_kind_for_all_whatever_its_constructor_takes() -> None:
    def work(workers: Together) -> None:
        def fail() -> None:
            raise MissingExtra("reading", "pyarrow", "data")

        of_the_first(workers, fail)

    answers = in_workers(2, work)
    assert [type(answer) for answer in answers] == [MissingExtra] * 2
    assert len({str(answer) for answer in answers}) == 1
