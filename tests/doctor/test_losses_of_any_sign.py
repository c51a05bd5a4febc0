"""Losses that go below zero, or have a large constant: zero is then a level like any other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.doctor.records import by_rules
from tests.doctor.test_fit_runs import Curve, causes, fitted, found, learned

from trainbook.doctor import diagnose
from trainbook.runs.run_record import RunRecord


def blamed(record: RunRecord) -> set[str]:
    return {each.cause for each in diagnose(record).findings if each.severity != "info"}


def narrowing(step: int) -> float:
    """The negative log-likelihood of a density that narrows until the end."""
    return 0.5 - 4.8 * (1 - math.exp(-step / 80))


def density(loss: Curve, validation: Curve | None = None, **rows: object) -> RunRecord:
    """Of `fitted`, with noise that is added: that of a log-likelihood does not shrink with its level."""
    noise = np.random.default_rng(3)
    record = fitted(loss=loss, validation=validation or loss, **rows)
    train = [{**row, "loss": loss(row["step"]) + 0.05 * noise.standard_normal()} for row in record.train]
    return replace(record, train=train)


def moved(record: RunRecord, by: float) -> RunRecord:
    def rows(of: object) -> list[dict[str, float]]:
        return [{**row, "loss": row["loss"] + by} for row in of]  # pyright: ignore[reportGeneralTypeIssues]

    return replace(record, train=rows(record.train), evaluations=rows(record.evaluations))


def test_gradients_that_grow_while_a_density_narrows_do_not_explode():
    record = density(narrowing, grad_norm=lambda step: math.exp(1.2 * (0.5 - narrowing(step))))
    assert max(row["grad_norm"] for row in record.train) > 100
    assert blamed(record) == set()


def test_gradients_that_grow_after_the_loss_has_settled_explode():
    def settled(step: int) -> float:
        return -2.0 + 2.5 * math.exp(-step / 10)

    record = density(settled, grad_norm=lambda step: math.exp(max(0, step - 50) / 20))
    assert found(record, "gradients-explode") is not None


def test_a_density_that_costs_some_batches_much_has_no_bad_samples():
    def jumps(step: int) -> float:
        return narrowing(step) + 3.0 * (step in (60, 110, 150))

    record = density(jumps, validation=narrowing, skipped_updates=4)
    events = [{"kind": "skip", "step": step, "cause": "outlier", "loss": 0.0} for step in (60, 110, 131, 150)]
    assert blamed(replace(record, events=events)) == set()
    many = replace(density(jumps, validation=narrowing, skipped_updates=40, applied_updates=160), events=10 * events)
    assert "bad-samples" in blamed(many)


def test_jumps_of_a_validation_loss_below_zero_are_held_against_what_was_learned():
    def trembles(step: int) -> float:
        return -2.83 + 2 * math.exp(-step / 15) + 0.002 * (-1) ** (step // 20)

    assert "evaluation-noisy" not in causes(density(narrowing, trembles))
    swings = density(narrowing, lambda step: -2.5 + 0.5 * (-1) ** (step // 20))
    assert {"evaluation-noisy", "learning-rate-high"} & blamed(swings)


def test_overfitting_below_zero_is_told_in_the_unit_of_the_loss():
    record = density(narrowing, lambda step: narrowing(step) if step <= 100 else narrowing(100) + (step - 100) / 50)
    over = found(record, "overfitting")
    assert over is not None and "is now 2 above that" in over.evidence and "%" not in over.evidence


def test_a_diverging_loss_is_found_at_any_level():
    def grows(step: int) -> float:
        return learned(step) + max(0, step - 80) / 20

    for by in (0.0, -1.0, -3.0, -100.0):
        assert "learning-rate-high" in blamed(moved(density(grows), by)), by


@pytest.mark.parametrize("by", [0.0, -0.5, -1.3, -5.0, 30.0])
def test_a_healthy_run_is_healthy_whatever_constant_its_loss_has(by: float):
    assert blamed(moved(density(lambda step: 0.3 + learned(step)), by)) == set()


def test_a_last_evaluation_below_zero_is_the_best_only_if_it_is_the_lowest():
    record = density(lambda step: -2.0, lambda step: -2.0 - step / 180 if step < 200 else -2.99)
    short = found(record, "training-short")
    assert short is None or "the last evaluation is the best" not in short.evidence


@pytest.mark.parametrize("start", [0.5, 20.0])
def test_a_log_likelihood_that_is_a_sum_over_many_numbers_has_the_right_sign(start: float):
    wide = density(lambda step: start - (start + 300) * (1 - math.exp(-step / 70)))
    assert "loss-unbounded" not in causes(wide)
    linear = density(lambda step: start - 3.0 * step, learning_rate=1e-3)
    assert causes(linear)[0] == "loss-unbounded"


def severities(record: RunRecord, cause: str) -> set[str]:
    return {each.severity for each in diagnose(record).findings if each.cause == cause}


def policy(step: int) -> float:
    """Advantage times log-probability: it goes to zero as the policy becomes sure, wherever it started."""
    return -12.0 * math.exp(-step / 15)


def test_the_loss_of_a_policy_that_becomes_sure_is_not_suspected():
    jump = 14.0 * math.exp(-20 / 15)

    def jumps(step: int) -> float:
        return policy(step) + jump * (step == 20)

    record = density(jumps, grad_norm=lambda step: 0.05 + 3.0 * math.exp(-step / 15))
    assert blamed(replace(record, evaluations=[])) == set()


def test_a_loss_below_zero_that_rises_while_gradients_do_not_fade_is_suspected():
    record = replace(density(policy, grad_norm=3.0), evaluations=[])
    assert severities(record, "learning-rate-high") == {"warning"}


@pytest.mark.parametrize("level", [1e3, 1e6])
def test_a_loss_below_zero_that_explodes_is_an_error(level: float):
    def explodes(step: int) -> float:
        return narrowing(step) if step < 120 else level

    assert "error" in by_rules(density(explodes)).values()
    assert diagnose(density(explodes)).findings[0].severity != "info"


def cycles(step: int) -> float:
    """The loss of a generator: its opponent becomes better as well."""
    return 0.75 + 0.3 * math.sin(step / 9) * (step > 20) + 0.4 * (step == 60)


def opposed(loss: Curve) -> RunRecord:
    record = fitted(loss=loss, update_ratio=0.005)
    start = {"kind": "facts", "step": 8, "segment": 0, "other_trained_parameters": 6}
    facts = {**record.facts, "other_trained_parameters": 6}
    return replace(record, evaluations=[], events=[*record.events, start], facts=facts)


def test_the_level_of_a_loss_that_an_opponent_has_a_part_in_says_nothing():
    assert blamed(opposed(cycles)) == set()
    alone = replace(fitted(loss=cycles, update_ratio=0.005), evaluations=[])
    assert blamed(alone) != set(), "without the opponent the same curve is suspect"


def test_with_an_opponent_a_loss_that_explodes_is_an_error():
    record = opposed(lambda step: cycles(step) if step < 120 else 500.0)
    assert "error" in {each.severity for each in diagnose(record).findings}


def test_a_training_loss_that_is_the_validation_loss_with_the_opposite_sign_is_named():
    def rising(step: int) -> float:
        return 1.4 + step / 40

    mirrored = density(lambda step: -rising(step), rising)
    assert diagnose(mirrored).findings[0].cause == "loss-unbounded"
    assert "opposite sign" in diagnose(mirrored).findings[0].evidence
    apart = density(lambda step: -rising(step), lambda step: 3 * rising(step))
    assert not any("opposite sign" in each.evidence for each in diagnose(apart).findings)
