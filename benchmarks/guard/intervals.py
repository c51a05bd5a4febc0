"""Shares and differences with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from doctor.intervals import CONFIDENCE, Share, exact
from scipy import stats

__all__ = ["Difference", "Share", "clustered", "deviation", "exact", "mean_of", "paired"]


def clustered(hits: Sequence[int], of: Sequence[int], resamples: int = 2000) -> tuple[int, int, float, float, float]:
    """Hits and cases in all, their share, and its interval by a bootstrap over runs: what happens to the steps of one
    run is not independent."""
    total = sum(of)
    if total == 0:
        return 0, 0, math.nan, math.nan, math.nan
    counted = np.array([hits, of], dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(of), size=(resamples, len(of)))
    sums = counted[:, drawn].sum(axis=2)
    shares = sums[0][sums[1] > 0] / sums[1][sums[1] > 0]
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(shares, [tail, 100 - tail])
    return sum(hits), total, sum(hits) / total, float(low), float(high)


def mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its interval by Student's t."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan, math.nan
    mean = sum(values) / len(values)
    half = float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2, len(values) - 1)) * deviation(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


class Difference(NamedTuple):
    """Of pairs: with less without, in units of the spread that seeds alone make."""

    pairs: int
    equal: int  # to the last bit
    mean: float
    low: float
    high: float
    p_value: float  # of Student's paired test that there is none; 1 where all pairs are equal


def paired(one: Sequence[float], other: Sequence[float], *, unit: float | None = None) -> Difference:
    """`unit`: the standard deviation over seeds of `other`, if none is given."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    count, equal = len(differences), sum(each == 0 for each in differences)
    if count < 2 or not all(math.isfinite(each) for each in differences):
        return Difference(count, equal, math.nan, math.nan, math.nan, math.nan)
    if equal == count:
        return Difference(count, equal, 0.0, 0.0, 0.0, 1.0)
    unit = deviation(other) if unit is None else unit
    unit = unit if unit > 0 else 1.0
    mean = sum(differences) / count
    error = deviation(differences) / math.sqrt(count)
    half = float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2, count - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error > 0 else 0.0
    return Difference(count, equal, mean / unit, (mean - half) / unit, (mean + half) / unit, p_value)


def deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1))
