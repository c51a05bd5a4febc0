"""Validation by the metric that chooses the best model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import by_rules, losses, run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.remedies import chosen_metric
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord


def classifier(accuracy: Callable[[int], float], metric: str = "accuracy", **more: Any) -> RunRecord:
    """Three epochs; the validation loss rises from step 80 on, by a half."""
    record = run(
        each=set_to(epoch=lambda step: step / 60),
        each_evaluation=set_to(loss=lambda step: 1.0 + abs(step - 80) / 240, accuracy=accuracy, targets=2_000, **more),
    )
    return replace(record, settings={**record.settings, "evaluation.metric_for_best_model": metric})


def found(record: RunRecord, cause: str) -> list[Finding]:
    return [each for each in diagnose(record).findings if each.cause == cause]


def test_overfitting_is_judged_by_the_metric_that_chooses_the_best_model():
    rising = classifier(lambda step: 0.6 + step / 1000)
    (remark,) = [each for each in found(rising, "overfitting") if each.rule == "validation-rises"]
    assert remark.severity == "info" and "accuracy, which chooses the best model" in remark.evidence
    falling = classifier(lambda step: 0.8 - abs(step - 80) / 1000)
    (warned,) = [each for each in found(falling, "overfitting") if each.rule == "validation-rises"]
    assert warned.severity == "warning"
    assert "validation accuracy was highest at step 80 (80.0%) and is now 68.0%" in warned.evidence
    by_loss = classifier(lambda step: 0.6 + step / 1000, metric="loss")
    assert [each.severity for each in found(by_loss, "overfitting") if each.rule == "validation-rises"] == ["warning"]


def test_a_fall_within_the_noise_of_so_few_targets_is_none():
    few = chosen_metric(View(classifier(lambda step: 0.8 - 0.03 * (step > 80))))
    assert few is not None and few.has_worsened
    fewer = replace(few, targets=100.0)
    assert not fewer.has_worsened, "two standard errors are 8 %"


def test_the_same_report_never_asks_for_a_longer_and_a_shorter_run():
    record = classifier(lambda step: 0.8 - abs(step - 80) / 1000)
    record = replace(record, train=run(each=losses(lambda step: 5.5 - step / 50)).train)
    findings = diagnose(record).findings
    assert any(each.cause == "overfitting" for each in findings)
    assert not any(each.cause == "training-short" for each in findings)


@pytest.mark.parametrize("origin", ["trainbook", "csv"])
def test_a_rise_is_an_error_only_where_the_best_model_is_not_kept(origin: str):
    record = replace(classifier(lambda step: 0.7, metric="loss"), origin=origin)
    (told,) = [each for each in found(record, "overfitting") if each.rule == "validation-rises"]
    assert by_rules(record)["overfitting"] == ("warning" if origin == "trainbook" else "error")
    assert ("the checkpoint of step 80 is kept as the best" in told.evidence) == (origin == "trainbook")


def test_shakespeare_s_recipe_ends_with_a_warning_that_says_what_to_do():
    """As measured on an H200: best at step 1,750 of 5,000, 82 epochs, a dropout of 0.2."""
    record = run(
        source="shakespeare-char",
        steps=5000,
        every=25,
        each=set_to(
            loss=lambda step: 0.75 + 3.4 * 2 ** (-step / 400),
            cross_entropy=lambda step: 0.75 + 3.4 * 2 ** (-step / 400),
            probe_loss=lambda step: 0.6 + 3.4 * 2 ** (-step / 400),
            epoch=lambda step: 82 * step / 5000,
        ),
        each_evaluation=set_to(
            loss=lambda step: 1.458 + (0.4 * (1750 - step) / 1750 if step < 1750 else 0.25 * (step - 1750) / 3250)
        ),
        facts={"num_parameters": 10_700_000, "prior_loss": 3.3, "uniform_loss": math.log(65)},
    )
    findings = diagnose(record).findings
    assert [each.severity for each in findings if each.severity == "error"] == []
    first = findings[0]
    assert first.severity == "warning" and first.cause == "dataset-tiny" and "82 epochs" in first.evidence
    assert first.override == "evaluation.early_stopping_patience=3"
