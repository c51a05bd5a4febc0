"""Numbers to predict that a squared error is about alone: a typing error, another unit, or a heavy tail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ENOUGH = 20  # numbers
FEW = 0.01  # of the numbers, of which at least one
MOST = 0.9  # of the squared distances from the median


@dataclass(frozen=True)
class FarNumbers:
    places: list[int]  # the farthest first
    farthest: float
    median: float
    share: float  # of the squared distances of all numbers from the median
    count: int  # of all numbers

    def told(self, place_of: Callable[[int], str]) -> str:
        """In words. `place_of` a number: the file and line that it is read from."""
        first = f"{self.farthest:.6g} ({place_of(self.places[0])})"
        rest = f"the median of the {self.count:,} targets is {self.median:.6g}"
        if len(self.places) == 1:
            return f"The target {first} makes up {self.share:.1%} of the squared error: {rest}."
        several = f"{len(self.places):,} targets, the farthest {first}, make up"
        return f"{several} {self.share:.1%} of the squared error: {rest}."


REMEDY = "Correct or remove such records, or predict the logarithm."


def far_numbers(values: np.ndarray) -> FarNumbers | None:
    """The fewest numbers that nearly all of the squared error comes from, if they are very few. The model learns those
    and nothing of the others."""
    if len(values) < ENOUGH:
        return None
    median = float(np.median(values))
    distances = np.abs(values.astype(np.float64) - median)
    if not (largest := float(distances.max())) > 0 or not np.isfinite(largest):
        return None
    squares = np.square(distances / largest)
    order = np.argsort(-squares, kind="stable")[: max(1, int(FEW * len(values)))]
    shares = np.cumsum(squares[order]) / squares.sum()
    if shares[-1] < MOST:
        return None
    needed = int(np.searchsorted(shares, MOST)) + 1
    places = order[:needed].tolist()
    return FarNumbers(places, float(values[places[0]]), median, float(shares[needed - 1]), len(values))
