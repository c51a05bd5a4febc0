"""What changed in mid-run: the learning rate, or the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.doctor.records import by_rules
from tests.doctor.test_other_logs import Curve, only

from trainbook.doctor import diagnose
from trainbook.runs.run_record import RunRecord


def constant(step: int) -> float:
    return 1e-3


def broken_log(loss: Curve, rate: Curve = constant, noise: float = 0.02) -> RunRecord:
    draw = np.random.default_rng(0)
    rows = [
        {"step": step, "loss": loss(step) * math.exp(noise * draw.standard_normal()), "learning_rate": rate(step)}
        for step in range(10, 1501, 10)
    ]
    return RunRecord("theirs", rows, [], origin="csv")


def learns(step: int) -> float:
    return 0.5 + 1.1 * math.exp(-step / 100)


def breaks(step: int) -> float:
    """As of labels that are shuffled from step 700 on."""
    return learns(step) if step <= 700 else 1.56 + 0.8 * math.exp((700 - step) / 20)


def test_a_loss_that_is_at_another_level_from_one_row_to_the_next_names_the_data():
    first, *others = diagnose(broken_log(breaks)).findings
    assert first.cause == "data-changed" and "until step 710" in first.evidence
    assert by_rules(broken_log(breaks))["data-changed"] == "error"
    assert all(each.confidence < first.confidence for each in others if each.severity != "info")


def creeps(step: int) -> float:
    """As of a learning rate that is too high: unrest, and then away."""
    return learns(step) if step <= 600 else 0.5 * math.exp(min(1.4, (step - 600) / 150))


@pytest.mark.parametrize(
    ("loss", "rate"),
    [
        (learns, constant),
        (creeps, constant),
        (lambda step: learns(step) + 2 * (step == 700), constant),  # a spike
        (breaks, lambda step: 1e-3 if step <= 690 else 1e-2),  # the learning rate rose there
        (breaks, lambda step: 1.0),  # far above any usual one
    ],
)
def test_nothing_else_is_a_sudden_change_of_the_data(loss: Curve, rate: Curve):
    assert only(broken_log(loss, rate), "level-jumps") == []


def spikes(step: int) -> float:
    return learns(step) + 2 * math.exp((700 - step) / 40) * (step >= 700)


def test_a_learning_rate_that_jumps_where_the_loss_does_is_named_first():
    told = diagnose(broken_log(spikes, lambda step: 5e-2 if 700 <= step < 760 else 1e-3)).findings[0]
    assert (told.rule, told.cause) == ("rate-jumps", "learning-rate-high")
    assert "at step 700 the learning rate rose from 0.001 to 0.05" in told.evidence and "made anew" in str(told.remedy)


def test_schedules_that_come_back_up_do_not_jump():
    def restarts(step: int) -> float:
        return 1e-5 + 1e-3 * (1 + math.cos(math.pi * (step % 300) / 300)) / 2

    def warms_up(step: int) -> float:
        return 1e-3 * min(1, step / 100)

    assert only(broken_log(spikes, restarts), "rate-jumps") == only(broken_log(spikes, warms_up), "rate-jumps") == []
    assert (
        only(broken_log(learns, lambda step: 5e-2 if 700 <= step < 760 else 1e-3), "rate-jumps") == []
    )  # no harm done
