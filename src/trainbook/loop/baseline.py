"""What a classifier has to beat: a linear model on the words of the same texts."""

from __future__ import annotations

from trainbook.data import Document, Request, open_records
from trainbook.data.linear import baseline_accuracy
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name


def baseline(config: Config, request: Request) -> dict[str, float]:
    """Fitted before training begins, on the texts that training sees, and judged on those that it is judged on."""
    if not config.evaluation.baseline or task_name(config) != "classify":
        return {}
    sides = open_records(config.data, request)
    if sides.validation is None:
        return {}
    texts, labels = _divided(list(sides.train()))
    found = baseline_accuracy(texts, labels, *_divided(list(sides.validation())))
    return {"baseline_accuracy": found["accuracy"]}


def _divided(documents: list[Document]) -> tuple[list[str], list[str]]:
    return [document.text for document in documents], [str(document.label) for document in documents]
