"""What a rule has measured is told as observed, and no error is likelier wrong than right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import losses, run, set_to
from tests.doctor.test_rules import CASES

from trainbook.doctor import diagnose
from trainbook.doctor.causes import CAUSES, certainty_of, is_observed
from trainbook.doctor.diagnose import as_json
from trainbook.doctor.experiments import open_question
from trainbook.finding import Finding
from trainbook.runs.run_record import RunRecord

Make = Callable[[], RunRecord]


def test_a_share_that_was_measured_is_told_as_observed_and_before_guesses():
    """Of a run that goes wrong as well: whether copies are why is another matter."""
    still = run(each=losses(lambda _: 3.2), facts={"validation_overlap": 0.5})
    warned = [each for each in diagnose(still).findings if each.severity != "info"]
    place = next(place for place, each in enumerate(warned) if each.cause == "evaluation-on-train")
    assert certainty_of(warned[place]) == "observed" and warned[place].confidence < 0.5
    assert all(each.confidence >= 0.5 or is_observed(each) for each in warned[:place])
    assert any(each.confidence < 0.5 and not is_observed(each) for each in warned[place:])


@pytest.mark.parametrize(
    ("cause", "record"),
    [
        ("data-duplicated", lambda: run(facts={"duplicate_share": 0.4})),
        ("evaluation-on-train", lambda: run(facts={"validation_overlap": 0.45})),
        ("batches-repeat", lambda: run(each=set_to(repeated_batches=0.5))),
        ("text-truncated", lambda: run(facts={"alike_when_truncated": 0.2, "share_read": 0.3})),
        ("layers-frozen", lambda: run(facts={"untrained_layers": ["body.blocks.1"]})),
        ("future-leaks", lambda: run(each=set_to(future_leak=0.9))),
        ("padding-as-targets", lambda: run(each=set_to(padding_targets=0.4))),
    ],
)
def test_measurements_of_a_run_are_observations(cause: str, record: Make):
    diagnosis = diagnose(record())
    said = next(each for each in diagnosis.findings if each.cause == cause)
    assert certainty_of(said) == "observed"
    as_data = next(each for each in as_json(diagnosis)["findings"] if each["cause_id"] == cause)
    assert as_data["is_observed"] is True


def test_what_a_run_only_resembles_nobody_has_observed():
    observed = next(name for name, cause in CAUSES.items() if cause.is_observed)
    assert not is_observed(Finding("likeness", "warning", observed, 0.3))
    assert is_observed(Finding("some-rule", "warning", observed, 0.3))


def test_no_experiment_is_asked_for_about_what_was_measured():
    measured = Finding("copies-in-training", "warning", "data-duplicated", 0.4, is_observed=True)
    assert open_question([measured]) is None
    assert open_question([replace(measured, is_observed=False)]) is not None


@pytest.mark.parametrize("origin", ["trainbook", "fit", "watch", "huggingface", "csv"])
def test_an_error_is_likelier_right_than_wrong_or_measured(origin: Any):
    """An error asks to act on its cause."""
    for case in CASES:
        record = case.ill()
        record = record if origin == record.origin else replace(record, origin=origin)
        for each in diagnose(record).findings:
            assert each.severity != "error" or is_observed(each) or each.confidence >= 0.5, (case.rule, each)
