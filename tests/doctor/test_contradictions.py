"""A report that would turn a knob both ways."""

from __future__ import annotations

from dataclasses import replace

from tests.doctor.records import run

from trainbook.doctor.diagnose import LENGTH, turns, without_contradictions
from trainbook.doctor.likeness import RULE
from trainbook.doctor.view import View
from trainbook.finding import Finding

VIEW = View(run())


def finding(cause: str, evidence: str, override: str | None = None, remedy: str | None = None) -> Finding:
    return Finding("rule", "warning", cause, 0.5, evidence, override=override, remedy=remedy)


def test_the_better_supported_stays_and_names_what_speaks_against_it():
    found = without_contradictions(
        [finding("learning-rate-low", "slow"), finding("loader-slow", "waits"), finding("learning-rate-high", "fast")],
        VIEW,
    )
    assert [each.cause for each in found] == ["learning-rate-low", "loader-slow"]
    assert found[0].evidence == "slow; but fast"


def test_what_an_override_turns_counts_by_any_name_of_its_knob():
    present = VIEW.setting("training.max_steps")
    assert turns(finding("model-small", "", f"training.max_steps={2 * present}"), VIEW) == {LENGTH: 1}
    assert turns(finding("model-small", "", "max_steps=1"), VIEW) == {LENGTH: -1}
    assert turns(finding("model-small", "", "evaluation.early_stopping_patience=3"), VIEW) == {LENGTH: -1}
    assert turns(finding("model-small", "", "data.shuffle=true schedule.type=cosine"), VIEW) == {}


def test_a_remedy_of_the_finding_s_own_is_not_that_of_its_cause():
    assert turns(finding("overfitting", ""), VIEW) == {LENGTH: -1, "model.dropout": 1}
    assert turns(finding("overfitting", "", remedy="Regularize more."), VIEW) == {}
    both = [finding("training-short", "a"), finding("overfitting", "b", remedy="Regularize more.")]
    assert without_contradictions(both, VIEW) == both


def test_an_experiment_that_turns_a_knob_up_contradicts_a_remedy_that_turns_it_down():
    like = replace(finding("learning-rate-low", "slow", remedy="Train with three times the learning rate."), rule=RULE)
    lower = finding("gradients-explode", "grew", "optimizer.learning_rate=1e-9")
    assert [each.cause for each in without_contradictions([like, lower], VIEW)] == ["learning-rate-low"]


def test_a_resemblance_to_the_opposite_fault_is_told_in_one_sentence():
    high = finding("learning-rate-high", "the peak learning rate is 1", "optimizer.learning_rate=1e-9")
    like = replace(finding("learning-rate-low", "no rule proves it, but this run resembles others"), rule=RULE)
    (found,) = without_contradictions([high, like], VIEW)
    assert found.evidence == (
        "the peak learning rate is 1; but the run also resembles known runs with the opposite fault: the learning rate "
        "is too low"
    )


def test_two_findings_of_one_direction_stand_side_by_side():
    same = [finding("learning-rate-high", "a"), finding("learning-rate-high", "b", "optimizer.learning_rate=1e-9")]
    assert without_contradictions(same, VIEW) == same


def test_dropout_is_not_too_high_for_a_model_that_overfits():
    both = [finding("dataset-tiny", "a"), finding("dropout-high", "b", "model.dropout=0.05")]
    assert [each.cause for each in without_contradictions(both, View(run("model.dropout=0.1")))] == ["dataset-tiny"]


def test_the_same_fact_in_other_words_does_not_speak_against_itself():
    high = finding("learning-rate-high", "the loss is 6.99, above its start of 0.818")
    low = finding("learning-rate-low", "after 500 steps the loss is 6.99; it started at 0.818")
    assert without_contradictions([high, low], VIEW) == [high]
