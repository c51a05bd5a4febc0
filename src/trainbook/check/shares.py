"""How much is too much: from which share on something is worth a remark, from which share on a run should not start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbook.check.result import CheckOutcome, failed, passed, remark


@dataclass(frozen=True)
class ShareLimit:
    of: str
    remark: float
    failure: float
    why: str


ANY, NEVER = 1e-9, 2.0  # more than nothing; more than there is: no share of it makes a run wrong

LIMITS = {
    "unknown": ShareLimit("unknown tokens", 0.01, 0.05, "one token in twenty is about one in each sentence"),
    "cut": ShareLimit("truncated tokens", 0.1, 0.25, "a quarter of the text is more than its end"),
    "padding": ShareLimit("padding", 0.5, NEVER, "padding costs time and changes no result"),
    "overlap": ShareLimit(
        "validation texts that are in training", 0.01, 0.05, "known texts raise a score by at most their share"
    ),
    "near_overlap": ShareLimit(
        "validation texts that are nearly in training", 0.05, 0.2, "related texts are in every collection"
    ),
    "duplicates": ShareLimit(
        "training records that are copies",
        0.01,
        0.2,
        "below a fifth, no part of the data counts much more than another",
    ),
    "near_duplicates": ShareLimit(
        "training texts that are near copies", 0.05, 0.2, "forms and templates are alike by nature"
    ),
    "dropped": ShareLimit(
        "records that are left out", 0.01, 0.2, "a run on four fifths of the records is not the run that was configured"
    ),
    "filtered": ShareLimit(
        "texts that `gopher_filter` leaves out", 0.2, 0.8, "a filter is asked to leave texts out, but not most of them"
    ),
    "batch_rows": ShareLimit(
        "rows of a batch that are copies", 0.05, 0.25, "the batch is smaller than configured by this share"
    ),
    "one_class_batches": ShareLimit(
        "batches with one class only", 0.25, 0.5, "an update of one class undoes what the last one taught"
    ),
    "majority": ShareLimit(
        "texts of the largest class", 2 / 3, 0.99, "always giving one answer is then right in 99 of 100 cases"
    ),
    "spelling": ShareLimit(
        "labels in another spelling of their class",
        ANY,
        0.2,
        "each spelling is trained and scored as a class of its own",
    ),
    "not_judged": ShareLimit(
        "training texts of classes that validation lacks", ANY, 0.2, "no score says how well these are predicted"
    ),
    "not_taught": ShareLimit(
        "validation texts of classes that training lacks", ANY, 0.05, "these are always predicted wrongly"
    ),
    "label_in_input": ShareLimit(
        "labels that one token gives away", 0.95, 0.98, "on real texts one token rarely decides nine labels in ten"
    ),
    "contradictions": ShareLimit(
        "texts with an equal text of another label", 0.01, 0.2, "of two such labels, one is always wrong"
    ),
    "label_noise": ShareLimit(
        "wrong labels, estimated", 0.1, 0.3, "some are in every data set; a third hides what is to be learned"
    ),
    "frozen": ShareLimit("new weights that are frozen", ANY, 0.5, "most of the model stays as it was drawn"),
    "overfit": ShareLimit(
        "the first loss that one batch keeps",
        0.05,
        0.2,
        "a small model needs longer for the last part of the loss only",
    ),
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
