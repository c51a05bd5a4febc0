from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainbook.data.sources.values import Ranges

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair))), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Ranges:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Ranges.of(columns[:, 0], columns[:, 1])


@given(pairs=PAIRS, more=PAIRS)
def test_ranges_cover_what_they_are_made_of_in_order_and_apart(pairs, more) -> None:
    ranges, both = made(pairs), made(pairs) | made(more)
    covered = {number for begin, end in pairs for number in range(begin, end)}
    assert {number for begin, end in zip(ranges.begins, ranges.ends, strict=True) for number in range(begin, end)} == (
        covered
    )
    assert (ranges.begins[1:] > ranges.ends[:-1]).all()
    assert ranges.size == len(covered)
    assert both.size == len(covered | {number for begin, end in more for number in range(begin, end)})


@given(pairs=PAIRS, asked=PAIRS)
def test_a_range_touches_them_if_it_shares_a_single_number(pairs, asked) -> None:
    covered = {number for begin, end in pairs for number in range(begin, end)}
    columns = np.array(asked, dtype=np.int64).reshape(-1, 2)
    touched = made(pairs).touch(columns[:, 0], columns[:, 1])
    assert touched.tolist() == [not covered.isdisjoint(range(begin, end)) for begin, end in asked]


def test_nothing_is_touched_by_no_ranges() -> None:
    assert len(Ranges()) == Ranges().size == 0
    assert Ranges().touch(np.array([0, 5]), np.array([3, 9])).tolist() == [False, False]
