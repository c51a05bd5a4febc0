"""The change for a cause can act against it, or there is none, and what to do by hand is said instead."""

from __future__ import annotations

import pytest
from tests.doctor.records import run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.causes import CAUSES
from trainbook.doctor.outcomes import OUTCOMES
from trainbook.doctor.treatments import BY_HAND, by_hand, is_comparable, treatment_of
from trainbook.doctor.view import View


@pytest.mark.parametrize(
    ("cause", "present", "change"),
    [
        ("clipping-off", "batch.max_grad_norm=null", "batch.max_grad_norm=1"),
        ("clipping-off", "batch.max_grad_norm=0.3", None),
        ("clipping-tight", "batch.max_grad_norm=0.3", "batch.max_grad_norm=1"),
        ("clipping-tight", "batch.max_grad_norm=5", None),
        ("decay-high", "optimizer.weight_decay=1", "optimizer.weight_decay=0.1"),
        ("decay-high", "optimizer.weight_decay=0.01", None),
        ("dropout-high", "model.dropout=0.05", None),
        ("momentum-high", "optimizer.beta1=0.8", None),
        ("beta2-low", "optimizer.beta2=0.999", None),
        ("init-large", "model.initializer_range=0.01", None),
        ("warmup-short", "schedule.warmup_steps=40", None),
        ("warmup-short", "schedule.warmup_steps=0", "schedule.warmup_steps=10"),
    ],
)
def test_a_knob_is_turned_the_way_that_treats_the_cause_or_not_at_all(cause, present, change):
    assert treatment_of(cause, View(run(present))) == change


def test_where_the_threshold_is_set_but_not_applied_no_other_threshold_is_tried():
    record = run("batch.max_grad_norm=2", each=set_to(grad_norm=3.0, clipped=0.0))
    assert treatment_of("clipping-off", View(record)) is treatment_of("gradients-explode", View(record)) is None
    found = next(each for each in diagnose(record).findings if each.cause == "clipping-off")
    assert found.override is None and found.remedy is not None and "not applied" in found.remedy
    clipped = run("batch.max_grad_norm=2", each=set_to(grad_norm=3.0, clipped=1.0))
    assert treatment_of("gradients-explode", View(clipped)) == "batch.max_grad_norm=1"


def test_a_schedule_that_ends_early_is_made_longer_and_never_the_run_shorter():
    def learning_rate(step: int) -> float:
        return 2e-3 * max(0.0, 1 - step / 100)

    for knobs, change in (
        (("schedule.type=polynomial", "schedule.power=4"), "schedule.power=1"),
        (("schedule.type=linear",), None),
        (("schedule.type=polynomial", "schedule.power=1"), None),
    ):
        record = run(*knobs, each=set_to(learning_rate=learning_rate))
        assert treatment_of("schedule-ends-early", View(record)) == change
        found = next(each for each in diagnose(record).findings if each.cause == "schedule-ends-early")
        assert found.override == change


@pytest.mark.parametrize(
    ("losses", "change"),
    [
        pytest.param(lambda step: 3.0 + abs(step - 80) / 80, "training.max_steps=80", id="validation rises"),
        pytest.param(lambda step: 3.0, "model.dropout=0.1", id="it stands still"),
        pytest.param(lambda step: 4.0 - step / 200, None, id="it still falls"),
    ],
)
def test_against_overfitting_nothing_is_changed_while_validation_still_falls(losses, change):
    record = run("model.dropout=0", each_evaluation=set_to(loss=losses))
    assert treatment_of("overfitting", View(record)) == treatment_of("dataset-tiny", View(record)) == change


def test_a_gap_is_no_reason_for_dropout_while_validation_still_falls():
    for losses, change in ((lambda step: 3.0, "model.dropout=0.1"), (lambda step: 4.0 - step / 250, None)):
        record = run(
            "model.dropout=0",
            each=set_to(loss=lambda step: 5.5 - step / 50, probe_loss=lambda step: 5.5 - step / 50),
            each_evaluation=set_to(loss=losses),
        )
        found = next(each for each in diagnose(record).findings if each.rule == "gap")
        assert found.override == change


def test_early_stopping_is_the_same_run_and_nothing_to_compare():
    assert not is_comparable("evaluation.early_stopping_patience=3")
    assert is_comparable("training.max_steps=80")


def test_what_an_experiment_shows_to_be_in_the_code_is_left_to_the_hand():
    assert by_hand("evaluation-noisy", {"evaluate-twice": "equal"}) is None
    assert "same samples" in str(by_hand("evaluation-noisy", {"evaluate-twice": "other samples"}))
    for cause, experiment, outcome in BY_HAND:
        assert cause in CAUSES and outcome in OUTCOMES[experiment].usual
