"""What is trained next: each arm's learning rates on each data set, then the best of them with the seeds of the
comparison.

The budget of every arm is the same, and so are the seeds: two runs of one seed have the same order of data, and the
same initial weights where their shapes are the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.study.ablate.study_file import RATE, AblateQuestion
from trainbook.study.tune.trial import Order, Trial

Cell = tuple[str, str]
Edge = Literal["lowest", "highest"]
CELLS = "cells"  # of the plan: arm and data set by the number that trials have for them


@dataclass(frozen=True)
class Ablating:
    """The Planning of an ablation."""

    question: AblateQuestion

    @property
    def metric(self) -> str:
        return self.question.metric

    @property
    def higher_is_better(self) -> bool:
        return self.question.higher_is_better

    @property
    def pruning(self) -> str:
        return "none"

    def next_order(self, trials: Sequence[Trial], plan: Mapping[str, Any] | None) -> Order:
        return next_order(self.question, trials, plan)

    def is_spent(self, trials: Sequence[Trial]) -> bool:
        return False

    def keeps(self, trials: Sequence[Trial]) -> set[int]:
        return set()  # what is compared are curves


def next_order(question: AblateQuestion, trials: Sequence[Trial], plan: Mapping[str, Any] | None) -> Order:
    cells = cells_of(question, plan)
    known = {(each.arm, each.kind, rate_of(each), each.seed) for each in trials}
    number = max((each.number for each in trials), default=-1) + 1
    found: list[Trial] = []
    for arm, kind, rate, seed in _wanted(question, cells, trials):
        if (arm, kind, rate, seed) not in known:
            values = question.values_of(cells[arm]) | ({} if rate is None else {RATE: rate})
            units = () if rate is None else (rate,)
            found.append(Trial(number, kind, values, arm=arm, units=units, seed=seed))
            number += 1
    return Order(found, {CELLS: [list(each) for each in cells]})


def cells_of(question: AblateQuestion, plan: Mapping[str, Any] | None) -> list[Cell]:
    """In the order in which they came: those of an extended study follow the others."""
    before = [(arm, data) for arm, data in (plan or {}).get(CELLS, [])]
    return [*before, *(each for each in question.cells if each not in before)]


Wanted = tuple[int, Literal["search", "repeat"], float | None, int]


def _wanted(question: AblateQuestion, cells: Sequence[Cell], trials: Sequence[Trial]) -> Iterator[Wanted]:
    """All seeds of one rate after the other would leave a study that is cut short without a comparison: so the seeds
    come last, and of these each arm's first."""
    for rate_seed in question.search_seeds:
        for arm, cell in enumerate(cells):
            for rate in question.rates_of(cell[0]):
                yield arm, "search", rate, rate_seed
    chosen = {}
    for arm, cell in enumerate(cells):
        if not question.rates_of(cell[0]):
            chosen[arm] = None
        elif (best := best_rate(question, trials, arm)) is not None:
            chosen[arm] = best
    for seed in question.final_seeds:
        for arm, rate in chosen.items():
            yield arm, "repeat", rate, seed


def rate_of(trial: Trial) -> float | None:
    return trial.units[0] if trial.units else None


def best_rate(question: AblateQuestion, trials: Sequence[Trial], arm: int) -> float | None:
    """Once the search has ended; of equally good ones the middle one. None: not yet, or none could be trained."""
    tied = best_rates(question, trials, arm)
    return tied[len(tied) // 2] if tied else None


def best_rates(question: AblateQuestion, trials: Sequence[Trial], arm: int) -> list[float]:
    """Several where they are equally good to the last digit, as scores of few samples may be."""
    losses = by_rate(question, trials, arm)
    searched = [each for each in trials if each.arm == arm and each.kind == "search"]
    wanted = len(losses) * question.rate_seeds
    if len(searched) < wanted or not all(each.is_over for each in searched):
        return []
    sign = -1 if question.higher_is_better else 1
    means = {
        rate: statistics.fmean(math.inf if each is None else sign * each for each in values)
        for rate, values in losses.items()
        if values
    }
    best = min(means.values(), default=math.inf)
    return [rate for rate, mean in means.items() if mean == best] if math.isfinite(best) else []


def by_rate(question: AblateQuestion, trials: Sequence[Trial], arm: int) -> dict[float, list[float | None]]:
    """What the search of an arm on a data set has found; None: it could not be trained like this."""
    found: dict[float, list[float | None]] = {rate: [] for rate in question.rates}
    for each in trials:
        rate = rate_of(each)
        if each.arm == arm and each.kind == "search" and rate in found and each.is_over:
            found[rate].append(each.loss if each.state == "done" else None)
    return found


def edge_of(question: AblateQuestion, rate: float | None) -> Edge | None:
    """Whether the best learning rate was an outermost one: a better one may lie beyond."""
    if rate is None or len(question.rates) < 2:
        return None
    return "lowest" if rate == question.rates[0] else "highest" if rate == question.rates[-1] else None
