"""Logs of other tools, which say little: neither the size of an evaluation nor the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.doctor.records import by_rules
from tests.doctor.test_fit_runs import fitted, found

from trainbook.doctor import diagnose
from trainbook.doctor.remedies import lower_rate, raise_rate
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")

Curve = Callable[[int], float]


def log(
    loss: Curve,
    validation: Curve,
    rate: float = 3e-3,
    accuracy: Curve | None = None,
    optimizer: str | None = None,
) -> RunRecord:
    """300 steps of a classifier of six classes, a row for the first step and for every fifth."""
    noise = np.random.default_rng(0)
    rows = [
        {"step": step, "loss": loss(step) * math.exp(0.02 * noise.standard_normal()), "learning_rate": rate}
        for step in [1, *range(5, 301, 5)]
    ]
    judged = [{"step": step, "loss": validation(step)} for step in range(20, 301, 20)]
    judged = [row | ({"accuracy": accuracy(row["step"])} if accuracy else {}) for row in judged]
    settings = {"optimizer.type": optimizer} if optimizer else {}
    return RunRecord("theirs", rows, judged, settings=settings, origin="csv")


def only(record: RunRecord, rule: str) -> list[Finding]:
    return [each for each in diagnose(record).findings if each.rule == rule]


def learns(step: int) -> float:
    return 0.02 + 1.75 * math.exp(-step / 40)


def wobbles(step: int) -> float:
    return 0.09 + 1.6 * math.exp(-step / 30) + 0.004 * (-1) ** (step // 20)


def test_the_noise_of_an_evaluation_of_unknown_size_is_not_blamed_on_the_learning_rate():
    def ends_worse(step: int) -> float:
        return wobbles(step) + 0.008 * (step == 300)

    (told,) = only(log(learns, ends_worse), "validation-fluctuates")
    assert (told.severity, told.cause, told.override) == ("info", "evaluation-noisy", None)
    assert "over how many samples was not logged" in told.evidence


def test_nothing_is_said_of_the_wobble_of_a_validation_loss_that_ends_at_its_best():
    assert wobbles(300) == min(wobbles(step) for step in range(20, 301, 20))
    assert only(log(learns, wobbles), "validation-fluctuates") == []


def shoots_up(step: int) -> float:
    """As measured of Adam at 0.3: up at once, and then at the loss of guessing."""
    return 1.774 if step == 1 else 1.81 + 0.1 * math.exp(-step / 12)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("height", [0.1, 3.0, 30.0])
def test_a_run_that_was_never_below_its_first_loss_names_an_unusual_learning_rate(rate: float, height: float):
    def loss(step: int) -> float:
        return 1.774 if step == 1 else 1.81 + height * math.exp(-step / 12)

    record = log(loss, lambda step: 1.84 + height * math.exp(-step / 12), rate, accuracy=lambda step: 0.17)
    first = diagnose(record).findings[0]
    assert (first.cause, first.override) == ("learning-rate-high", "learning_rate=0.001")
    assert first.severity != "info" and by_rules(record)["learning-rate-high"] == "error"
    assert "usual: up to 0.001 with Adam, 0.1 with SGD and momentum" in first.evidence
    assert "model-small" not in [each.cause for each in diagnose(record).findings]


def test_with_a_named_optimizer_its_own_usual_learning_rate_counts():
    sgd = log(shoots_up, shoots_up, 0.1, optimizer="sgd")
    assert "learning-rate-high" not in [each.cause for each in diagnose(sgd).findings]
    adam = log(shoots_up, shoots_up, 0.3, optimizer="adamw")
    assert diagnose(adam).findings[0].cause == "learning-rate-high"
    assert lower_rate(View(adam)) == "learning_rate=0.001"


def test_a_loss_that_shoots_up_and_then_falls_below_its_start_has_learned():
    def recovers(step: int) -> float:
        return 1.774 if step == 1 else 0.4 + 2.6 * math.exp(-step / 40)

    assert only(log(recovers, recovers, 0.3), "not-decreasing") == []


def test_only_a_model_that_has_learned_something_is_called_too_small():
    def flat_at(level: float) -> Curve:
        return lambda step: level + (1.79 - level) * math.exp(-step / 10)

    assert only(log(flat_at(1.1), flat_at(1.1)), "plateau") != []
    assert only(log(flat_at(1.79), flat_at(1.79)), "plateau") == []
    assert only(log(flat_at(1.7), flat_at(1.7)), "plateau") == []


def test_an_accuracy_of_guessing_is_no_model_that_is_too_small():
    """A start with large weights falls to the loss of guessing, ln 6, and stays there."""

    def falls_to_chance(step: int) -> float:
        return math.log(6) + 2.0 * math.exp(-step / 10)

    by_chance = log(falls_to_chance, falls_to_chance, accuracy=lambda step: 0.17)
    assert only(by_chance, "plateau") == []
    better = log(falls_to_chance, falls_to_chance, accuracy=lambda step: 0.4)
    assert only(better, "plateau") != []


def test_a_learning_rate_of_nearly_nothing_is_raised_to_where_updates_are_usual():
    def decaying(step: int) -> float:
        return 1.9e-9 if step <= 80 else 1e-10

    record = fitted("optimizer.learning_rate=1e-9", loss=lambda step: 2.0, update_ratio=decaying)
    low = found(record, "learning-rate-low")
    assert low is not None and low.override == "learning_rate=0.0005"
    assert raise_rate(View(log(learns, learns, 1e-9))) == "learning_rate=0.0003"


def test_a_lowest_loss_is_placed_where_it_was():
    def first_class_first(step: int) -> float:
        return 1.72 if step == 1 else 0.02 if step <= 10 else 9.0 if step <= 20 else 1.85

    (told,) = only(log(first_class_first, lambda step: 1.9), "divergence")
    assert told.steps is not None and 5 <= told.steps[0] <= 10


def test_a_loss_that_stays_at_guessing_behind_a_first_row_that_shot_up_names_the_learning_rate():
    """As measured of Adam at 0.3 in rows that are means over ten steps: no row has the loss of the untrained model."""
    noise = np.random.default_rng(1)
    rows = [
        {"step": step, "loss": (12.3 if step == 10 else 1.58) + 0.02 * noise.standard_normal(), "learning_rate": 0.3}
        for step in range(10, 1501, 10)
    ]
    judged = [
        {"step": step, "loss": 1.59 + 0.02 * noise.standard_normal(), "accuracy": (0.23, 0.27)[step // 100 % 2]}
        for step in range(100, 1501, 100)
    ]
    record = RunRecord("theirs", rows, judged, origin="csv")
    (told,) = only(record, "not-decreasing")
    assert told.cause == "learning-rate-high" and by_rules(record)["learning-rate-high"] == "error"
    assert "27%, no better than guessing" in told.evidence or "23%, no better than guessing" in told.evidence


def test_where_the_optimizer_is_unknown_a_usual_rate_of_adam_is_not_called_high_enough_while_the_loss_still_falls():
    def falls(step: int) -> float:
        return 1.6 - 0.00003 * step

    def rows(loss: Curve) -> RunRecord:
        return RunRecord(
            "theirs",
            [{"step": step, "loss": loss(step), "learning_rate": 1e-4} for step in range(10, 1501, 10)],
            [{"step": step, "loss": loss(step)} for step in range(100, 1501, 100)],
            origin="csv",
        )

    (told,) = only(rows(falls), "not-decreasing")
    assert told.cause == "learning-rate-low" and "does not name the optimizer" in told.evidence
    (told,) = only(rows(lambda step: 1.6 + 0.001 * (-1) ** (step // 10)), "not-decreasing")
    assert told.cause == "labels-random"


def test_training_labels_that_were_memorized_are_not_called_overfitting_if_no_evaluation_beat_the_untrained_model():
    def memorizes(step: int) -> float:
        return 1.79 * math.exp(-step / 250)

    def rises(step: int) -> float:
        return 1.79 + step / 400

    told = diagnose(log(memorizes, rises, accuracy=lambda step: 0.16 + 0.02 * (step // 20 % 2))).findings
    assert told[0].cause == "labels-random" and "no evaluation was better than the untrained model" in told[0].evidence
    overfits = diagnose(log(memorizes, lambda step: 1.2 + abs(step - 60) / 300)).findings
    assert overfits[0].cause == "overfitting"


def stages(step: int) -> float:
    return 1e-3 if step < 100 else 1e-4 if step < 200 else 1e-5


@pytest.mark.parametrize(("rate", "is_told"), [(stages, False), (lambda step: 1e-3 * 0.5 ** min(30, step // 5), True)])
def test_a_schedule_in_stages_does_not_end_early(rate: Curve, is_told: bool):
    rows = [{"step": step, "loss": learns(step), "learning_rate": rate(step)} for step in range(1, 301, 2)]
    assert bool(only(RunRecord("theirs", rows, [], origin="csv"), "rate-ends-early")) == is_told
