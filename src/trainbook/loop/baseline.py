"""The baseline of a classifier: a linear bag-of-words model on the same texts."""

from __future__ import annotations

from trainbook.data import Document, Request, open_records
from trainbook.data.linear import baseline_accuracy
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name


def baseline(config: Config, request: Request) -> dict[str, float]:
    """Its accuracy: fitted before training on the training split, measured on the validation split."""
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
