"""The bench's statistics, against scipy's and against what can be counted by hand."""

from __future__ import annotations

import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "doctor"))

from intervals import Share, clustered, exact


@pytest.mark.parametrize(("hits", "runs"), [(0, 150), (1, 150), (7, 10), (10, 10), (45, 450)])
def test_the_interval_of_clean_runs_is_that_of_clopper_and_pearson(hits: int, runs: int) -> None:
    theirs = stats.binomtest(hits, runs).proportion_ci(method="exact")
    assert exact(hits, runs)[2:] == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_nothing_has_no_share() -> None:
    assert math.isnan(exact(0, 0).value) and math.isnan(clustered({}).value)


def test_the_share_of_faults_is_over_runs_and_its_interval_over_kinds() -> None:
    """Of three kinds all 27 draws are equally likely: the percentiles of the bootstrap can be counted."""
    hits = {"one": [True] * 4, "two": [True, False, False, False], "three": [False] * 2}
    found = clustered(hits, resamples=200_000)
    sizes = [(4, 4), (1, 4), (0, 2)]
    all_draws = [
        sum(sizes[kind][0] for kind in draw) / sum(sizes[kind][1] for kind in draw)
        for draw in product(range(3), repeat=3)
    ]
    assert (found.hits, found.of) == (5, 10)
    assert found.low == pytest.approx(np.percentile(np.repeat(all_draws, 1000), 2.5))
    assert found.high == pytest.approx(np.percentile(np.repeat(all_draws, 1000), 97.5))


def test_runs_of_one_kind_do_not_count_as_many() -> None:
    """Ten times as many runs of the same kinds leave the interval as it is."""
    few = clustered({"one": [True], "two": [False], "three": [True]})
    many = clustered({"one": [True] * 10, "two": [False] * 10, "three": [True] * 10})
    assert few[2:] == many[2:] and many.of == 30


def test_the_bootstrap_is_the_same_each_time() -> None:
    hits = {str(kind): [kind % 3 > 0] * 5 for kind in range(20)}
    assert clustered(hits) == clustered(hits) and isinstance(clustered(hits), Share)
