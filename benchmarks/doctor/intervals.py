"""Shares with their intervals: clustered by kind of fault, or of independent runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

RESAMPLES = 10_000
CONFIDENCE = 0.95


class Share(NamedTuple):
    hits: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.hits / self.of if self.of else math.nan

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}; {self.hits} of {self.of})"


def clustered(hits_by_kind: Mapping[str, Sequence[bool]], resamples: int = RESAMPLES, seed: int = 0) -> Share:
    """The share of all runs, and a percentile interval of the bootstrap over kinds: runs of one kind are not
    independent of each other, and other kinds of fault might have been chosen."""
    hits = np.array([sum(each) for each in hits_by_kind.values()], dtype=np.int64)
    runs = np.array([len(each) for each in hits_by_kind.values()], dtype=np.int64)
    if runs.sum() == 0:
        return Share(0, 0, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(len(hits), size=(resamples, len(hits)))
    shares = hits[drawn].sum(axis=1) / runs[drawn].sum(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(shares, [tail, 100 - tail])
    return Share(int(hits.sum()), int(runs.sum()), float(low), float(high))


def exact(hits: int, of: int) -> Share:
    """Clopper and Pearson's interval, for cases that are independent."""
    if of == 0:
        return Share(0, 0, math.nan, math.nan)
    tail = (1 - CONFIDENCE) / 2
    low = float(stats.beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, of - hits)) if hits < of else 1.0
    return Share(hits, of, low, high)
