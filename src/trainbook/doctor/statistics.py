"""Numbers about noisy curves that a few odd values cannot spoil."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

NORMAL = 1.4826022185056018  # a median absolute deviation times this is a normal distribution's standard deviation
OF_A_MEDIAN = 1.2533  # its standard error in units of that of a mean: sqrt(pi / 2)


def median_and_spread(values: np.ndarray) -> tuple[float, float]:
    """The median, and the median absolute deviation in units of a standard deviation."""
    middle = float(np.median(values))
    return middle, float(NORMAL * np.median(np.abs(values - middle)))


def noise_of(values: np.ndarray) -> float:
    """The standard deviation of single values around their trend, whatever that is: from neighbours' differences."""
    differences = np.diff(values)
    return median_and_spread(differences)[1] / 2**0.5 if len(differences) else 0.0


def jitter_of(values: np.ndarray) -> float:
    """The same, of a curve with few values that bends, such as one that falls and then rises: from how far each value
    lies off the line through its neighbours."""
    bends = np.diff(values, 2)
    return float(NORMAL * np.median(np.abs(bends)) / 6**0.5) if len(bends) else 0.0


def non_rising(values: np.ndarray) -> np.ndarray:
    """The curve that never rises and is nearest to the values (isotonic regression by pooling neighbours)."""
    pools: list[tuple[float, int]] = []  # mean, count
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] < mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])


def quantile_over_steps(steps: np.ndarray, values: np.ndarray, share: float) -> float:
    """Of a value for each step, where a row stands for the steps since the one before: the first steps of a run have a
    row each, and must not weigh as much as all that follow."""
    order = np.argsort(values)
    weights = np.diff(steps, prepend=0)[order]
    reached = np.cumsum(weights) / max(1e-9, weights.sum())
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


class Line(NamedTuple):
    slope: float
    low: float
    high: float
    intercept: float


def robust_line(x: np.ndarray, y: np.ndarray) -> Line:
    """Theil and Sen: the median of the slopes between all pairs of points, with Sen's 95 % interval. Points at one
    place say nothing of a slope."""
    first, second = np.triu_indices(len(x), k=1)
    run = x[second] - x[first]
    if not run.any():
        return Line(0.0, -math.inf, math.inf, float(np.median(y)) if len(y) else 0.0)
    slopes = np.sort((y[second] - y[first])[run != 0] / run[run != 0])
    slope = float(np.median(slopes))
    _, ties_x = np.unique(x, return_counts=True)
    _, ties_y = np.unique(y, return_counts=True)
    n = len(x)
    variance = (
        n * (n - 1) * (2 * n + 5)
        - sum(int(k) * (int(k) - 1) * (2 * int(k) + 5) for k in ties_x)
        - sum(int(k) * (int(k) - 1) * (2 * int(k) + 5) for k in ties_y)
    ) / 18.0
    reach = 1.959963984540054 * np.sqrt(max(0.0, variance))
    upper = min(int(np.round((len(slopes) + reach) / 2.0)), len(slopes) - 1)
    lower = max(int(np.round((len(slopes) - reach) / 2.0)) - 1, 0)
    return Line(slope, float(slopes[lower]), float(slopes[upper]), float(np.median(y) - slope * np.median(x)))


def running_median(values: np.ndarray, width: int) -> np.ndarray:
    """As long as `values`; at the ends, of what there is."""
    half = width // 2
    if len(values) <= 2 * half:
        return np.array([np.median(values[max(0, at - half) : at + half + 1]) for at in range(len(values))])
    inner = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    first = [np.median(values[: at + half + 1]) for at in range(half)]
    last = [np.median(values[len(values) - half - 1 - at :]) for at in range(half)][::-1]
    return np.concatenate([first, inner, last])


def detrended(values: np.ndarray, width: int = 5) -> np.ndarray:
    """What is left of a curve without its trend: each value less the median of those around it."""
    return values - running_median(values, width)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b: 1 if y always rises with x, -1 if it always falls."""
    first, second = np.triu_indices(len(x), k=1)
    a, b = np.sign(x[second] - x[first]), np.sign(y[second] - y[first])
    norm = np.sqrt(float((a != 0).sum()) * float((b != 0).sum()))
    return float((a * b).sum() / norm) if norm > 0 else 0.0


class LevelChange(NamedTuple):
    at: int  # the first index after it
    before: float
    after: float
    size: float  # in standard errors of the difference of the two means


def change_point(values: np.ndarray, least: int = 3) -> LevelChange | None:
    """Where a series is best cut into two parts of different means; None if it is too short."""
    n = len(values)
    if n < 2 * least:
        return None
    cuts = np.arange(least, n - least + 1)
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    left, right = sums[cuts - 1], sums[-1] - sums[cuts - 1]
    within = squares[-1] - left**2 / cuts - right**2 / (n - cuts)
    best = int(np.argmin(within))
    at = int(cuts[best])
    before, after = float(left[best] / at), float(right[best] / (n - at))
    variance = max(0.0, float(within[best])) / max(1, n - 2)
    error = np.sqrt(variance * (1 / at + 1 / (n - at)))
    return LevelChange(
        at, before, after, float((after - before) / error) if error > 0 else np.inf * np.sign(after - before)
    )


class Wave(NamedTuple):
    swing: float  # its highest over its lowest value
    by_chance: float  # how probable a wave as clear as this one is among independent values


def wave_of_epochs(epochs: np.ndarray, values: np.ndarray) -> Wave | None:
    """Of positive values around a cubic trend of their logarithms, the wave with the period of an epoch, and its F
    test; None if there are too few to tell.

    A batch that is hard is hard in every epoch, so the values of one place in the epoch count as one; and their ranks
    are tested, since a few hard batches must not make a wave."""
    if len(values) < 16 or epochs[-1] - epochs[0] < 3 or np.median(np.diff(epochs)) > 0.35 or values.min() <= 0:
        return None
    logs = np.log(values)
    span = (epochs - epochs.mean()) / (epochs[-1] - epochs[0])
    trend = np.stack([span**power for power in range(4)], axis=1)
    around = logs - trend @ np.linalg.lstsq(trend, logs, rcond=None)[0]
    places, of_place = np.unique((epochs % 1.0).round(4) % 1.0, return_inverse=True)
    means = np.bincount(of_place, around) / np.bincount(of_place)
    wave = np.column_stack([np.ones(len(places)), np.cos(2 * np.pi * places), np.sin(2 * np.pi * places)])
    height = np.hypot(*np.linalg.lstsq(wave, means, rcond=None)[0][1:])
    ranks = np.argsort(np.argsort(means)).astype(float)
    left = float(((ranks - wave @ np.linalg.lstsq(wave, ranks, rcond=None)[0]) ** 2).sum())
    without = float(((ranks - ranks.mean()) ** 2).sum())
    by_chance = (left / without) ** ((len(places) - 3) / 2) if without > 0 and len(places) > 3 else 1.0
    return Wave(float(np.exp(2 * height)), by_chance)


def thinned(count: int, most: int) -> np.ndarray:
    """Indices of at most so many of `count` values, spread over them, the first and the last included."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))
