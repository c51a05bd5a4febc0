"""Trials that were repeated with the same new seeds, compared in pairs of one seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from trainbook.study.tune.study_file import StudyQuestion

CONFIDENCE = 0.95

Facts = dict[str, Any]


def paired(
    question: StudyQuestion, new: Facts, old: Facts, comparisons: int = 1, others: Sequence[Facts] = ()
) -> Facts | None:
    """The mean difference between two trials by seed; below 0 the new one is better, whichever way the metric goes.

    None: they have no seed in common. A new one that diverged with any seed is never called better. With several
    `comparisons` each interval is wider, so that all of them hold together with the same confidence (Bonferroni).
    `others` were repeated too: the spread is pooled over all that have the same seeds (`residual_spread`).
    """
    sign = -1 if question.higher_is_better else 1
    before, now = old["repeats"]["losses"], new["repeats"]["losses"]
    seeds = [seed for seed in now if seed in before]
    if not seeds:
        return None
    mean = statistics.fmean(sign * (now[seed] - before[seed]) for seed in seeds)
    interval = None
    if len(seeds) > 1:
        from scipy.stats import t

        tables = {each["number"]: each["repeats"]["losses"] for each in (new, old, *others)}
        complete = [[table[seed] for seed in seeds] for table in tables.values() if set(seeds) <= set(table)]
        spread, freedom = residual_spread(complete)
        tail = (1 - CONFIDENCE) / comparisons / 2
        half = float(t.ppf(1 - tail, freedom)) * spread * math.sqrt(2 / len(seeds))
        interval = [mean - half, mean + half]
    verdict = "cannot tell"
    if interval is not None and interval[1] < 0 and not new["repeats"]["infeasible"]:
        verdict = "better"
    elif interval is not None and interval[0] > 0 and not old["repeats"]["infeasible"]:
        verdict = "worse"
    return {"mean": mean, "interval": interval, "seeds": len(seeds), "verdict": verdict}


def residual_spread(losses: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation that trial and seed leave unexplained, and its degrees of freedom.

    A row for each trial, a column for each seed: a two-way layout without repetition. Of two rows it gives exactly the
    interval of the paired t test; of more, each difference borrows the spread of all, which two or three seeds need.
    """
    rows, columns = len(losses), len(losses[0])
    by_trial = [statistics.fmean(row) for row in losses]
    by_seed = [statistics.fmean(column) for column in zip(*losses, strict=True)]
    total = statistics.fmean(by_trial)
    squares = sum(
        (value - of_trial - of_seed + total) ** 2
        for row, of_trial in zip(losses, by_trial, strict=True)
        for value, of_seed in zip(row, by_seed, strict=True)
    )
    freedom = (rows - 1) * (columns - 1)
    return math.sqrt(squares / freedom), freedom


def stands_for(arm: Facts) -> Facts | None:
    """What an arm would recommend: its best, or its base where new seeds put that before it."""
    difference = arm["difference"]
    return arm["base"] if difference is not None and difference["mean"] > 0 else arm["best"]


def best_arm(question: StudyQuestion, arms: Sequence[Facts]) -> int | None:
    """By the mean over new seeds of what stands for each: a single run may be a lucky one. Without any, by its loss."""
    sign = -1 if question.higher_is_better else 1
    best_of = {place: best for place, arm in enumerate(arms) if (best := stands_for(arm)) is not None}
    repeated = [place for place, best in best_of.items() if best["repeats"]["mean"] is not None]

    def worth(place: int) -> tuple[bool, float, int]:
        best = best_of[place]
        value = best["repeats"]["mean"] if repeated else best["loss"]
        return bool(best["repeats"]["infeasible"]), sign * value, place

    return min(repeated or best_of, key=worth, default=None)


def _repeated(arms: Sequence[Facts]) -> list[Facts]:
    return [each for arm in arms for each in (*arm["finalists"], arm["base"]) if each is not None]


def compare_arms(question: StudyQuestion, arms: Sequence[Facts], chosen: int) -> list[Facts]:
    """What stands for the chosen arm against what does for each other one; below 0 the chosen one is better.

    The same seeds chose it among its arm's finalists and base, so each of them counts as compared.
    """
    comparisons = (len(arms) - 1) * max(1, len(arms[chosen]["finalists"]) + (arms[chosen]["base"] is not None))
    best = stands_for(arms[chosen])
    assert best is not None
    found = []
    for place, arm in enumerate(arms):
        other = stands_for(arm)
        if place == chosen or other is None:
            continue
        difference = paired(question, best, other, comparisons, _repeated(arms))
        nothing: Facts = {"mean": None, "interval": None, "seeds": 0, "verdict": "cannot tell"}
        found.append({"compared": arms[chosen]["compared"], "against": arm["compared"], **(difference or nothing)})
    return found
