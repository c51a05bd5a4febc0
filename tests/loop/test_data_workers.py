from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trainbook.data.prepare.workers import share_out
from trainbook.errors import DataError, RunError
from trainbook.loop import data_workers as workers_module
from trainbook.loop.data_workers import StoreWorkers, _that_share


def together(world: int, work: Any, timeout: float = 30.0) -> list[Any]:
    """What the work of each of so many processes answers, played by threads over one store."""
    store = dist.HashStore()
    answers: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            answers[rank] = work(StoreWorkers(store, "run", list(range(world)), rank, timeout))
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_all_hear_what_each_has_to_tell_time_after_time() -> None:
    def work(workers: StoreWorkers) -> list[Any]:
        return [workers.meet((turn, workers.rank)) for turn in range(3)]

    told = [[(turn, rank) for rank in range(3)] for turn in range(3)]
    assert together(3, work) == [told] * 3


def test_what_is_too_long_for_a_store_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "PIECE_BYTES", 100)
    assert (
        together(2, lambda workers: workers.meet(b"x" * 5000 + bytes([workers.rank])))
        == [[b"x" * 5000 + b"\0", b"x" * 5000 + b"\1"]] * 2
    )


def test_a_mistake_of_one_is_told_to_all() -> None:
    def work(workers: StoreWorkers) -> None:
        def fail(number: int) -> None:
            if number == 3:
                raise DataError("shard 3 is wrong")

        share_out(workers, range(10), fail)

    assert [str(answer) for answer in together(2, work)] == ["shard 3 is wrong"] * 2


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sleeps = 0.0, 0
        monkeypatch.setattr(workers_module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(workers_module.time, "sleep", self.sleep)
        self.meanwhile: Any = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self.meanwhile()


def test_others_are_waited_for_as_long_as_somebody_advances(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    store = dist.HashStore()
    first, second = (StoreWorkers(store, "run", [0, 1], rank, timeout=10) for rank in range(2))

    def meanwhile() -> None:
        if clock.now < 1000:
            second.advance()
        elif clock.now < 1001:
            second._set("run/[0, 1]/1/1", workers_module.pickle.dumps("done at last"))

    clock.meanwhile = meanwhile
    assert first.meet("waited") == ["waited", "done at last"]
    assert clock.now > 1000
    beats = store.add("run/beats", 0)
    assert 300 < beats <= 1000  # not more than one a second


def test_a_process_of_which_nothing_is_heard_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    workers = StoreWorkers(dist.HashStore(), "run", [0, 3, 5], 0, timeout=10)
    with pytest.raises(RunError) as caught:
        workers.meet(None)
    assert str(caught.value) == (
        "the data could not be prepared: rank 3, 5 did not respond for 10 seconds (distributed.timeout)."
    )
    assert 10 < clock.now < 12


def test_those_that_see_one_folder_work_together(tmp_path: Path) -> None:
    def work(workers: StoreWorkers) -> list[int]:
        return _that_share(workers, tmp_path / ("one machine" if workers.rank < 3 else "another"))

    assert together(5, work) == [[0, 1, 2]] * 3 + [[3, 4]] * 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert together(4, lambda workers: _that_share(workers, tmp_path / "shared")) == [[0, 1, 2, 3]] * 4


def test_a_folder_that_cannot_be_written_leaves_each_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert together(2, lambda workers: _that_share(workers, tmp_path / "file" / "below")) == [[0], [1]]
