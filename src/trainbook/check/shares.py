"""How much is too much: from which share on something is worth a remark, from which share on a run should not start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbook.check.result import CheckOutcome, failed, passed, remark


@dataclass(frozen=True)
class ShareLimit:
    remark: float
    failure: float
    why: str


NEVER = 2.0  # of all: no share of it makes a run wrong

LIMITS = {
    "overlap": ShareLimit(
        0.01, 0.05, "texts known from training raise a score by at most their share: 5 % is as much as a usual change"
    ),
    "near_overlap": ShareLimit(0.05, 0.2, "related texts are in every collection, and a part of each is new"),
    "duplicates": ShareLimit(0.01, 0.2, "a copy counts twice: below a fifth, no part of the data counts much more"),
    "near_duplicates": ShareLimit(0.05, 0.2, "forms and templates are alike by nature"),
    "batch_rows": ShareLimit(0.05, 0.25, "a batch with a quarter of copies is a quarter smaller than configured"),
    "one_class_batches": ShareLimit(0.25, 0.5, "an update of one class undoes what the last one taught"),
    "unknown": ShareLimit(0.01, 0.05, "one token in twenty is about one in each sentence"),
    "cut": ShareLimit(0.1, 0.25, "the end of a text often repeats it; a quarter is no longer the end"),
    "padding": ShareLimit(0.5, NEVER, "padding costs time and changes no result"),
    "dropped": ShareLimit(0.01, 0.2, "a run on four fifths of the records is another run than the one configured"),
    "filtered": ShareLimit(0.2, 0.8, "a filter was asked to leave records out, but hardly to leave out most of them"),
    "majority": ShareLimit(2 / 3, 0.99, "always giving one answer is then right in 99 of 100 cases"),
    "spelling": ShareLimit(
        1e-9, 0.2, "one class as two is taught by half of its texts, and judged as wrong by the rest"
    ),
    "not_judged": ShareLimit(1e-9, 0.2, "no score says how well classes are predicted that validation lacks"),
    "not_taught": ShareLimit(1e-9, 0.05, "validation texts of a class that training lacks are always wrong"),
    "label_in_input": ShareLimit(0.95, 0.98, "on real texts a single token rarely decides nine labels in ten"),
    "contradictions": ShareLimit(0.01, 0.2, "of two equal texts with different labels, one is always wrong"),
    "label_noise": ShareLimit(
        0.1, 0.3, "a few wrong labels are in every data set; a third hides what is to be learned"
    ),
    "frozen": ShareLimit(1e-9, 0.5, "random weights that are never trained pass on what they happen to pass on"),
    "overfit": ShareLimit(0.05, 0.2, "a small model may need longer for the last part of the loss, not for most of it"),
}


def by_share(
    limit: str, share: float, evidence: str, cause: str, advice: str, override: str | None = None, /, **numbers: Any
) -> CheckOutcome:
    """Passed below the limit for a remark, failed from that of a failure on."""
    known = LIMITS[limit]
    if share < known.remark:
        return passed(evidence, **numbers)
    made = failed if share >= known.failure else remark
    return made(evidence, cause, advice, override, **numbers)


def worst(*outcomes: CheckOutcome) -> CheckOutcome:
    """The first failure, or else the first remark, or else the first of all."""
    order = ("failed", "remark", "passed", "skipped")
    return min(outcomes, key=lambda outcome: order.index(outcome.status))
