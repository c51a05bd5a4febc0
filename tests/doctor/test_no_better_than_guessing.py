"""A classifier whose validation is never better than a guess: it is told so, whatever its training loss does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import Case, run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.causes import certainty_of
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

GUESS = math.log(4)


def classifier(
    trained: float, judged: float, accuracy: float | None, origin: str = "watch", steps: int = 300, **facts: Any
) -> RunRecord:
    """Four classes. The training loss falls from that of a guess to this; validation goes to this within noise."""

    def loss(step: int) -> float:
        return GUESS - (GUESS - trained) * step / steps + 0.03 * math.sin(7 * step)

    row = set_to(loss=loss, cross_entropy=None, probe_loss=None, epoch=None, clipped=None)
    evaluation = set_to(
        loss=lambda step: GUESS + (judged - GUESS) * min(1.0, 3 * step / steps) + 0.002 * math.sin(step),
        accuracy=None if accuracy is None else (lambda step: accuracy + 0.015 * math.sin(step)),
        targets=None,
    )
    known: dict[str, Any] = {"num_classes": 4, "uniform_loss": None, "prior_loss": None}
    if origin == "watch":
        known = {"uniform_loss": GUESS, "prior_loss": GUESS, "num_classes": 4, "objective": "cross entropy"}
        known |= {"targets_seen": 2048, "losses_seen": 64, "samples_seen": 4096, "batches_seen": 128}
    record = run(each=row, each_evaluation=evaluation, facts={**known, **facts}, steps=steps)
    settings = {"optimizer.type": "sgd", "optimizer.learning_rate": 0.05}
    if accuracy is None:
        evaluations = [{name: each[name] for name in each if name != "accuracy"} for each in record.evaluations]
        record = replace(record, evaluations=evaluations)
    return replace(record, origin=origin, config=None, settings=settings)


def found(record: RunRecord) -> dict[str, Finding]:
    return {each.cause: each for each in diagnose(record).findings}


CASES = [
    Case(
        "no-better-than-guessing",
        "constant-missed",
        lambda: classifier(1.25, 1.43, 0.27),
        lambda: classifier(1.25, 1.25, 0.45),
    ),
]


@pytest.mark.parametrize("origin", ["watch", "huggingface"])
@pytest.mark.parametrize(("trained", "judged"), [(1.28, 1.43), (1.05, 1.51)])
def test_labels_that_are_memorized_and_say_nothing_of_others_are_named(origin: str, trained: float, judged: float):
    """Neither more steps nor more data would help."""
    causes = found(classifier(trained, judged, 0.26, origin, steps=600))
    assert causes["labels-random"].severity == "error"
    assert "training-short" not in causes
    assert "overfitting" not in causes or causes["overfitting"].confidence < causes["labels-random"].confidence


def test_that_validation_is_a_guess_is_told_as_an_observation():
    said = found(classifier(1.28, 1.43, 0.27))["constant-missed"]
    assert certainty_of(said) == "observed"
    assert "1.386" in said.evidence and "25.0%" in said.evidence


@pytest.mark.parametrize(
    "record",
    [
        classifier(1.0, 1.2, 0.45),  # it learns
        classifier(0.3, 1.6, 0.5),  # it overfits: its predictions are better than a guess, its probabilities are not
    ],
)
def test_a_model_that_knows_more_than_a_guess_is_not_said_to_know_nothing(record: RunRecord):
    assert not {"constant-missed", "labels-random"} & found(record).keys()


def test_a_gap_of_a_model_that_generalizes_is_no_matter_of_the_labels():
    causes = found(classifier(0.4, 1.0, 0.6))
    assert "labels-random" not in causes and "overfitting" in causes


def test_a_validation_loss_without_an_accuracy_may_be_of_another_kind():
    """Such as a sum over the batch."""
    assert "constant-missed" not in found(classifier(1.0, 5.5, None))
