from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbook.data.report.repeats import Repeat, find_repeats


def repeated(period: int, repetitions: int, before: int, behind: int = 7) -> np.ndarray:
    """Other tokens, then a pattern so many times, then other tokens."""
    pattern = np.arange(1, period + 1)
    return np.concatenate([np.arange(100, 100 + before), np.tile(pattern, repetitions), np.arange(500, 500 + behind)])


@pytest.mark.parametrize("period", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("behind", [0, 7])
def test_thirty_two_repetitions_are_found_wherever_they_are_and_thirty_one_are_not(period: int, behind: int):
    for before in range(15):
        for repetitions, is_found in ((31, False), (32, True), (33, True)):
            tokens = repeated(period, repetitions, before, behind)
            found = find_repeats(tokens, np.array([len(tokens)]))
            assert found == ([Repeat(0, before, period, repetitions)] if is_found else [])


def test_a_period_of_fourteen_is_no_repeat():
    tokens = repeated(14, 64, 0)
    assert find_repeats(tokens, np.array([len(tokens)])) == []


def test_repeats_do_not_reach_across_documents():
    tokens = np.ones(62, dtype=int)
    assert find_repeats(tokens, np.array([31, 31])) == []
    assert find_repeats(tokens, np.array([30, 32])) == [Repeat(1, 0, 1, 32)]
    assert find_repeats(tokens, np.array([0, 62, 0])) == [Repeat(1, 0, 1, 62)]


def test_random_tokens_do_not_repeat():
    tokens = np.random.default_rng(0).integers(0, 64, size=200_000)
    assert find_repeats(tokens, np.full(400, 500)) == []


def test_a_very_long_run_is_one_finding():
    assert find_repeats(np.zeros(300_000, dtype=int), np.array([300_000])) == [Repeat(0, 0, 1, 300_000)]
    assert find_repeats(np.empty(0, dtype=int), np.array([], dtype=int)) == []


def plainly(tokens: list[int], max_period: int, least: int) -> bool:
    for period in range(1, max_period + 1):
        for start in range(len(tokens)):
            if start + period * least > len(tokens):
                break
            if tokens[start : start + period * least] == tokens[start : start + period] * least:
                return True
    return False


@given(st.lists(st.integers(0, 2), max_size=40))
def test_agrees_with_trying_every_place(tokens: list[int]):
    found = find_repeats(np.array(tokens, dtype=int), np.array([len(tokens)]), max_period=4, min_repetitions=4)
    assert bool(found) == plainly(tokens, 4, 4)
    for repeat in found:
        stretch = tokens[repeat.position :][: repeat.period * repeat.repetitions]
        assert stretch == stretch[: repeat.period] * repeat.repetitions
