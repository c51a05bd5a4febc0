"""What runs with a known fault looked like, and which of them a run resembles.

`likeness.json` holds a softmax regression over the causes and "healthy", fitted on the runs of benchmarks/strangers by
benchmarks/strangers/calibrate.py. Its inputs are the traits of a run, which of them are known, and what rules said.
It judges runs that have ended, as those did that it has learned from. A cause that is ruled out by what is known of the
run is none.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainbook.bounded import files, json_text
from trainbook.doctor.causes import CAUSES, LIKENESS
from trainbook.doctor.curves import fades_to_zero, moves_around_zero
from trainbook.doctor.experiments import EXPERIMENTS
from trainbook.doctor.refuted import refuted
from trainbook.doctor.traits import FEW, traits
from trainbook.doctor.view import View
from trainbook.finding import Finding

HEALTHY = "healthy"
RULE = LIKENESS
CANDIDATES = 6  # causes that a run may have without a rule that names them
FEWEST_STEPS = 50  # of a run that ended well: of those that the model was fitted on, nearly all are twice as long
CLEAR = 0.5  # of a trait: beyond it, something is unusual
SHOWN = 3  # traits in a sentence
# Rules than the models, which are not fitted on what they say: to these it is as if they said nothing.
YOUNGER: frozenset[str] = frozenset({"outliers-of-inputs", "outliers-of-targets"})
WEIGHTS = {"error": 2.0, "warning": 1.6, "info": 1.0}  # of what a rule says, times its confidence
WORDS = {
    "clipped": "the share of clipped updates",
    "in_order": "data in a fixed order",
    "epochs": "the number of epochs",
    "warm-up": "the length of the warm-up",
    "a step in the curve": "the largest step in the loss curve",
    "where the step is": "the position of the largest step in the loss curve",
    "a wave with each epoch": "a wave of the loss in each epoch",
    "where validation was best": "the position of the best evaluation",
    "the loss fell": "the fall of the loss",
    "the loss fell by a factor": "the ratio of the first to the last loss",
    "the loss still falls": "the fall of the loss at the end",
    "the loss rose again": "the rise of the loss from its minimum",
    "the loss rose at first": "the rise of the loss in the first steps",
    "the validation loss fell": "the fall of the validation loss",
    "the validation loss rose again": "the rise of the validation loss from its minimum",
    "validation above training": "the gap between validation and training loss",
    "the accuracy rose": "the gain in accuracy",
    "noise of the loss": "the noise of the loss",
    "noise of the loss, of what was learned": "the noise of the loss relative to its fall",
    "noise of the validation loss": "the noise of the validation loss",
    "late noise against early noise": "the late noise of the loss relative to the early noise",
    "share of the fall in the first fifth": "the share of the fall in the first fifth",
    "gradients above the threshold": "the share of gradients above the clipping threshold",
    "the gradient against the threshold": "the gradient norm relative to the clipping threshold",
    "the gradient norm grew": "the growth of the gradient norm",
    "updates grew": "the growth of updates",
    "weights grew": "the growth of weights",
    "above the usual learning rate": "the distance above the usual learning rate",
    "below the usual learning rate": "the distance below the usual learning rate",
}
FACTS = {"prior_loss": "that of guessing without the input", "uniform_loss": "that of a uniform guess"}
HOLDS = re.compile(r" is | never ")  # a trait that holds or does not
LOGGED = re.compile(r"^(has|origin|task)[ _]| is known$")  # traits of the log or of the kind of run
SCALE = 100  # weights are stored as whole hundredths


class Likeness(NamedTuple):
    healthy: float  # the share of healthy runs among those that look like this one
    causes: Mapping[str, float]  # the share of each cause among the others
    traits: Mapping[str, Sequence[str]]  # what each cause is judged by, in words

    def most_likely(self) -> list[str]:
        return _most_likely(self.causes)


def _most_likely(causes: Mapping[str, float]) -> list[str]:
    return sorted(causes, key=lambda cause: -causes[cause])[:CANDIDATES]


def likeness_of(view: View, findings: Sequence[Finding]) -> Likeness | None:
    """None: nothing but rules can judge such a run. Odd rows, such as a text in place of a number, must not keep these
    from speaking."""
    try:
        return likeness(inputs(traits(view), findings), refuted(view)) if is_judged(view) else None
    except Exception:
        return None


def is_judged(view: View) -> bool:
    """Whether the run is of the kind that the model was fitted on: one that has ended, with a curve of one loss that
    is meant to fall, and that was not over before a healthy run shows that it learns."""
    is_meant_to_fall = not (view.loss_changed or view.is_shared or fades_to_zero(view) or moves_around_zero(view))
    has_curve = len(view.losses()[0]) >= FEW and is_meant_to_fall
    is_a_trial = view.step_name == "step" and view.last_step < FEWEST_STEPS
    return has_curve and (view.failure is not None or (view.has_ended and not is_a_trial))


def inputs(traits: Mapping[str, float], findings: Iterable[Finding]) -> dict[str, float]:
    """By name. A trait counts by its size, by how far it is beyond what is usual, and by being known at all."""
    found: dict[str, float] = {}
    for name, value in traits.items():
        found[f"of:{name}"], found[f"known:{name}"] = value, 1.0
        found[f"high:{name}"], found[f"low:{name}"] = max(0.0, value - CLEAR), max(0.0, -value - CLEAR)
    for each in findings:
        if each.rule in YOUNGER:
            continue
        said = WEIGHTS[each.severity] * each.confidence
        for key in (f"rule:{each.rule}", f"cause:{each.cause}"):
            found[key] = max(said, found.get(key, 0.0))
    return found


def likeness(
    found: Mapping[str, float], ruled_out: Collection[str] = (), model: Mapping[str, Any] | None = None
) -> Likeness:
    model = model_in_use() if model is None else model
    classes, names, weights = model["classes"], model["inputs"], model["matrix"]
    values = np.zeros(len(names))
    for name in found.keys() & names.keys():
        values[names[name]] = found[name]
    scores = weights @ values + model["intercepts"]
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    healthy = classes.index(HEALTHY)
    others = {
        name: float(share / max(1e-9, 1 - shares[healthy]))
        for name, share in zip(classes, shares, strict=True)
        if name in CAUSES and name not in ruled_out
    }
    most = _most_likely(others)
    told = {cause: _told(found, names, weights[classes.index(cause)] - weights[healthy]) for cause in most}
    return Likeness(float(shares[healthy]), others, told)


def _told(found: Mapping[str, float], names: Mapping[str, int], weights: np.ndarray) -> list[str]:
    """The traits that speak most for a cause. Those that are as usual, or say only what kind of run it is, are told if
    there are no others."""
    shares: dict[str, float] = defaultdict(float)
    for name, value in found.items():
        kind, _, trait = name.partition(":")
        if kind in ("of", "high", "low") and name in names:
            shares[trait] += float(weights[names[name]]) * value
    best = sorted((trait for trait, share in shares.items() if share > 0), key=lambda trait: -shares[trait])
    best = [trait for trait in best if abs(found[f"of:{trait}"]) > CLEAR and not LOGGED.search(trait)] or best
    return [_in_words(trait, found[f"of:{trait}"]) for trait in best[:SHOWN]]


def _in_words(trait: str, value: float) -> str:
    """A knob keeps its name; what a fact or column is called is told in words."""
    told = trait
    for fact, words in FACTS.items():
        told = told.replace(fact, words)
    told = WORDS.get(told, told if "." in told else told.replace("_", " ").replace(" against ", " relative to "))
    if HOLDS.search(trait) and value > CLEAR:
        return told
    return f"{told}: {'high' if value > CLEAR else 'low' if value < -CLEAR else 'as usual'}"


def resembling(like: Likeness, findings: Sequence[Finding]) -> list[Finding]:
    """The causes that no rule names, of the runs that look most like this one. What they advise is an experiment."""
    named = {each.cause for each in findings}
    return [
        Finding(
            RULE,
            "warning",
            cause,
            like.causes[cause],
            f"no rule proves it, but this run resembles known runs with this fault ({'; '.join(like.traits[cause])})",
            remedy=EXPERIMENTS.get(cause),
        )
        for cause in like.most_likely()
        if cause not in named
    ]


@cache
def model_in_use() -> Mapping[str, Any]:
    return unpacked(json_text.loads(files.read_text(Path(__file__).parent / "likeness.json")))


def unpacked(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "classes": stored["classes"],
        "inputs": {name: place for place, name in enumerate(stored["inputs"])},
        "intercepts": np.array(stored["intercepts"]) / SCALE,
        "matrix": np.array(stored["weights"]) / SCALE,
    }


def log_odds(share: float, least: float = 1e-4) -> float:
    kept = min(1 - least, max(least, share))
    return math.log(kept / (1 - kept))
