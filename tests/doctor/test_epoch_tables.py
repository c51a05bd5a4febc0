"""Logs with one row for each epoch, as Keras and many loops write them: each is a mean over the steps of an epoch."""

from __future__ import annotations

import math

import pytest

from trainbook.doctor import diagnose
from trainbook.doctor.curves import never_below_start, standstill_of, training_since
from trainbook.doctor.view import STARTS_BY, View
from trainbook.runs.run_record import RunRecord

pytestmark = pytest.mark.usefixtures("rules_alone")

LOSSES = (1.731, 0.504, 0.281, 0.214, 0.189, 0.178)
VALIDATION = (1.9, 6.551, 7.601, 8.026, 8.140, 8.168)


def table(losses: tuple[float, ...], validation: tuple[float, ...], first: int = 0, counted_in: str = "epochs") -> View:
    places = range(first, first + len(losses))
    rows = [{"step": at, "epoch": at, "loss": loss} for at, loss in zip(places, losses, strict=True)]
    judged = [{"step": at, "epoch": at, "loss": loss} for at, loss in zip(places, validation, strict=True)]
    return View(RunRecord("theirs", rows, judged, facts={"steps_are": counted_in}, origin="csv"))


def test_the_mean_of_the_first_epoch_is_not_the_loss_of_the_untrained_model():
    flat = (2.0,) * 20
    in_epochs, in_steps = table(flat, flat), table(flat, flat, first=1, counted_in="steps")
    assert in_steps.starts_by(STARTS_BY) and standstill_of(in_steps) is not None and never_below_start(in_steps)
    assert not in_epochs.starts_by(STARTS_BY)
    assert standstill_of(in_epochs) is None and not never_below_start(in_epochs)  # the first epoch may have taught all


def test_a_short_curve_is_told_by_its_first_and_last_row():
    assert training_since(table(LOSSES, VALIDATION), 0) == (1.731, 0.178)
    told = [each.evidence for each in diagnose(table(LOSSES, VALIDATION).record).findings]
    assert any("the training loss went from 1.73 to 0.178" in each for each in told)
    long = tuple(math.exp(-step / 10) for step in range(20))
    assert training_since(table(long, long), 0) == pytest.approx((math.exp(-0.2), math.exp(-1.7)))


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_are_counted_from_the_first_one_whatever_its_number(first: int):
    view = table(LOSSES, VALIDATION, first)
    assert view.values("epoch").max() == 6
    told = next(each for each in diagnose(view.record).findings if each.cause == "dataset-tiny")
    assert told.evidence.startswith("6 epochs over the training data")


def test_whole_epochs_of_a_log_of_steps_stay_as_they_are():
    assert table(LOSSES, VALIDATION, counted_in="steps").values("epoch").max() == 5


def test_no_evidence_speaks_of_an_untrained_model_that_was_not_evaluated():
    def told(validation: tuple[float, ...]) -> list[str]:
        return [each.evidence for each in diagnose(table(LOSSES, validation).record).findings]

    for validation in (VALIDATION, (3.494, *VALIDATION[1:])):
        assert told(validation) and not [each for each in told(validation) if "untrained" in each]
    assert any("better than the mean of the first epoch (1.73)" in each for each in told((3.494, *VALIDATION[1:])))
