"""A classifier whose validation is never better than a guess: it is told so, whatever its training loss does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
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


def fine_tuned_on_noisy_labels(accuracy: float, *, first: float | None = None, loss: float = 0.7) -> RunRecord:
    """Two classes, as often as each other. A wrong label costs a good model much: its loss is as high as a guess's, and
    its batches differ by how many wrong labels they have."""
    draw = np.random.default_rng(0)
    row = set_to(
        loss=lambda step: loss * math.exp(0.5 * draw.standard_normal()),
        cross_entropy=None,
        probe_loss=None,
        epoch=None,
        clipped=None,
        update_ratio=4e-5,
        update_ratios=None,
    )
    evaluation = set_to(
        loss=loss, accuracy=lambda step: accuracy if first is None or step > 20 else first, targets=None
    )
    facts = {"uniform_loss": math.log(2), "prior_loss": math.log(2), "num_classes": 2, "objective": "cross entropy"}
    facts |= {"targets_seen": 2048, "losses_seen": 64, "samples_seen": 4096, "batches_seen": 128}
    record = run(each=row, each_evaluation=evaluation, facts=facts)
    settings = {"optimizer.type": "adamw", "optimizer.learning_rate": 2e-5, "model.pretrained": "base"}
    return replace(record, origin="huggingface", config=None, settings=settings)


@pytest.mark.parametrize("loss", [0.5, 0.7, 1.2])
@pytest.mark.parametrize("accuracy", [0.8, 0.94])
def test_a_good_model_that_is_fine_tuned_on_noisy_labels_is_neither_stuck_nor_a_guess(accuracy: float, loss: float):
    findings = diagnose(fine_tuned_on_noisy_labels(accuracy, loss=loss)).findings
    blamed = {"learning-rate-low", "base-untrained", "constant-missed"}
    assert [each.cause for each in findings if each.severity != "info" and each.cause in blamed] == []
    assert not [each.evidence for each in findings if "guessing" in each.evidence and each.rule != "likeness"]


@pytest.mark.parametrize(("accuracy", "first"), [(0.52, None), (0.58, None), (0.8, 0.5)])
def test_a_fine_tuned_model_that_is_about_a_guess_at_first_is_still_told_a_low_rate(accuracy: float, first: float):
    findings = found(fine_tuned_on_noisy_labels(accuracy, first=first))
    assert findings["learning-rate-low"].severity == "warning"
