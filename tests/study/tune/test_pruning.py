from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainbook.study.tune.pruning import KEPT, RUNGS, bracket_of, expected_share, goes_on, rungs_of


def test_the_first_at_a_rung_go_on_and_then_one_in_three() -> None:
    seen: list[float] = []
    went_on = []
    for value in (5.0, 4.0, 3.0, 3.5, 2.0, 7.0, 8.0, 9.0, 1.0):
        went_on.append(goes_on(value, seen))
        seen.append(value)
    assert went_on == [True, True, True, False, True, False, False, False, True]


@given(st.lists(st.floats(0, 1, exclude_min=True), min_size=3, unique=True))
def test_the_best_so_far_always_goes_on_and_the_worst_never(values: list[float]) -> None:
    best, worst = min(values), max(values)
    assert goes_on(best, [value for value in values if value != best])
    assert not goes_on(worst, [value for value in values if value != worst])


def test_what_is_not_a_number_never_goes_on() -> None:
    assert not goes_on(math.nan, []) and not goes_on(math.inf, [1.0, 2.0, 3.0])


def test_hyperband_has_its_brackets_in_its_shares() -> None:
    brackets = [rungs_of("hyperband", number) for number in range(17)]
    assert [brackets.count(RUNGS), brackets.count(RUNGS[1:]), brackets.count(())] == [9, 5, 3]
    assert rungs_of("asha", 4) == RUNGS and rungs_of("none", 4) == () and KEPT == 3
    assert [bracket_of("hyperband", number) for number in range(17)] == [
        bracket_of("hyperband", number) for number in range(17, 34)
    ]


def test_what_diverged_counts_among_those_that_came_so_far() -> None:
    lost = [math.nan] * 6
    assert goes_on(2.0, [1.0, 3.0, *lost]) and not goes_on(2.0, [1.0, 3.0])


def test_what_a_trial_takes_on_average_follows_from_the_rungs() -> None:
    assert expected_share("none") == 1
    assert abs(expected_share("asha") - (1 / 9 + (1 / 3 - 1 / 9) / 3 + (2 / 3) / 9)) < 1e-12
    assert expected_share("asha") < expected_share("hyperband") < 1
