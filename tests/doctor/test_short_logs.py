"""Logs of other tools with few rows, the first of which is a mean over some steps."""

from __future__ import annotations

import math

import pytest
from tests.doctor.records import by_rules
from tests.doctor.test_other_logs import Curve

from trainbook.doctor import diagnose
from trainbook.finding import Finding
from trainbook.runs.run_record import Origin, RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")


def log(
    loss: Curve,
    validation: Curve,
    accuracy: Curve | None = None,
    *,
    rate: float = 2e-3,
    optimizer: str | None = "adamw",
    origin: Origin = "csv",
) -> RunRecord:
    """160 steps, a row for every tenth, an evaluation for every fortieth."""
    rows = [{"step": step, "loss": loss(step), "learning_rate": rate} for step in range(10, 161, 10)]
    judged = [
        {"step": step, "loss": validation(step), **({"accuracy": accuracy(step)} if accuracy else {})}
        for step in range(20, 161, 20)
    ]
    return RunRecord("theirs", rows, judged, settings={"optimizer.type": optimizer} if optimizer else {}, origin=origin)


def first(record: RunRecord) -> Finding:
    return diagnose(record).findings[0]


def learns(step: int) -> float:
    return 0.15 + 1.25 * math.exp(-step / 30)


def test_an_accuracy_far_below_chance_is_one_of_other_labels():
    told = first(log(learns, lambda step: 0.8 + step / 50, lambda step: 0.03))
    assert (told.severity, told.cause) == ("error", "labels-mapped")


def test_an_accuracy_that_such_a_loss_cannot_have_is_computed_wrongly():
    told = first(log(learns, lambda step: learns(step) + 0.05, lambda step: 0.2))
    assert told.cause == "metric-flat"
    healthy = diagnose(log(learns, lambda step: learns(step) + 0.05, lambda step: math.exp(-learns(step)))).findings
    assert "metric-flat" not in {each.cause for each in healthy}


def test_validation_that_is_far_worse_than_the_untrained_model_from_the_first_is_other_data():
    record = log(learns, lambda step: 5 + math.sin(step))
    assert first(record).cause == "validation-drift" and "the first evaluation" in first(record).evidence
    assert by_rules(record)["validation-drift"] == "error"
    overfits = diagnose(log(learns, lambda step: 0.8 + step / 100)).findings
    assert "validation-drift" not in {each.cause for each in overfits}


def test_validation_that_is_bad_once_the_training_data_is_memorized_is_overfitting_and_no_other_data():
    def memorized(step: int) -> float:
        return 1e-3 + 1.4 * math.exp(-step / 4)

    record = log(memorized, lambda step: 3.0 + step / 200, lambda step: 0.5)
    assert first(record).cause == "overfitting"
    assert "validation-drift" not in by_rules(record)


def test_what_was_learned_and_is_lost_is_no_matter_of_the_targets():
    def rises(step: int) -> float:
        return 1.0 - step / 160 if step <= 80 else 0.5 + (step - 80) / 100

    told = first(log(rises, rises))
    assert told.cause == "learning-rate-high"


def test_a_low_rate_of_adam_is_named_while_the_loss_still_falls():
    def falls(step: int) -> float:
        return 1.1 - step / 8000

    told = first(log(falls, falls, rate=3e-5))
    assert told.cause == "learning-rate-low"


def test_a_loss_below_zero_is_not_one_of_a_model_of_transformers():
    def settles(step: int) -> float:
        return -3.0 - 18 * (1 - math.exp(-step / 60))

    told = first(log(settles, settles, origin="huggingface"))
    assert (told.severity, told.cause) == ("error", "loss-unbounded")
    assert "loss-unbounded" not in {each.cause for each in diagnose(log(settles, settles)).findings}
