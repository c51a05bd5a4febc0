"""A run whose first updates replace the weights: what its loss does later is no sign that it learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.doctor.records import run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.curves import has_nothing_left
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

GUESS = math.log(4)
NAN = float("nan")


def watched(loss: Callable[[int], float], update: float, optimizer: str = "sgd", rate: float = 20.0) -> RunRecord:
    """A loop of the user's own over four classes; the first ten updates are this large."""
    row = set_to(
        loss=loss,
        cross_entropy=None,
        probe_loss=None,
        update_ratio=lambda step: update if step <= 10 else 1e-3,
        learning_rate=lambda step: rate * (0.5 + 0.5 * math.cos(math.pi * step / 200)),
        clipped=None,
        epoch=None,
    )
    judged = set_to(loss=lambda step: loss(step) + 0.01, accuracy=0.26 if loss(200) > 1.3 else 0.8, targets=None)
    facts = {"uniform_loss": GUESS, "prior_loss": GUESS, "num_classes": 4, "objective": "cross entropy"}
    facts |= {"targets_seen": 2048, "losses_seen": 64, "samples_seen": 4096, "batches_seen": 128}
    record = run(each=row, each_evaluation=judged, facts=facts)
    settings = {"optimizer.type": optimizer, "optimizer.learning_rate": rate}
    return replace(record, origin="watch", config=None, settings=settings)


def dead(step: int) -> float:
    """It shoots up to 300, and comes down to guessing as the learning rate does."""
    return 1.65 if step == 1 else GUESS + 300 * math.exp(-step / 20)


def of_rate(record: RunRecord) -> Finding | None:
    return next((each for each in diagnose(record).findings if each.cause == "learning-rate-high"), None)


@pytest.mark.parametrize("rate", [20.0, 100.0])
def test_a_loss_that_shoots_up_and_comes_back_to_guessing_is_a_rate_that_is_too_high(rate: float):
    findings = diagnose(watched(dead, update=5.0, rate=rate)).findings
    assert (findings[0].cause, findings[0].severity) == ("learning-rate-high", "error")
    assert "training-short" not in [each.cause for each in findings]  # it falls from where it was thrown to


def test_a_run_that_learns_all_the_same_gets_a_warning():
    found = of_rate(watched(lambda step: dead(step) - 0.7 if step > 1 else 1.65, update=5.0))
    assert found is not None
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("loss", "update"),
    [
        (dead, 0.05),  # a loss that shoots up by small updates may do so for many reasons
        (lambda step: 0.3 + 1.3 * math.exp(-step / 20), 5.0),  # large updates that do no harm, as of weights near zero
    ],
)
def test_neither_a_high_loss_nor_a_large_update_alone_is_taken_for_it(loss: Callable[[int], float], update: float):
    assert "as large as the weights" not in " ".join(each.evidence for each in diagnose(watched(loss, update)).findings)


def test_next_to_nothing_is_left_only_of_what_the_untrained_model_had():
    assert not has_nothing_left(View(watched(dead, update=5.0)))
    assert has_nothing_left(View(watched(lambda step: 0.01 + 1.6 * math.exp(-step / 10), update=0.01)))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_rate_that_loses_the_loss_at_once_is_lowered_to_a_usual_one_in_one_go(optimizer: str):
    """A third of it would lose the loss as well, and so would a third of that."""
    record = watched(lambda step: 1.65 if step == 1 else 1e8 if step < 4 else NAN, 5.0, optimizer)
    found = next(each for each in diagnose(record).findings if each.override and "learning_rate" in each.override)
    usual = {"sgd": 0.1, "adamw": 1e-3}[optimizer]
    assert found.override is not None
    assert float(found.override.partition("=")[2]) <= usual
