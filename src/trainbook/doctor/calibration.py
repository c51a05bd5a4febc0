"""From what rules say to how often they are right: the confidence that is shown.

A rule states how sure it is from its own evidence alone. How often a cause that is stated like this is the right one
was counted on runs with known faults and on healthy ones, in programs of five kinds (benchmarks/strangers), and is a
logistic function of what the report looks like: what rules say, how severe it is, what else is suspected, and where
the run comes from. `calibration.json` holds its weights; `benchmarks/strangers/calibrate.py` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from trainbook.bounded import files, json_text
from trainbook.doctor.causes import CAUSES
from trainbook.finding import ORDER, Finding

LEAST, MOST = 0.02, 0.98


def calibrated(findings: Sequence[Finding], origin: str) -> list[Finding]:
    """One finding for each cause, in order; with the confidence that was measured, and sorted by it."""
    model = _model()
    found = []
    for each in findings:
        is_certain = CAUSES[each.cause].is_observed
        sure = each.confidence if is_certain else probability(features(each, findings, origin), model)
        found.append(replace(each, confidence=sure))
    return sorted(found, key=lambda each: (ORDER[each.severity], -each.confidence))


def features(finding: Finding, findings: Iterable[Finding], origin: str) -> dict[str, float]:
    """What the probability depends on, by name; those of rules and origins are 1 for the one that it is."""
    others = [each for each in findings if each.cause != finding.cause and each.severity != "info"]
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


def log_odds(confidence: float) -> float:
    kept = min(MOST, max(LEAST, confidence))
    return math.log(kept / (1 - kept))


def probability(found: Mapping[str, float], model: Mapping[str, Any]) -> float:
    weights = model["weights"]
    total = model["intercept"] + sum(weights.get(name, 0.0) * value for name, value in found.items())
    return min(MOST, max(LEAST, 1 / (1 + math.exp(-total))))


@cache
def _model() -> Mapping[str, Any]:
    return json_text.loads(files.read_text(Path(__file__).parent / "calibration.json"))
