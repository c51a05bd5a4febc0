from __future__ import annotations

from io import StringIO

import pytest
from tests.doctor.test_breaks import breaks, broken_log

from trainbook.doctor import Diagnosis, as_json, diagnose
from trainbook.doctor.causes import CAUSES
from trainbook.doctor.experiments import EXPERIMENTS, open_question
from trainbook.doctor.render import render
from trainbook.finding import Finding, Severity
from trainbook.terminal import new_console

pytestmark = pytest.mark.usefixtures("rules_alone")


def of(cause: str, confidence: float, severity: Severity = "error", explained_by: str = "") -> Finding:
    return Finding("rule", severity, cause, confidence, "seen", explained_by=explained_by)


def test_experiments_are_for_causes_that_exist():
    assert EXPERIMENTS.keys() <= CAUSES.keys()


def test_two_causes_that_are_about_as_likely_are_a_question_with_an_experiment():
    question = open_question([of("labels-random", 0.5), of("learning-rate-low", 0.45), of("overfitting", 0.1)])
    assert question is not None and [each.cause for each in question.causes] == ["labels-random", "learning-rate-low"]
    assert question.sentence == (
        "Either: The targets have nothing to do with the inputs (50%). Or: The learning rate is too low (45%). "
        + EXPERIMENTS["labels-random"]
    )


def test_what_is_certain_observed_explained_or_a_remark_leaves_nothing_open():
    assert open_question([]) is None
    assert open_question([of("labels-random", 0.9), of("learning-rate-low", 0.6)]) is None
    assert open_question([of("training-short", 0.5, "info")]) is None
    assert open_question([of("out-of-memory", 0.6)]) is None, "a cause that only states what was logged"
    question = open_question([of("labels-random", 0.6), of("overfitting", 0.5, "warning", "labels-random")])
    assert question is not None and len(question.causes) == 1 and question.sentence == EXPERIMENTS["labels-random"]


def test_the_question_is_shown_and_told_to_programs():
    record = broken_log(breaks)
    diagnosis, out = diagnose(record), StringIO()
    render(record, diagnosis, new_console(file=out, width=400))
    assert f"  check   {EXPERIMENTS['data-changed']}" in out.getvalue()
    told = as_json(diagnosis)["question"]
    assert told == {"causes": ["data-changed"], "experiment": EXPERIMENTS["data-changed"]}


def test_an_experiment_that_a_finding_advises_is_not_told_twice():
    finding = Finding("likeness", "warning", "training-short", 0.5, "as seen", remedy=EXPERIMENTS["training-short"])
    shown = StringIO()
    render(broken_log(breaks), Diagnosis([finding]), new_console(file=shown, width=400))
    assert shown.getvalue().count(EXPERIMENTS["training-short"]) == 1


def test_a_higher_learning_rate_to_try_by_hand_is_within_what_the_remedy_would_set():
    """It is tripled, or raised to the usual one."""
    assert "three to ten times as high" in EXPERIMENTS["learning-rate-low"]
