"""The bench of `doctor --try`: its kinds, that experiments have the fault, and how answers are counted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "doctor"))
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import doctor_try
from entries import FAULT_GROUPS
from split import shared

from trainbook.data.batches.plan import BatchPlan
from trainbook.study import differential
from trainbook.study.remedy import RemedyRun


def test_it_reports_on_kinds_that_nobody_developed_on_and_on_enough_runs():
    held_out = doctor_try.kinds_of("held-out")
    assert not held_out.keys() & shared(FAULT_GROUPS)
    runs = sum(map(len, held_out.values())) * len(doctor_try.RUN_SEEDS["held-out"])
    assert runs >= 40
    assert doctor_try.kinds_of("development").keys() == shared(FAULT_GROUPS)


def test_each_look_and_each_training_has_the_fault_and_it_goes_as_it_came(tmp_path, monkeypatch):
    entry = doctor_try._entry("data-sorted", "bert", 0, False)
    real, found = BatchPlan._indices, []
    monkeypatch.setattr(differential, "look", lambda *parts: found.append(BatchPlan._indices is real))
    monkeypatch.setattr(RemedyRun, "train", lambda *parts: found.append(BatchPlan._indices is real))
    with doctor_try.each_with_the_fault(entry, tmp_path):
        assert BatchPlan._indices is real, "only while something is done"
        differential.look("copies", None)  # pyright: ignore[reportArgumentType]
        RemedyRun.train(None, True)  # pyright: ignore[reportArgumentType]
    assert found == [False, False]
    assert BatchPlan._indices is real


def answer(**facts: Any) -> dict[str, Any]:
    usual = {
        "kind": "rate-x30",
        "architecture": "gpt",
        "seed": 5,
        "causes": ["learning-rate-high"],
        "said": ["learning-rate-high"],
        "conclusion": "cause",
        "cause_ids": ["learning-rate-high"],
        "experiments": [],
        "remedies": [],
        "cost_steps": 100,
        "run_steps": 200,
    }
    return {**usual, **facts}


def remedy(verdict: str, difference: Any = -0.5) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "difference": difference,
        "control": 2.0,
        "measure": "validation loss",
        "override": "a=1",
    }


def test_answers_are_counted_by_what_they_claim():
    assert doctor_try.is_right(answer()) and doctor_try.is_right_and_likely(answer())
    assert doctor_try.is_right(answer(conclusion="possible"))
    assert not doctor_try.is_right_and_likely(answer(conclusion="possible"))
    two = answer(conclusion="either", cause_ids=["overfitting", "learning-rate-high"])
    assert not doctor_try.is_right(two) and doctor_try.is_among_two(two)
    unknown = answer(conclusion="unknown", cause_ids=[])
    assert not doctor_try.is_right(unknown) and not doctor_try.is_among_two(unknown)
    assert not doctor_try.is_right_before(answer(said=[]))
    assert doctor_try.helped(answer(remedies=[remedy("did not help", 0.0), remedy("helped")]))


def test_a_remedy_that_is_worse_counts_against_it_only_if_the_verdict_hides_it():
    assert not doctor_try.worse_unsaid(answer(remedies=[remedy("made it worse", 0.3)]))
    assert doctor_try.worse_unsaid(answer(remedies=[remedy("cannot tell", 0.3)]))
    assert not doctor_try.worse_unsaid(answer(remedies=[remedy("cannot tell", 0.05)])), "less than 5 %"
    assert not doctor_try.worse_unsaid(answer(remedies=[remedy("helped", "NaN")])), "not finite: a word"


def test_the_tables_have_a_row_for_each_run_and_the_cost():
    runs = [answer(remedies=[remedy("helped")]), answer(kind="set-tiny", causes=["overfitting"], cost_steps=300)]
    text = doctor_try.tables({"faulty": runs, "healthy": [], "about": {}})
    assert "| **right cause after experiments** | 50.0% (0% to 100%) | 1 of 2 |" in text
    assert "| **a remedy helps, of runs where one was tried** | 100.0% (100% to 100%) | 1 of 1 |" in text
    assert "1.00 times the steps of the run in the median" in text
    assert "| set-tiny, gpt, 5 | learning-rate-high | learning-rate-high ✗ |" in text
