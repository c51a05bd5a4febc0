"""What repeated seeds say of a difference: its mean, a 95 % interval, and how often chance alone would do as much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean, variance

CONFIDENCE = 0.95
MOST_CASES = 1 << 16  # counted one by one; beyond that the t distribution's p is near enough


@dataclass(frozen=True)
class Estimate:
    mean: float
    low: float
    high: float
    p: float
    least_p: float  # that so few runs could show at all
    pairs: int | None  # None: the two sides have other seeds
    is_exact: bool  # whether p was counted

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def of_pairs(differences: Sequence[float]) -> Estimate:
    """Of two or more differences, each between two runs of one seed.

    The interval is Student's. If there were no difference, each sign would be as likely as its opposite: p is the
    share of all choices of signs whose mean is at least as far from 0.
    """
    n = len(differences)
    mean = fmean(differences)
    error = math.sqrt(variance(differences) / n)
    low, high, t_p = _student(mean, error, n - 1)
    if 2**n > MOST_CASES:
        return Estimate(mean, low, high, t_p, 0.0, n, is_exact=False)
    sums = [sum(sign * value for sign, value in zip(signs, differences, strict=True)) for signs in _signs(n)]
    return Estimate(mean, low, high, _share(sums, sum(differences)), 2 / 2**n, n, is_exact=True)


def of_groups(reference: Sequence[float], other: Sequence[float]) -> Estimate:
    """Of two or more runs on each side that share no seeds: Welch's interval, and p over all ways to deal them out."""
    n, m = len(reference), len(other)
    mean = fmean(other) - fmean(reference)
    parts = variance(reference) / n, variance(other) / m
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)) if error else n + m - 2
    low, high, t_p = _student(mean, error, freedom)
    cases = math.comb(n + m, m)
    if cases > MOST_CASES:
        return Estimate(mean, low, high, t_p, 0.0, None, is_exact=False)
    values, total = [*reference, *other], sum(reference) + sum(other)
    sums = [sum(values[place] for place in chosen) for chosen in combinations(range(n + m), m)]
    means = [part / m - (total - part) / n for part in sums]
    return Estimate(mean, low, high, _share(means, mean), (2 if n == m else 1) / cases, None, is_exact=True)


def corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's: of several comparisons one is small by chance more often than of one."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    result, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        result[place] = largest
    return result


def _student(mean: float, error: float, freedom: float) -> tuple[float, float, float]:
    from scipy import special

    if error == 0:
        return mean, mean, 1.0 if mean == 0 else 0.0
    reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return mean - reach, mean + reach, float(2 * special.stdtr(freedom, -abs(mean) / error))


def _signs(n: int) -> product[tuple[int, ...]]:
    return product((1, -1), repeat=n)


def _share(cases: Sequence[float], seen: float) -> float:
    """With a little room: sums of the same numbers in another order differ in their last bit."""
    bound = abs(seen) * (1 - 1e-9)
    return sum(abs(case) >= bound for case in cases) / len(cases)
