from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbook.data.prepare.filters import (
    MAX_PERIOD,
    MIN_REPETITIONS,
    LongestRepeat,
    Repeat,
    find_repeats,
    has_repeat,
    repeats_in,
)


def repeated(period: int, repetitions: int, before: int, behind: int = 7) -> np.ndarray:
    """Other tokens, then a pattern so many times, then other tokens."""
    pattern = np.arange(1, period + 1)
    return np.concatenate([np.arange(100, 100 + before), np.tile(pattern, repetitions), np.arange(500, 500 + behind)])


def has_one(tokens: np.ndarray) -> bool:
    return bool(has_repeat(repeats_in(tokens), np.array([0]), np.array([len(tokens)]))[0])


@pytest.mark.parametrize("period", range(1, 14))
@pytest.mark.parametrize("behind", [0, 7])
def test_thirty_two_repetitions_are_found_wherever_they_are_and_thirty_one_are_not(period: int, behind: int):
    for before in range(15):
        for repetitions, is_found in ((31, False), (32, True), (33, True)):
            tokens = repeated(period, repetitions, before, behind)
            found = find_repeats(tokens, np.array([len(tokens)]))
            assert found == ([Repeat(0, before, period, repetitions)] if is_found else [])
            assert has_one(tokens) == is_found


def test_a_period_of_fourteen_is_no_repeat():
    tokens = repeated(14, 64, 0)
    assert find_repeats(tokens, np.array([len(tokens)])) == []


def test_repeats_do_not_reach_across_documents():
    tokens = np.ones(62, dtype=int)
    assert find_repeats(tokens, np.array([31, 31])) == []
    assert find_repeats(tokens, np.array([30, 32])) == [Repeat(1, 0, 1, 32)]
    assert find_repeats(tokens, np.array([0, 62, 0])) == [Repeat(1, 0, 1, 62)]


def test_none_of_ten_thousand_random_sequences_repeats():
    tokens = np.random.default_rng(0).integers(0, 64, size=10_000 * 200)
    assert find_repeats(tokens, np.full(10_000, 200)) == []
    assert not has_repeat(repeats_in(tokens), np.arange(10_000) * 200, np.full(10_000, 200)).any()


def test_a_very_long_run_is_one_finding():
    slashes = np.full(1_000_000, ord("/"), dtype=np.uint16)
    assert find_repeats(slashes, np.array([1_000_000])) == [Repeat(0, 0, 1, 1_000_000)]
    assert has_one(slashes)
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


def run_lengths(tokens: list[int], max_period: int, least: int) -> set[tuple[int, int, int]]:
    """Of each period, by counting at each place how many tokens before it equal the one a period before them."""
    found = set()
    for period in range(1, max_period + 1):
        run = 0
        for place in range(period, len(tokens) + 1):
            if place < len(tokens) and tokens[place] == tokens[place - period]:
                run += 1
                continue
            if (run + period) // period >= least:
                found.add((place - run - period, place, period))
            run = 0
    return found


@given(tokens=st.lists(st.integers(0, 1), max_size=60), chunk=st.integers(1, 70))
def test_stretches_are_found_whole_wherever_a_chunk_ends(tokens: list[int], chunk: int):
    found = repeats_in(np.array(tokens, dtype=np.uint16), max_period=4, min_repetitions=4, chunk=chunk)
    assert set(zip(*(column.tolist() for column in found), strict=True)) == run_lengths(tokens, 4, 4)
    assert len(found.begins) == len(run_lengths(tokens, 4, 4))


@given(tokens=st.lists(st.integers(0, 1), max_size=60), data=st.data())
def test_a_part_has_a_repeat_if_enough_of_it_lies_within(tokens: list[int], data: st.DataObject):
    edges = sorted([*data.draw(st.lists(st.integers(0, len(tokens)), max_size=8)), 0, len(tokens)])
    edges = edges[: len(edges) // 2 * 2]
    starts, ends = np.array(edges[::2], dtype=int), np.array(edges[1::2], dtype=int)  # with gaps, some of them empty
    found = repeats_in(np.array(tokens, dtype=np.uint16), 3, 4)
    expected = [plainly(tokens[start:end], 3, 4) for start, end in zip(starts, ends, strict=True)]
    assert has_repeat(found, starts, ends - starts, 4).tolist() == expected


def test_the_limits_are_thirteen_tokens_and_thirty_two_repetitions():
    assert (MAX_PERIOD, MIN_REPETITIONS) == (13, 32)


@pytest.mark.parametrize("seed", range(20))
def test_chunks_have_the_longest_repeat_of_the_whole(seed: int):
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(8):
        parts.append(draw.integers(0, 6, draw.integers(1, 60)))
        period = draw.integers(0, 4, draw.integers(1, 6))
        parts.append(np.resize(period, draw.integers(1, 120)))
    tokens = np.concatenate(parts)
    whole = find_repeats(tokens, np.array([len(tokens)]), 5, 8)
    longest = LongestRepeat(20, 5, 8)
    begin = 0
    while begin < len(tokens):
        size = int(draw.integers(0, 40))
        longest.add(tokens[begin : begin + size])
        begin += size
    longest.close()
    assert longest.found == (whole[0] if whole else None)
