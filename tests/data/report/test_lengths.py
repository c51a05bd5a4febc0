from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbook.data.report.lengths import MAX_BINS, coverage, describe, edges, histogram, recommend

some_lengths = st.lists(st.integers(0, 5000), min_size=1, max_size=60).map(np.array)


@given(some_lengths)
def test_every_document_is_in_one_bin(lengths: np.ndarray):
    bins = histogram(lengths)
    assert sum(part["documents"] for part in bins) == len(lengths)
    assert len(bins) <= MAX_BINS
    for part in bins:
        assert part["documents"] == ((lengths >= part["from"]) & (lengths < part["to"])).sum()
    assert all(one["to"] == next_one["from"] for one, next_one in pairwise(bins))


def test_bins_are_equally_wide_unless_a_few_documents_are_far_longer():
    assert len(set(np.diff(edges(np.arange(300))))) == 1
    skewed = np.diff(edges(np.append(np.arange(1, 100), 10_000)))
    assert skewed[-1] > 20 * skewed[0]


def test_lengths_are_described():
    facts = describe(np.array([1, 2, 3, 4, 10]))
    assert (facts["min"], facts["mean"], facts["max"]) == (1, 4.0, 10)
    assert facts["percentiles"]["50"] == 3
    assert describe(np.array([], dtype=int))["histogram"] == []


def test_what_a_length_keeps_is_counted_in_documents_and_in_tokens():
    lengths = np.array([2, 4, 8])
    assert coverage(lengths, 4) == {"documents_whole": 2 / 3, "tokens_kept": 10 / 14}
    # Two positions are for the task, so four tokens are no longer whole.
    assert coverage(lengths, 4, around=2) == {"documents_whole": 1 / 3, "tokens_kept": 6 / 14}
    # A causal model does not read the last token, so a sample of 5 tokens takes 4 positions.
    assert coverage(np.array([5]), 4, around=-1)["documents_whole"] == 1
    assert coverage(lengths, 1, around=3) == {"documents_whole": 0, "tokens_kept": 0}


@pytest.mark.parametrize(
    ("lengths", "around", "expected"),
    [
        ([10] * 100, 0, 32),
        ([32] * 100, 0, 32),
        ([32] * 100, 1, 64),
        ([20] * 96 + [33] * 4, 0, 32),  # 96 % whole, and little is cut off
        ([20] * 94 + [33] * 6, 0, 64),  # too many are cut
        ([20] * 96 + [100] * 4, 0, 128),  # too much is cut off
        ([9000] * 10, 0, None),
    ],
)
def test_the_smallest_length_that_keeps_nearly_everything_is_recommended(lengths, around, expected):
    assert recommend(np.array(lengths), around) == expected
