"""Differential diagnosis: how likely each cause is, which experiment tells most for its cost, and what it changes.

The causes are taken as exclusive: one of them is the right one, or none of those that are known ("something else").
They begin with the confidences of the doctor's findings. A part of what is left belongs to causes that no rule named
but an experiment could show.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainbook.doctor.causes import CAUSES
from trainbook.doctor.diagnose import TURNS
from trainbook.doctor.outcomes import (
    OUTCOMES,
    REMEDY_OF_A_LIKE_CAUSE,
    REMEDY_OF_ANOTHER,
    REMEDY_OF_THE_CAUSE,
    Experiment,
    Likelihoods,
)
from trainbook.finding import Finding, Severity

ELSE = "something else"
SETTLED = 0.8  # a cause this likely needs no further experiment
STATED = 0.5  # a cause this likely is said to be the one …
EITHER = 0.65  # … two that are so likely together, to be one or the other …
POSSIBLE, FAR_AHEAD = 0.2, 4.0  # … and one that is so likely, and so many times likelier than the next, to be possible
LEFT = 0.1  # for causes that the doctor does not name, at the least
KNOWN = 0.5  # of what is left: causes that an experiment could show
WEIGHTS: Mapping[Severity, float] = {"error": 1.0, "warning": 1.0, "info": 0.2}  # a remark is no alarm
LEAST_GAIN = {False: 0.02, True: 0.1}  # bits, of a look and of a training: one that tells less is not worth its cost
LOOKING = 0.02  # of the run's steps: what a look is taken to cost when experiments are compared

Belief = Mapping[str, float]  # by cause and ELSE; they add up to 1


def first_belief(findings: Sequence[Finding], ruled_out: Collection[str] = ()) -> dict[str, float]:
    """From the doctor's confidences; `ruled_out`: causes that cannot be, whatever an experiment shows."""
    said: dict[str, float] = {}
    for each in findings:
        said[each.cause] = max(said.get(each.cause, 0.0), WEIGHTS[each.severity] * each.confidence)
    total = sum(said.values())
    scale = min(1.0, (1 - LEFT) / total) if total else 1.0
    belief = {cause: scale * share for cause, share in said.items()}
    left = 1 - sum(belief.values())
    unnamed = sorted(known_to_experiments() - said.keys() - set(ruled_out))
    belief |= dict.fromkeys(unnamed, KNOWN * left / max(1, len(unnamed)))
    return {**belief, ELSE: 1 - sum(belief.values())}


def known_to_experiments() -> set[str]:
    return {cause for each in OUTCOMES.values() for cause in each.named}


def updated(belief: Belief, likelihood: Mapping[str, float]) -> dict[str, float]:
    """By Bayes' rule; `likelihood`: how likely what was seen is under each cause."""
    joint = {cause: share * likelihood[cause] for cause, share in belief.items()}
    total = sum(joint.values())
    return {cause: share / total for cause, share in joint.items()}


def after(belief: Belief, experiment: Experiment, outcome: str) -> dict[str, float]:
    return updated(belief, {cause: experiment.likelihoods(cause)[outcome] for cause in belief})


def after_remedy(belief: Belief, cause: str, verdict: str) -> dict[str, float]:
    """What a change for this cause did, beside a control."""
    return updated(belief, {other: _remedy_likelihoods(cause, other)[verdict] for other in belief})


def _remedy_likelihoods(treated: str, cause: str) -> Likelihoods:
    if cause == treated:
        return REMEDY_OF_THE_CAUSE
    ours, theirs = TURNS.get(treated, {}), TURNS.get(cause, {})
    is_alike = any(theirs.get(knob) == direction for knob, direction in ours.items())
    is_alike = is_alike or (cause in CAUSES and treated in CAUSES[cause].explains)
    return REMEDY_OF_A_LIKE_CAUSE if is_alike else REMEDY_OF_ANOTHER


def expected_gain(belief: Belief, experiment: Experiment) -> float:
    """The bits of doubt that it takes away on average."""
    left = 0.0
    for outcome in experiment.usual:
        share = sum(belief[cause] * experiment.likelihoods(cause)[outcome] for cause in belief)
        if share > 0:
            left += share * doubt(after(belief, experiment, outcome))
    return doubt(belief) - left


def doubt(belief: Belief) -> float:
    """Entropy, in bits."""
    return -sum(share * math.log2(share) for share in belief.values() if share > 0)


def most_telling(
    belief: Belief, experiments: Iterable[Experiment], costs: Mapping[str, float], budget: float = math.inf
) -> Experiment | None:
    """The experiment with the most bits for its cost, as a share of the run; None: none is worth it, or affordable."""
    worth: list[tuple[float, Experiment]] = []
    for each in experiments:
        gain, cost = expected_gain(belief, each), costs.get(each.name, each.share)
        if gain >= LEAST_GAIN[each.trains] and (cost <= budget or not each.trains):
            worth.append((gain / (cost + LOOKING), each))
    return max(worth, key=lambda pair: pair[0])[1] if worth else None


def leading(belief: Belief, count: int = 1) -> list[str]:
    """The most likely causes, without `something else`."""
    return sorted((cause for cause in belief if cause != ELSE), key=lambda cause: -belief[cause])[:count]


def stated(belief: Belief) -> str:
    """The likeliest cause in a sentence, if there is one."""
    first = leading(belief)[0]
    if belief[first] < POSSIBLE:
        return "No cause is likely."
    return f"Likeliest cause ({belief[first]:.0%}): {CAUSES[first].sentence}"


@dataclass(frozen=True)
class Conclusion:
    kind: str  # cause, either, possible, unknown, nothing
    causes: tuple[str, ...]
    sentence: str


def conclude(belief: Belief, is_suspect: bool = True) -> Conclusion:
    """The cause, one of two, a possible one, or an honest `unknown`; `is_suspect`: the doctor warned of something."""
    first, second = leading(belief, 2)
    if belief[first] >= STATED:
        return Conclusion("cause", (first,), f"Most likely cause ({belief[first]:.0%}): {CAUSES[first].sentence}")
    if belief[first] + belief[second] >= EITHER and belief[second] > belief[ELSE]:
        told = [f"{CAUSES[cause].sentence.rstrip('.')} ({belief[cause]:.0%})" for cause in (first, second)]
        return Conclusion("either", (first, second), f"One of two: {told[0]}; or: {told[1]}.")
    if not is_suspect:
        return Conclusion("nothing", (), "No fault was found: no rule warns of anything, and no experiment shows one.")
    if belief[first] >= POSSIBLE and belief[first] >= FAR_AHEAD * belief[second]:
        return Conclusion("possible", (first,), f"Possible cause ({belief[first]:.0%}): {CAUSES[first].sentence}")
    told = f"{CAUSES[first].sentence.rstrip('.')} ({belief[first]:.0%})"
    return Conclusion("unknown", (), f"Unknown: no cause is likelier than not. The likeliest: {told}.")


def as_json(belief: Belief, count: int = 5) -> dict[str, float]:
    """The likeliest causes, and what is left for something else."""
    told = leading(belief, count)
    return {**{cause: round(belief[cause], 3) for cause in told}, ELSE: round(belief[ELSE], 3)}
