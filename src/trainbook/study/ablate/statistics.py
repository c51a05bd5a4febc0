"""What paired seeds on one or several data sets say of a change: an effect with its interval, and a verdict.

A difference is that of two runs with the same seed, data order and initial weights, as a share of what the control has
(of a score such as accuracy: in points). Data sets count equally, however many pairs each has. The interval is of the
mean over *these* data sets: it says nothing of others.

better, worse: Student's t test of the mean, corrected for the number of arms by Holm's method, has p <= 0.05; and the
exact sign-flip test agrees, which assumes nothing of the distribution. With 5 pairs it can reach no less than 0.0625:
then all five have to have the same sign.
equivalent: two one-sided t tests (Schuirmann 1987, doi:10.1007/BF01068419), each with p <= 0.05, exclude every effect
of epsilon or more; epsilon is stated before the study begins. A difference that is certain, but smaller than that, is
equivalent too.
no evidence: neither. That is no proof of equality; the smallest effect that the design could see says how weak it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy import optimize, special

from trainbook.study.seeds import corrected

Verdict = Literal["better", "worse", "equivalent", "no evidence"]
ALPHA = 0.05
POWER = 0.8  # of the smallest effect that a design is said to see
MOST_FLIPS = 20  # pairs whose signs are all tried; of more, so many choices are drawn
DRAWN = 1 << 16
RESAMPLES = 2_000  # of the bootstrap
SIMULATED = 20_000  # studies, for the power of a design

Numbers = Sequence[float] | np.ndarray
Strata = Sequence[Numbers]  # differences, by data set


@dataclass(frozen=True)
class Effect:
    mean: float  # of the means of the data sets
    low: float
    high: float  # of the 95 % interval
    error: float  # the standard error of the mean
    freedom: float
    p: float  # of Student's t test, two-sided
    p_flips: float  # of the exact sign-flip test, two-sided
    least_flips: float  # that so few pairs could show at all
    pairs: int

    @property
    def inner(self) -> tuple[float, float]:
        """The 90 % interval: it lies within epsilon where two one-sided tests say that the effect does."""
        reach = float(special.stdtrit(self.freedom, 1 - ALPHA)) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def agrees(self) -> bool:
        """Whether the sign-flip test does not speak against what the t test finds."""
        return self.p_flips <= max(ALPHA, self.least_flips) * (1 + 1e-9)


def effect_of(strata: Strata) -> Effect | None:
    """None: a data set has fewer than two pairs, so that nothing is known of its noise."""
    if not strata or any(len(each) < 2 for each in strata):
        return None
    counts = np.array([len(each) for each in strata], dtype=float)
    means = np.array([np.mean(each) for each in strata])
    parts = np.array([np.var(each, ddof=1) for each in strata]) / counts / len(strata) ** 2
    mean, error = float(means.mean()), math.sqrt(parts.sum())
    # Welch and Satterthwaite: data sets have noise of their own.
    freedom = float(parts.sum() ** 2 / (parts**2 / (counts - 1)).sum()) if error else float(counts.sum() - len(strata))
    reach = float(special.stdtrit(freedom, 1 - ALPHA / 2)) * error
    p = float(2 * special.stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    flips, least = sign_flip_p(strata)
    return Effect(mean, mean - reach, mean + reach, error, freedom, p, flips, least, int(counts.sum()))


def sign_flip_p(strata: Strata) -> tuple[float, float]:
    """Without an effect, each sign is as likely as its opposite: the share of all choices of signs whose mean is at
    least as far from 0; and the least that it can be."""
    weighted = np.concatenate([np.asarray(each, dtype=float) / len(each) for each in strata])
    seen = abs(float(weighted.sum())) * (1 - 1e-9)  # sums in another order differ in their last bit
    if len(weighted) <= MOST_FLIPS:
        sums = weighted[:1]  # with the other sign, all sums are the opposite ones
        for each in weighted[1:]:
            sums = np.concatenate([sums + each, sums - each])
        return float(np.mean(np.abs(sums) >= seen)), 2.0 ** (1 - len(weighted))
    beyond = int((np.abs(_signs(len(weighted)) @ weighted) >= seen).sum())
    return (beyond + 1) / (DRAWN + 1), 1 / (DRAWN + 1)


@lru_cache(maxsize=4)
def _signs(number: int) -> np.ndarray:
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(DRAWN, number))


def equivalence_p(effect: Effect, epsilon: float) -> float:
    """Of the larger of two one-sided tests: that the effect is at most -epsilon, and that it is at least epsilon."""
    if not effect.error:
        return float(abs(effect.mean) >= epsilon)
    sides = (effect.mean + epsilon, epsilon - effect.mean)
    return float(max(special.stdtr(effect.freedom, -side / effect.error) for side in sides))


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    p: float | None  # corrected for the number of arms
    equivalence_p: float | None


def judge(effects: Sequence[Effect | None], epsilon: float, *, lower_is_better: bool = True) -> list[Judged]:
    """All arms of a study at once: of many, one looks better by chance more often than of one."""
    known = [each for each in effects if each is not None]
    adjusted = iter(corrected([each.p for each in known]))
    return [
        Judged("no evidence", None, None)
        if each is None
        else _judged(each, next(adjusted), epsilon, lower_is_better=lower_is_better)
        for each in effects
    ]


def _judged(effect: Effect, p: float, epsilon: float, *, lower_is_better: bool) -> Judged:
    same = equivalence_p(effect, epsilon)
    if same <= ALPHA:
        return Judged("equivalent", p, same)
    if p <= ALPHA and effect.agrees:
        return Judged("better" if (effect.mean < 0) == lower_is_better else "worse", p, same)
    return Judged("no evidence", p, same)


def probability_of_improvement(
    pairs: Sequence[tuple[Numbers, Numbers]], *, lower_is_better: bool = True
) -> tuple[float, float, float]:
    """That a run of the arm is better than one of the control, with other seeds: the mean over data sets of the share
    of all pairings (Agarwal et al. 2021, arXiv 2108.13264), and its 95 % bootstrap interval over seeds."""
    draw = np.random.default_rng(0)
    sign = 1.0 if lower_is_better else -1.0
    chances, resampled = [], np.zeros(RESAMPLES)
    for control, arm in pairs:
        ours, theirs = sign * np.asarray(arm, dtype=float), sign * np.asarray(control, dtype=float)
        wins = (ours[:, None] < theirs) + 0.5 * (ours[:, None] == theirs)
        chances.append(float(wins.mean()))
        rows = draw.integers(len(ours), size=(RESAMPLES, len(ours)))
        columns = draw.integers(len(theirs), size=(RESAMPLES, len(theirs)))
        resampled += wins[rows[:, :, None], columns[:, None, :]].mean((1, 2)) / len(pairs)
    low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2])
    return float(np.mean(chances)), float(low), float(high)


# What a design can see, before it is run or after


def power_of(effect: float, noise: float, pairs: int, data_sets: int = 1, arms: int = 1) -> float:
    """How often an arm with this effect is called better or worse, if the differences of a data set are normal with
    this standard deviation; for the hardest place in Holm's order. Simulated by the very rule that decides."""
    if noise == 0:
        return float(effect != 0)
    means, least = _standard(pairs, data_sets, arms)
    is_sure = np.abs(means + effect / noise) >= least
    if pairs * data_sets <= _FEW_FLIPS:
        is_sure &= _agree(pairs, data_sets, effect / noise)
    return float(np.mean(is_sure))


