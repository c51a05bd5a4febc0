"""The largest micro-batch, and where throughput stops growing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainbook.study.batch import MOST_ROWS, PRECISION, BatchSearch, BatchTrial, flattens_at


class Device:
    """Memory along a straight line, throughput that grows until the device is busy; every attempt is noted."""

    def __init__(self, fixed: int, each: int, room: int, busy_at: int = 16) -> None:
        self.fixed, self.each, self.room, self.busy_at = fixed, each, room, busy_at
        self.asked: list[int] = []

    def __call__(self, rows: int) -> BatchTrial | None:
        self.asked.append(rows)
        peak = self.fixed + self.each * rows
        return BatchTrial(peak, 100.0 * min(rows, self.busy_at)) if peak <= self.room else None

    @property
    def largest(self) -> int:
        return (self.room - self.fixed) // self.each


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 9, 100, 511, 1000])
def test_the_largest_micro_batch_is_found_up_to_one_row_in_sixteen(largest: int):
    device = Device(fixed=500, each=10, room=500 + 10 * largest + 9)
    found = BatchSearch().run(device)
    assert found.is_done and found.largest is not None
    assert device.largest - max(0, largest // PRECISION) <= found.largest <= device.largest
    assert len(device.asked) == len(set(device.asked)), "nothing is tried twice"


def test_a_search_that_never_ran_out_of_memory_says_so():
    search = BatchSearch(most=8).run(lambda rows: BatchTrial(rows, float(rows)))
    assert search.largest == 8 and search.is_cap
    assert not BatchSearch(most=8).run(lambda rows: BatchTrial(rows, 1.0) if rows < 8 else None).is_cap


def test_a_device_with_no_room_for_one_row_has_no_largest_micro_batch():
    device = Device(fixed=100, each=10, room=105)
    found = BatchSearch().run(device)
    assert found.is_done
    assert found.largest is None
    assert device.asked == [1]


def test_from_more_rows_than_fit_it_goes_down():
    device = Device(fixed=0, each=10, room=35)
    assert BatchSearch().run(device, start=16).largest == 3
    assert device.asked[:3] == [16, 8, 4]


def test_with_room_for_any_number_it_ends_where_more_are_not_worth_trying():
    device = Device(fixed=0, each=1, room=10**9)
    assert BatchSearch(most=48).run(device).largest == 48
    assert BatchSearch().run(device).largest == MOST_ROWS


def test_a_stated_limit_is_never_gone_beyond_by_more_than_a_row():
    """On a CPU nothing else stops a step: it would push everything else out of memory."""
    device = Device(fixed=1000, each=100, room=10**9)
    found = BatchSearch(limit=2950).run(device)  # 19 rows
    assert found.largest == 19
    assert max(device.asked) <= 20
    assert all(trial.peak_bytes <= 2950 for trial in found.trials.values())


def test_memory_that_grows_in_a_straight_line_is_met_in_few_attempts():
    device = Device(fixed=1000, each=1, room=10**9)
    found = BatchSearch(limit=1000 + 1500).run(device)
    assert found.largest == 1500
    assert len(device.asked) <= 12, "1 to 1024 doubled, then the limit itself"


def test_a_search_that_is_stopped_keeps_what_it_has_tried():
    def stopped(attempt: Callable[[int], BatchTrial | None]) -> Callable[[int], BatchTrial | None]:
        def tried(rows: int) -> BatchTrial | None:
            if rows == 8:
                raise KeyboardInterrupt
            return attempt(rows)

        return tried

    search = BatchSearch()
    with pytest.raises(KeyboardInterrupt):
        search.run(stopped(Device(fixed=0, each=1, room=100)))
    assert not search.is_done
    assert search.peaks == {1: 1, 2: 2, 4: 4}


def test_throughput_is_flat_from_the_fewest_rows_that_reach_nine_tenths_of_the_best():
    assert flattens_at({1: 100, 2: 200, 4: 390, 8: 700, 16: 760, 32: 770}) == 8
    assert flattens_at({1: 100, 2: 101, 4: 102}) == 1


def test_throughput_that_still_grows_with_the_last_doubling_is_not_flat():
    assert flattens_at({1: 100, 2: 200, 4: 400}) is None
    assert flattens_at({4: 100}) is None, "one number says nothing about growth"
    assert flattens_at({}) is None
