"""Causes that facts of the targets, or the learning rate itself, rule out, whatever the curves look like."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import run, set_to

from trainbook.doctor.refuted import refuted
from trainbook.doctor.view import View
from trainbook.runs.run_record import Origin, RunRecord

# As batches of one random number each were seen.
NUMBERS = {"objective": "squared error", "samples_seen": 300, "targets_seen": 300}
NUMBERS |= {"target_mean": -0.0462404647, "target_variance": 7.98, "target_order": -0.11}


def seen(origin: Origin = "watch", **facts: Any) -> RunRecord:
    return replace(run(), facts={"total_updates": 200, **NUMBERS, **facts}, origin=origin, config=None)


def is_refuted(cause: str, record: RunRecord) -> bool:
    return cause in refuted(View(record))


@pytest.mark.parametrize("origin", ["watch", "fit", "huggingface", "lightning"])
@pytest.mark.parametrize("cause", ["loss-mismatched", "data-unshuffled", "targets-unscaled"])
def test_random_numbers_of_a_usual_size_are_no_classes_in_order_or_far_away(origin: Origin, cause: str):
    assert is_refuted(cause, seen(origin))


@pytest.mark.parametrize(
    ("facts", "is_out"),
    [
        pytest.param({}, True, id="their sum has a fraction"),
        pytest.param({"target_mean": 1.5}, False, id="their sum is whole"),
        pytest.param({"target_mean": 1.5, "targets_are_whole": False}, True, id="fractions were seen"),
        pytest.param({"target_classes": 10}, False, id="classes were seen"),
        pytest.param({"targets_are_whole": True}, False, id="whole numbers were seen"),
        pytest.param({"targets_seen": 100}, False, id="too few"),
        pytest.param({"target_mean": None}, False, id="not known"),
        pytest.param({"target_mean": math.nan}, False, id="not finite"),
    ],
)
def test_targets_with_fractions_are_no_classes(facts: dict[str, Any], is_out: bool):
    assert is_refuted("loss-mismatched", seen(**facts)) is is_out


@pytest.mark.parametrize(
    ("facts", "is_out"),
    [
        pytest.param({"target_order": 0.1}, True, id="random"),
        pytest.param({"target_order": 0.4}, False, id="half in order"),
        pytest.param({"samples_seen": 100}, False, id="too few"),
        pytest.param({"in_order": True}, False, id="known to be in order"),
        pytest.param({"target_order": None}, False, id="not known"),
    ],
)
def test_targets_in_a_random_order_were_shuffled(facts: dict[str, Any], is_out: bool):
    assert is_refuted("data-unshuffled", seen(**facts)) is is_out


@pytest.mark.parametrize(
    ("facts", "is_out"),
    [
        pytest.param({"target_variance": 90.0}, True, id="wide"),
        pytest.param({"target_variance": 9e6}, False, id="very wide"),
        pytest.param({"target_mean": 5000.3}, False, id="far away"),
        pytest.param({"targets_seen": 100}, False, id="too few"),
        pytest.param({"target_variance": None}, False, id="not known"),
    ],
)
def test_targets_of_a_usual_size_are_not_far_from_the_outputs(facts: dict[str, Any], is_out: bool):
    assert is_refuted("targets-unscaled", seen(**facts)) is is_out


@pytest.mark.parametrize(
    ("share", "is_out"),
    [
        pytest.param(lambda at: 0.5 * (1 + math.cos(math.pi * at)), True, id="a cosine over the whole run"),
        pytest.param(lambda at: 1 - at, True, id="a line down to the end"),
        pytest.param(lambda at: max(0.0, 1 - 2 * at), False, id="over in the middle"),
        pytest.param(lambda at: 0.8 ** (200 * at), False, id="next to nothing, although it still falls"),
        pytest.param(lambda at: max(0.1, 1 - at / 0.95), False, id="over just before the end"),
        pytest.param(lambda at: 1.0, False, id="constant"),
    ],
)
def test_a_schedule_that_still_falls_at_the_end_does_not_end_early(share, is_out: bool):
    record = run(each=set_to(learning_rate=lambda step: 3e-3 * share(step / 200)))
    assert is_refuted("schedule-ends-early", replace(record, origin="watch", config=None)) is is_out