def smallest_effect(noise: float, pairs: int, data_sets: int = 1, arms: int = 1) -> float:
    """That the design sees with POWER."""
    if noise == 0 or pairs < 2:
        return 0.0 if noise == 0 else math.inf
    return noise * _smallest_effect(pairs, data_sets, arms)


@lru_cache(maxsize=16)
def _smallest_effect(pairs: int, data_sets: int, arms: int) -> float:
    """In standard deviations of a difference."""

    def missing(effect: float) -> float:
        return power_of(effect, 1.0, pairs, data_sets, arms) - POWER

    high = 1.0
    while missing(high) < 0:
        high *= 2
    found: Any = optimize.brentq(missing, 0.0, high, xtol=1e-3)  # scipy has no types
    return float(found)


_FEW_FLIPS = 12  # pairs: with more, the two tests hardly differ


@lru_cache(maxsize=16)
def _draws(pairs: int, data_sets: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIMULATED, data_sets, pairs))


@lru_cache(maxsize=16)
def _standard(pairs: int, data_sets: int, arms: int) -> tuple[np.ndarray, np.ndarray]:
    """Of studies without an effect: their means, and how far from 0 each mean has to be for the t test."""
    draws = _draws(pairs, data_sets)
    parts = draws.var(2, ddof=1) / pairs / data_sets**2
    freedoms = parts.sum(1) ** 2 / (parts**2 / (pairs - 1)).sum(1)
    return draws.mean((1, 2)), -np.sqrt(parts.sum(1)) * special.stdtrit(freedoms, ALPHA / arms / 2)


def _agree(pairs: int, data_sets: int, shift: float) -> np.ndarray:
    values = _draws(pairs, data_sets).reshape(SIMULATED, -1) + shift
    number = values.shape[1]
    signs = 1 - 2 * ((np.arange(1 << (number - 1))[:, None] >> np.arange(number)) & 1)  # the rest are their opposites
    seen = np.abs(values.sum(1)) * (1 - 1e-9)
    shares = np.zeros(len(values))
    for part in np.array_split(signs, max(1, len(signs) // 64)):
        shares += (np.abs(values @ part.T) >= seen[:, None]).sum(1)
    shares /= len(signs)
    return shares <= max(ALPHA, 2.0 ** (1 - number)) * (1 + 1e-9)
