"""One report never advises to turn a knob both ways: the better supported finding stays, and names what speaks against
it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainbook.doctor.finding import Finding
from trainbook.doctor.view import View
from trainbook.knobs.aliases import knobs_named

LENGTH = "the length of the run"
LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")

# What a remedy for the cause turns, and whether up or down; whatever the override of its finding is.
TURNS: Mapping[str, Mapping[str, int]] = {
    "learning-rate-high": {"optimizer.learning_rate": -1},
    "learning-rate-low": {"optimizer.learning_rate": 1},
    "batch-small": {"batch.global_batch_size": 1},
    "batch-large": {"batch.global_batch_size": -1},
    "clipping-off": {"batch.max_grad_norm": -1},
    "clipping-tight": {"batch.max_grad_norm": 1},
    "beta2-high": {"optimizer.beta2": -1},
    "beta2-low": {"optimizer.beta2": 1},
    "init-large": {"model.initializer_range": -1},
    "init-small": {"model.initializer_range": 1},
    "dropout-high": {"model.dropout": -1},
    "training-short": {LENGTH: 1},
    "overfitting": {LENGTH: -1, "model.dropout": 1},
    "dataset-tiny": {LENGTH: -1, "model.dropout": 1},
}


def without_contradictions(findings: Iterable[Finding], view: View) -> list[Finding]:
    """Of findings in the order of the report: what turns a knob against a finding before it becomes a remark there."""
    kept: list[Finding] = []
    directions: list[dict[str, int]] = []
    for each in findings:
        turned = turns(each, view)
        opponent = _opponent(turned, directions)
        if opponent is None:
            kept.append(each)
            directions.append(turned)
        elif not _says_the_same(each.evidence, kept[opponent].evidence):
            first = kept[opponent]
            kept[opponent] = replace(first, evidence=f"{first.evidence}; but: {each.evidence}")
    return kept


def turns(finding: Finding, view: View) -> dict[str, int]:
    """The knobs that this finding would raise (1) or lower (-1)."""
    found: dict[str, int] = {}
    if finding.remedy is None and finding.cause in TURNS:
        found |= TURNS[finding.cause]
    for part in (finding.override or "").split():
        name, _, value = part.partition("=")
        path = next((knob.path for knob in knobs_named(name)), None)
        if path == "evaluation.early_stopping_patience":
            found[LENGTH] = -1
            continue
        present = view.setting(path) if path else None
        if path is not None and isinstance(present, (int, float)) and (wanted := _number(value)) not in (None, present):
            found[LENGTH if path in LENGTHS else path] = 1 if wanted > present else -1  # pyright: ignore
    return found


def _opponent(turned: Mapping[str, int], directions: Sequence[Mapping[str, int]]) -> int | None:
    for place, earlier in enumerate(directions):
        if any(earlier.get(knob, direction) != direction for knob, direction in turned.items()):
            return place
    return None


def _says_the_same(evidence: str, first: str) -> bool:
    """Two numbers in common are one fact in other words, which does not speak against itself."""
    numbers, known = (set(re.findall(r"\d[\d.,e+-]*\d|\d", each)) for each in (evidence, first))
    return evidence in first or len(numbers & known) >= 2


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
