"""What a classifier is taught, and how well it does on samples of its own training when it is evaluated on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.chance import accuracies_of
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View
from trainbook.finding import Finding

STRONG_SMOOTHING = 0.5
WELL_BEGUN = 64  # training passes before the sample
WORSE, MUCH_WORSE = 0.1, 0.2  # of an accuracy
NATS = 0.2
ERRORS = 4.0  # standard errors
ALIKE = 0.3  # by which the loss of a sample may differ from the one that is logged, in parts of it


@rule(
    "smoothing-of-outputs",
    symptom="underfitting",
    looks_at="the distribution over classes that the gradient of the outputs pulls towards",
    thresholds=f"label smoothing of {STRONG_SMOOTHING:g} or more; nothing of a loss that goes below zero",
    source="the gradient of a cross entropy is the predicted less the asked-for distribution: exact",
    fault="label smoothing of 0.9 in a loss of the user's own",
    causes=("label-smoothing-high",),
    needs=("start:smoothing_seen",),
    elsewhere=True,
)
def smoothing_of_outputs(view: View) -> Iterator[Finding]:
    strength = float(view.fact("smoothing_seen"))
    if not view.has_floor:
        return  # no cross entropy is below zero: the gradient of another loss pulls elsewhere
    if strength >= STRONG_SMOOTHING:
        evidence = f"the loss spreads {strength:.0%} of each target over all classes (usual: 0 to 10%)"
        yield finding("warning", "label-smoothing-high", 0.9, evidence, steps=(0, view.last_step), strength=strength)


@rule(
    "labels-of-training",
    symptom="underfitting",
    looks_at="accuracy on a sample of the training data in evaluation mode, against the validation accuracy; where "
    "there is none, the losses",
    thresholds=f"{WORSE:.0%} and {ERRORS:g} standard errors below it, in a sample taken after {WELL_BEGUN} passes; or "
    f"a loss {NATS:g} nats and {ERRORS:g} standard errors above that of validation",
    source="reasoning: a model that is right about samples that it has never seen is as right about those it learned "
    "from, unless these have other labels. Harder samples in training look the same",
    fault="a third or more of the training labels wrong",
    causes=("labels-noisy",),
    needs=("start:training_sample", "eval:loss"),
    elsewhere=True,
)
def labels_of_training(view: View) -> Iterator[Finding]:
    sample = dict(view.fact("training_sample"))
    if float(sample["pass"]) < WELL_BEGUN:
        return
    rows, span = int(sample["rows"]), (0, view.last_step)
    if len(accuracies := accuracies_of(view)):
        validation, accuracy = float(np.median(_late(accuracies))), float(sample["accuracy"])
        if validation - accuracy > max(WORSE, ERRORS * _error(accuracy, rows)):
            evidence = (
                f"evaluated on {rows} samples of its training data, the model has an accuracy of {accuracy:.0%}; on "
                f"the validation split it has {validation:.0%}"
            )
            yield finding("warning", "labels-noisy", 0.75, evidence, steps=span, accuracy=accuracy)
        return
    losses = view.finite("loss", "eval")[1]
    if len(losses) and _is_logged_loss(view, sample):
        validation, loss = float(np.median(_late(losses))), float(sample["loss"])
        if loss - validation > max(NATS, ERRORS * float(sample["loss_error"])):
            evidence = (
                f"evaluated on {rows} samples of its training data, the model has a loss of {loss:.3g}; on the "
                f"validation split it has {validation:.3g}"
            )
            yield finding("warning", "labels-noisy", 0.7, evidence, steps=span, loss=loss)


@rule(
    "modes-of-batch-norm",
    symptom="overfitting",
    looks_at="accuracy on the same samples of the training data in training mode and in evaluation mode, in a model "
    "with batch norm",
    thresholds=f"{MUCH_WORSE:.0%} and {ERRORS:g} standard errors lower in evaluation mode, after {WELL_BEGUN} passes",
    source="the definition of batch norm: in evaluation mode it uses running statistics, which must fit the data",
    fault="running statistics that are never updated, or hardly",
    causes=("batchnorm-statistics",),
    needs=("start:training_sample", "start:has_batch_norm"),
    elsewhere=True,
)
def modes_of_batch_norm(view: View) -> Iterator[Finding]:
    sample = dict(view.fact("training_sample"))
    if float(sample["pass"]) < WELL_BEGUN or not view.fact("has_batch_norm"):
        return
    rows, accuracy, training = int(sample["rows"]), float(sample["accuracy"]), float(sample["training_accuracy"])
    if training - accuracy > max(MUCH_WORSE, ERRORS * _error(training, rows)):
        evidence = (
            f"on the same {rows} samples of the training data the accuracy is {training:.0%} in training mode and "
            f"{accuracy:.0%} in evaluation mode"
        )
        yield finding("warning", "batchnorm-statistics", 0.85, evidence, steps=(0, view.last_step), accuracy=accuracy)


def _late(values: np.ndarray) -> np.ndarray:
    return values[-max(1, len(values) // 3) :]


def _error(accuracy: float, rows: int) -> float:
    """Standard error of an accuracy; one of 0 or 1 may be off by a sample."""
    inside = min(max(accuracy, 1 / (rows + 1)), rows / (rows + 1))
    return math.sqrt(inside * (1 - inside) / rows)


def _is_logged_loss(view: View, sample: dict[str, Any]) -> bool:
    """The loss that is logged is the cross entropy of the sample: then that of validation can be compared with it."""
    logged = float(np.median(_late(view.losses()[1])))
    return abs(float(sample["training_loss"]) - logged) < ALIKE * abs(logged)
