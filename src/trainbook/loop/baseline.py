"""The baseline to beat: of a classifier a linear bag-of-words model on the same texts, of a regression the mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainbook.data import Document, Request, open_records
from trainbook.data.linear import baseline_accuracy
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name

ACCURACY, SQUARED_ERROR = "baseline_accuracy", "baseline_mean_squared_error"


def baseline(config: Config, request: Request) -> dict[str, float]:
    """Fitted before training on the training split, measured on the validation split."""
    task = task_name(config)
    if not config.evaluation.baseline or task not in ("classify", "regress"):
        return {}
    sides = open_records(config.data, request)
    if sides.validation is None:
        return {}
    if task == "regress":
        train, validation = (np.array(_divided(list(side()))[1]) for side in (sides.train, sides.validation))
        return {SQUARED_ERROR: float(np.square(validation - train.mean()).mean())}
    (texts, labels), (others, truth) = (_divided(list(side())) for side in (sides.train, sides.validation))
    return {ACCURACY: baseline_accuracy(texts, list(map(str, labels)), others, list(map(str, truth)))["accuracy"]}


def _divided(documents: list[Document]) -> tuple[list[str], list[Any]]:
    return [document.text for document in documents], [document.label for document in documents]


def in_words(to_beat: dict[str, float]) -> str:
    if ACCURACY in to_beat:
        return f"a linear bag-of-words model reaches an accuracy of {to_beat[ACCURACY]:.1%}"
    error = to_beat[SQUARED_ERROR]
    return f"always predicting the mean of the training targets has a mean squared error of {error:.4g}"
