"""From what rules say and what a run looks like to how often that is right: the confidence that is shown.

A rule states how sure it is from its own evidence alone. How often a cause that is stated like this is the right one
was counted on runs with known faults and on healthy ones, in programs of five kinds (benchmarks/strangers). Of a run
that has ended, the causes that runs like it had are candidates as well (doctor/likeness.py). `calibration.json` holds
three logistic functions, which benchmarks/strangers/calibrate.py fits:

- `causes`: whether a candidate is the right cause, by what rules say, how severe it is, what else is suspected, what
  the run looks like, and where it comes from. It gives the order of the report.
- `run`: whether anything is wrong with the run at all. `thresholds` says from which probability on what is said.
- `shown`: how often the first statement of a report was right, by its probability.

`rules` is the function for runs of which only rules can judge: those that go on, and configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trainbook.bounded import files, json_text
from trainbook.doctor import likeness
from trainbook.doctor.causes import CAUSES, HINDRANCES, is_observed
from trainbook.doctor.likeness import RULE, Likeness
from trainbook.finding import ORDER, Finding

LEAST, MOST = 0.02, 0.98
OURS = "trainbook"  # runs of which rules know most: they are judged by those, and likeness only adds to that
SETTLED = 0.8  # of an error that was measured: nothing is named beside it that the run only resembles
KEPT = 0.5  # that it is right: such a finding stays as severe as its rule says
LIKELY = 0.5  # of a cause that keeps a model from learning; and what an error is at least …
WORTH_NAMING = 0.05  # of a cause that no rule names …
NAMED = 3  # … and it is among so many
TELLING = 0.1  # where no rule warns: of the likeliest cause; with a lower one nothing is said …
CERTAIN = 0.9  # … unless it is as likely as this that something is wrong
TOLD_APART = 1  # digits of a confidence: the calibration is off by about .04


class Thresholds(NamedTuple):
    """Of the probability that anything is wrong with a run."""

    suspect: float  # from here on, causes that no rule names are named beside those of rules …
    alone: float  # … and from here on also where no rule warns of anything
    act: float  # from here on an error is one; below it, unless it is more likely right than wrong, a warning


class Weighed(NamedTuple):
    """What is believed of a run that has ended, before anything is said."""

    candidates: Sequence[Finding]  # the likeliest first
    right: Mapping[str, float]  # of each cause, the probability that it is the right one …
    shown: Mapping[str, float]  # … and how often the first statement of a report with this probability was right
    wrong: float  # the probability that anything is wrong with the run


def calibrated(
    findings: Sequence[Finding], origin: str, like: Likeness | None = None, model: Mapping[str, Any] | None = None
) -> list[Finding]:
    """One finding for each cause, in order; with the confidence that was measured, and sorted by it."""
    model = _model() if model is None else model
    if like is None:
        return _by_rules(findings, origin, model)
    weighed = weigh(findings, origin, like, how_right(findings, origin, like, model), model)
    return said_of(findings, origin, weighed, Thresholds(**model["thresholds"]), model)


def _by_rules(findings: Sequence[Finding], origin: str, model: Mapping[str, Any]) -> list[Finding]:
    found = []
    for each in findings:
        is_certain = CAUSES[each.cause].is_observed
        sure = each.confidence if is_certain else probability(features(each, findings, origin), model["rules"])
        found.append(_as_severe_as_sure(replace(each, confidence=sure)))
    return sorted(found, key=_place)


def _as_severe_as_sure(finding: Finding) -> Finding:
    """An error asks to act on its cause: on one that is likelier not the right one nobody should, and it is a warning.
    What was measured is so in any case."""
    is_doubtful = finding.severity == "error" and finding.confidence < LIKELY and not is_observed(finding)
    return replace(finding, severity="warning") if is_doubtful else finding


def _is_a_guess(finding: Finding) -> bool:
    """Of what is no remark: likelier wrong than right, and nobody has measured it."""
    is_symptom = bool(finding.explained_by) and not finding.is_observed
    is_known = is_observed(finding) and not is_symptom
    return finding.severity != "info" and finding.confidence < LIKELY and not is_known


def _place(finding: Finding) -> tuple[int, bool, float]:
    """Where it stands: by severity, what is measured or likely before guesses, and by confidence as far as the
    calibration tells one from the other. What it holds for equal stays in the order of rules, which see more of a run
    than how often they were right."""
    return ORDER[finding.severity], _is_a_guess(finding), -round(finding.confidence, TOLD_APART)


def weigh(
    findings: Sequence[Finding], origin: str, like: Likeness, right: Mapping[str, float], model: Mapping[str, Any]
) -> Weighed:
    shown = _exclusive(findings, {cause: _shown(share, model) for cause, share in right.items()})
    ranking = sorted(candidates(findings, like), key=lambda each: -shown[each.cause])
    return Weighed(ranking, right, shown, probability(run_features(findings, like, right, origin), model["run"]))


def said_of(
    findings: Sequence[Finding], origin: str, weighed: Weighed, thresholds: Thresholds, model: Mapping[str, Any]
) -> list[Finding]:
    """Of a run that has ended."""
    ranking, right, shown, wrong = weighed
    is_warned = any(each.severity != "info" for each in _known(findings))
    alone = thresholds.alone if max(right.values(), default=0.0) >= TELLING else max(thresholds.alone, CERTAIN)
    is_suspect = wrong >= (thresholds.suspect if is_warned else alone)
    if any(each.severity == "error" and each.is_observed and shown[each.cause] >= SETTLED for each in findings):
        ranking = [each for each in ranking if each.rule != RULE]  # what is wrong was measured: no need of guesses
    if origin == OURS:
        alike = [each for each in ranking[:NAMED] if each.rule == RULE and right[each.cause] >= WORTH_NAMING]
        named = [replace(each, confidence=shown[each.cause]) for each in alike if is_suspect]
        ours = _by_rules(findings, origin, model)
        return sorted([*ours, *named], key=_place)
    found: list[Finding] = []
    for place, each in enumerate(ranking):
        is_sure = CAUSES[each.cause].is_observed
        if each.rule == RULE and not (is_suspect and place < NAMED and right[each.cause] >= WORTH_NAMING):
            continue
        is_kept = is_sure or right[each.cause] >= KEPT
        if not (is_suspect or is_kept):
            each = replace(each, severity="info")
        elif each.severity == "error" and wrong < thresholds.act and not is_kept:
            each = replace(each, severity="warning")
        elif place == 0 and each.severity == "info" and is_suspect and is_warned and not each.explained_by:
            each = replace(each, severity="warning")  # a remark would stand behind less likely causes
        found.append(_as_severe_as_sure(each if is_sure else replace(each, confidence=shown[each.cause])))
    # Stable: the most likely first, but what nobody has seen never before what was.
    has_seen = any(each.severity == "error" and CAUSES[each.cause].is_observed for each in found)
    return sorted(found, key=lambda each: (each.severity == "info", _is_a_guess(each), has_seen and each.rule == RULE))


def _exclusive(findings: Sequence[Finding], shown: Mapping[str, float]) -> dict[str, float]:
    """A cause that is named because nothing else is left to suspect is not the right one where its explanation is, or
    anything else that keeps a model from learning: it cannot be likelier than that all of these are wrong."""
    hindrances = [
        shown[each.cause]
        for each in findings
        if each.cause in HINDRANCES and each.severity != "info" and not each.is_by_exclusion
    ]
    likely = [share for share in hindrances if share >= LIKELY]
    limits = {
        each.cause: 1 - max([shown.get(each.explained_by, 0.0), *likely]) for each in findings if each.is_by_exclusion
    }
    return {cause: min(share, limits.get(cause, 1.0)) for cause, share in shown.items()}


def candidates(findings: Sequence[Finding], like: Likeness) -> list[Finding]:
    """What rules name, and what runs that look like this one had."""
    return [*findings, *likeness.resembling(like, findings)]


def how_right(findings: Sequence[Finding], origin: str, like: Likeness, model: Mapping[str, Any]) -> dict[str, float]:
    """Of each candidate, by cause, the probability that it is the right one."""
    return {
        each.cause: probability(candidate_features(each, findings, like, origin), model["causes"])
        for each in candidates(findings, like)
    }


def _shown(right: float, model: Mapping[str, Any]) -> float:
    return probability({"right": log_odds(right)}, model["shown"])


def features(finding: Finding, findings: Iterable[Finding], origin: str) -> dict[str, float]:
    """What the probability depends on, by name; the rule that speaks and the origin of the run are indicators."""
    others = [each for each in _known(findings) if each.cause != finding.cause and each.severity != "info"]
    rivals = [each for each in others if not each.explained_by]
    return {
        "said": log_odds(finding.confidence),
        "error": float(finding.severity == "error"),
        "info": float(finding.severity == "info"),
        "explained": float(bool(finding.explained_by)),
        "supported": math.log1p(len(finding.also)),
        "rivals": math.log1p(len(rivals)),
        "best_rival": max((log_odds(each.confidence) for each in rivals), default=log_odds(0.0)),
        f"origin:{origin}": 1.0,
        f"rule:{finding.rule}": 1.0,
    }


def _known(findings: Iterable[Finding]) -> list[Finding]:
    """Those of rules that the functions were fitted on."""
    return [each for each in findings if each.rule not in likeness.YOUNGER]


def candidate_features(finding: Finding, findings: Sequence[Finding], like: Likeness, origin: str) -> dict[str, float]:
    """The same, with what the run looks like. Of a cause that no rule names there is nothing else."""
    looks = {
        "like": likeness.log_odds(like.causes.get(finding.cause, 0.0)),
        "known": float(finding.cause in like.causes),
        "most_like": float(like.most_likely()[:1] == [finding.cause]),
        "suspect": likeness.log_odds(1 - like.healthy),
        f"origin:{origin}": 1.0,
    }
    if finding.rule == RULE:
        warned = [each for each in _known(findings) if each.severity != "info"]
        best = max((log_odds(each.confidence) for each in warned), default=log_odds(0.0))
        return {**looks, "unnamed": 1.0, "best_named": best}
    return {**looks, **features(finding, findings, origin), "observed": float(CAUSES[finding.cause].is_observed)}


def run_features(
    findings: Sequence[Finding], like: Likeness, right: Mapping[str, float], origin: str
) -> dict[str, float]:
    warned = [each for each in _known(findings) if each.severity != "info"]
    return {
        "suspect": likeness.log_odds(1 - like.healthy),
        "said": max((log_odds(each.confidence) for each in warned), default=log_odds(0.0)),
        "error": float(any(each.severity == "error" for each in warned)),
        "warned": float(bool(warned)),
        "findings": math.log1p(len(warned)),
        "right": 4 * max(right.values(), default=0.0),
        f"origin:{origin}": 1.0,
    }


def log_odds(confidence: float) -> float:
    return likeness.log_odds(confidence, LEAST)


def probability(found: Mapping[str, float], model: Mapping[str, Any]) -> float:
    weights = model["weights"]
    total = model["intercept"] + sum(weights.get(name, 0.0) * value for name, value in found.items())
    return min(MOST, max(LEAST, 1 / (1 + math.exp(-total))))


@cache
def _model() -> Mapping[str, Any]:
    return json_text.loads(files.read_text(Path(__file__).parent / "calibration.json"))
