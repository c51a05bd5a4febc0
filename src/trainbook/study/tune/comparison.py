"""Two trials with the same new seeds, in pairs; and the answer to what a study compares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from trainbook.study.tune.study_file import Question

CONFIDENCE = 0.95

Facts = dict[str, Any]


def paired(question: Question, new: Facts, old: Facts, comparisons: int = 1) -> Facts | None:
    """The difference in pairs of the same seed; below 0 the new one is better, whichever way the metric goes.

    None: there are no pairs. A new one that diverged with any seed is never called better. Of several `comparisons`
    each has a wider interval, so that all of them together are right as often as one would be (Bonferroni).
    """
    sign = -1 if question.higher_is_better else 1
    before, now = old["repeats"]["losses"], new["repeats"]["losses"]
    pairs = [sign * (now[seed] - before[seed]) for seed in now if seed in before]
    if not pairs:
        return None
    mean = statistics.fmean(pairs)
    interval = None
    if len(pairs) > 1:
        from scipy.stats import t

        tail = (1 - CONFIDENCE) / comparisons / 2
        half = float(t.ppf(1 - tail, len(pairs) - 1)) * statistics.stdev(pairs) / math.sqrt(len(pairs))
        interval = [mean - half, mean + half]
    verdict = "cannot tell"
    if interval is not None and interval[1] < 0 and not new["repeats"]["infeasible"]:
        verdict = "better"
    elif interval is not None and interval[0] > 0 and not old["repeats"]["infeasible"]:
        verdict = "worse"
    return {"mean": mean, "interval": interval, "seeds": len(pairs), "verdict": verdict}


def stands_for(arm: Facts) -> Facts | None:
    """What an arm would recommend: its best, or its base where new seeds put that before it."""
    difference = arm["difference"]
    return arm["base"] if difference is not None and difference["mean"] > 0 else arm["best"]


def best_arm(question: Question, arms: Sequence[Facts]) -> int | None:
    """By the mean over new seeds of what stands for each: a single run may be a lucky one. Without any, by its loss."""
    sign = -1 if question.higher_is_better else 1
    best_of = {place: best for place, arm in enumerate(arms) if (best := stands_for(arm)) is not None}
    repeated = [place for place, best in best_of.items() if best["repeats"]["mean"] is not None]

    def worth(place: int) -> tuple[bool, float, int]:
        best = best_of[place]
        value = best["repeats"]["mean"] if repeated else best["loss"]
        return bool(best["repeats"]["infeasible"]), sign * value, place

    return min(repeated or best_of, key=worth, default=None)


def compare_arms(question: Question, arms: Sequence[Facts], chosen: int) -> list[Facts]:
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
        difference = paired(question, best, other, comparisons)
        nothing: Facts = {"mean": None, "interval": None, "seeds": 0, "verdict": "cannot tell"}
        found.append({"compared": arms[chosen]["compared"], "against": arm["compared"], **(difference or nothing)})
    return found
