"""A warm-up that takes most of a run, or outlasts it: the doctor says what `trainbook check` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.records import Case, run, set_to

from trainbook.check import start
from trainbook.doctor import diagnose
from trainbook.doctor.causes import certainty_of
from trainbook.doctor.diagnose import open_subject
from trainbook.finding import Finding
from trainbook.knobs.derive import LONGEST_WARMUP
from trainbook.runs.run_record import RunRecord


def warmed(steps: float, *, asked: int | None = None, origin: str = "trainbook", peak: float = 1e-3) -> RunRecord:
    """200 steps, with a learning rate that rises over so many of them, and then falls to zero along a line."""

    def rate(step: int) -> float:
        return peak * (step / steps if step < steps else (200 - step) / max(1.0, 200 - steps))

    record = run(
        *([f"schedule.warmup_steps={asked}"] if asked and asked < 200 else []), each=set_to(learning_rate=rate)
    )
    if origin == "trainbook":
        return record
    settings: dict[str, Any] = {"schedule.type": "cosine", "optimizer.learning_rate": peak, "optimizer.type": "adamw"}
    settings["schedule.warmup_steps"] = asked
    return replace(record, origin=origin, config=None, settings=settings)


def found(record: RunRecord) -> dict[str, Finding]:
    return {each.cause: each for each in diagnose(record).findings}


CASES = [Case("warm-up-length", "warmup-long", lambda: warmed(190, asked=190), lambda: warmed(20, asked=20))]


@pytest.mark.parametrize(("override", "change"), [("warmup_steps=550", "warmup_steps=30"), ("warmup_ratio=0.9", None)])
def test_a_configuration_whose_warm_up_the_check_refuses_is_no_healthy_one(override: str, change: str | None):
    said = found(open_subject("gpt-tiny", Path("runs"), [f"schedule.{override}"]))["warmup-long"]
    assert said.severity == "warning" and certainty_of(said) == "observed"
    assert said.override == f"schedule.{change or 'warmup_ratio=0.05'}"


@pytest.mark.parametrize(("share", "is_told"), [(LONGEST_WARMUP, False), (LONGEST_WARMUP + 0.01, True)])
def test_the_threshold_is_that_of_the_check(share: float, is_told: bool):
    assert start.LONGEST_WARMUP is LONGEST_WARMUP
    overrides = [f"schedule.warmup_ratio={share}"]
    assert ("warmup-long" in found(open_subject("gpt-tiny", Path("runs"), overrides))) == is_told


def test_a_run_that_was_warmed_up_nearly_to_its_end_is_told_the_share():
    said = found(warmed(190, asked=190))["warmup-long"]
    assert said.severity == "warning" and "190 of 200" in said.evidence and "95.0%" in said.evidence


def test_a_rate_that_rises_to_the_very_end_is_a_warm_up_and_no_missing_decay():
    """A cosine was asked for, as the Hugging Face Trainer has it, and a warm-up of ten times the run."""
    causes = found(warmed(2000, asked=2000, origin="huggingface"))
    assert "schedule-too-long" not in causes
    said = causes["warmup-long"]
    assert said.severity == "error" and said.override == "warmup_steps=10"
    assert "2,000 steps is longer than the run of 200" in said.evidence and "never reached" in said.evidence


def test_of_a_log_without_settings_the_rates_tell_it():
    assert found(warmed(2000, origin="csv"))["warmup-long"].override is None


@pytest.mark.parametrize(
    "record",
    [
        warmed(60, asked=60),  # 30 %, as of one cycle
        warmed(20, asked=150, origin="watch"),  # what was set elsewhere is not what was done
    ],
)
def test_a_rise_over_less_than_half_is_a_matter_of_taste(record: RunRecord):
    assert "warmup-long" not in found(record)
