"""Beliefs about causes, what outcomes change of them, and which experiment is worth its cost."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.records import run
from tests.doctor.test_breaks import breaks, broken_log
from tests.doctor.test_own_modules import of_fit

from trainbook.doctor import recipe as recipes
from trainbook.doctor.causes import CAUSES
from trainbook.doctor.differential import (
    ELSE,
    after,
    after_remedy,
    conclude,
    doubt,
    expected_gain,
    first_belief,
    most_telling,
)
from trainbook.doctor.outcomes import OUTCOMES, REMEDY_OUTCOMES, Experiment
from trainbook.doctor.recipe import OF_ANOTHER_PROGRAM, recipe
from trainbook.doctor.treatments import TREATMENTS
from trainbook.errors import UserError
from trainbook.finding import Finding, Severity


def of(cause: str, confidence: float, severity: Severity = "error", **facts: str) -> Finding:
    return Finding("rule", severity, cause, confidence, "seen", **facts)  # pyright: ignore[reportArgumentType]


def test_the_table_names_causes_that_exist_and_its_probabilities_add_up():
    for each in OUTCOMES.values():
        assert each.named.keys() <= CAUSES.keys()
        assert sum(each.usual.values()) == pytest.approx(1)
        for cause in (*each.named, ELSE):
            likelihoods = each.likelihoods(cause)
            assert likelihoods.keys() == each.usual.keys(), f"{each.name} of {cause}: an outcome that it does not have"
            assert sum(likelihoods.values()) == pytest.approx(1) and min(likelihoods.values()) >= 0
    assert TREATMENTS.keys() <= CAUSES.keys()


def test_beliefs_begin_with_the_doctors_confidences_and_leave_room_for_others():
    belief = first_belief(
        [of("learning-rate-high", 0.6), of("bad-samples", 0.2, "warning"), of("overfitting", 0.5, "info")]
    )
    assert belief["learning-rate-high"] == pytest.approx(0.6)
    assert belief["bad-samples"] == pytest.approx(0.2)
    assert belief["overfitting"] == pytest.approx(0.1), "a remark is no alarm"
    assert sum(belief.values()) == pytest.approx(1)
    assert 0 < belief["layers-frozen"] < belief["overfitting"], "a look may show what no rule has named"
    crowded = first_belief([of("learning-rate-high", 0.9), of("bad-samples", 0.9)])
    assert crowded["learning-rate-high"] == pytest.approx(0.45)
    assert "fp16-overflow" not in first_belief([], ruled_out=["fp16-overflow"])


def test_an_outcome_that_a_cause_predicts_raises_it_by_bayes_rule():
    coin = Experiment("coin", "", "", {"yes": 0.2, "no": 0.8}, {"overfitting": {"yes": 0.8}})
    belief = {"overfitting": 0.5, "bad-samples": 0.25, ELSE: 0.25}
    assert after(belief, coin, "yes") == pytest.approx({"overfitting": 0.8, "bad-samples": 0.1, ELSE: 0.1})
    assert after(belief, coin, "no") == pytest.approx({"overfitting": 0.2, "bad-samples": 0.4, ELSE: 0.4})


def test_a_gain_is_the_doubt_that_is_taken_away():
    oracle = Experiment("oracle", "", "", {"yes": 0.0, "no": 1.0}, {"overfitting": {"yes": 1.0}})
    belief = {"overfitting": 0.5, "bad-samples": 0.5}
    assert doubt(belief) == pytest.approx(1)
    assert expected_gain(belief, oracle) == pytest.approx(1)
    idle = Experiment("idle", "", "", {"yes": 0.5, "no": 0.5})
    assert expected_gain(belief, idle) == pytest.approx(0)


def test_the_cheaper_of_two_that_tell_as_much_is_chosen_and_what_cannot_be_afforded_is_not():
    named = {"overfitting": {"yes": 0.95}}
    look = Experiment("look", "", "", {"yes": 0.05, "no": 0.95}, named)
    training = Experiment(
        "training", "", "", {"yes": 0.01, "no": 0.99}, {"overfitting": {"yes": 0.99}}, trains=True, share=0.25
    )
    belief = {"overfitting": 0.5, "bad-samples": 0.5}
    assert most_telling(belief, [training, look], {}) is look
    assert most_telling(belief, [training], {"training": 0.5}) is training
    assert most_telling(belief, [training], {"training": 0.5}, budget=0.4) is None
    assert most_telling({"bad-samples": 0.9, ELSE: 0.1}, [training, look], {}) is None, "nothing that they could tell"


def test_a_remedy_that_helped_speaks_for_its_cause_and_one_that_did_not_against_it():
    belief = {"learning-rate-high": 0.4, "overfitting": 0.3, ELSE: 0.3}
    shares = {verdict: after_remedy(belief, "learning-rate-high", verdict) for verdict in REMEDY_OUTCOMES}
    assert shares["helped"]["learning-rate-high"] > 0.6
    assert shares["did not help"]["learning-rate-high"] < 0.25
    assert shares["made it worse"]["learning-rate-high"] < shares["cannot tell"]["learning-rate-high"] < 0.4
    alike = after_remedy({"learning-rate-high": 0.5, "warmup-short": 0.5}, "learning-rate-high", "helped")
    other = after_remedy({"learning-rate-high": 0.5, "overfitting": 0.5}, "learning-rate-high", "helped")
    assert alike["learning-rate-high"] < other["learning-rate-high"], "a lower rate also helps where warm-up is missing"


@pytest.mark.parametrize(
    ("belief", "kind", "begin"),
    [
        (
            {"overfitting": 0.7, "bad-samples": 0.1, ELSE: 0.2},
            "cause",
            "Most likely cause (70%): The model is overfitting.",
        ),
        (
            {"overfitting": 0.4, "bad-samples": 0.35, ELSE: 0.25},
            "either",
            "One of two: The model is overfitting (40%); or: ",
        ),
        ({"overfitting": 0.3, "bad-samples": 0.02, ELSE: 0.68}, "possible", "Possible cause (30%): The model is"),
        ({"overfitting": 0.2, "bad-samples": 0.15, ELSE: 0.65}, "unknown", "Unknown: no cause is likelier than not."),
    ],
)
def test_it_ends_with_a_cause_or_two_or_an_honest_unknown(belief, kind, begin):
    found = conclude(belief)
    assert found.kind == kind and found.sentence.startswith(begin)
    quiet = conclude({"overfitting": 0.02, "bad-samples": 0.01, ELSE: 0.97}, is_suspect=False)
    assert quiet.kind == "nothing" and not quiet.causes


def test_of_another_program_the_experiment_is_a_recipe_with_what_each_outcome_means():
    record = broken_log(breaks)
    found = recipe(record, [of("learning-rate-high", 0.4), of("learning-rate-low", 0.35)])
    assert found["experiment"] in ("lower-rate", "higher-rate")
    assert found["recipe"].startswith(OUTCOMES[found["experiment"]].by_hand)
    told = {each["outcome"]: each["cause_id"] for each in found["outcomes"]}
    assert (
        told["better"] == {"lower-rate": "learning-rate-high", "higher-rate": "learning-rate-low"}[found["experiment"]]
    )
    assert math.isclose(found["before"]["learning-rate-high"], 0.4)
    settled = recipe(record, [of("learning-rate-high", 0.95, override="optimizer.learning_rate=1e-4")])
    assert settled["experiment"] is None and "1e-4" in settled["remedy"]
    with pytest.raises(UserError, match="no findings"):
        recipe(record, [])


@pytest.mark.parametrize("name", [each.name for each in OUTCOMES.values() if each.change is not None])
def test_with_fit_an_experiment_is_a_call_that_python_can_read(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipes, "most_telling", lambda *_: OUTCOMES[name])
    found = recipe(of_fit(run()), [of("learning-rate-high", 0.4), of("learning-rate-low", 0.35)])
    calls = re.findall(r"trainbook\.fit\(.*\)", found["recipe"])
    for call in calls:
        parsed: Any = ast.parse(call.replace("…", "**more"), mode="eval").body
        assert all(each.arg is None or each.arg.isidentifier() for each in parsed.keywords)
    assert bool(calls) is (name != "shuffled"), "the order is that of the user's own data loader"


def test_a_recipe_says_where_the_model_and_the_data_are():
    def why(origin: Any) -> str:
        return recipe(replace(of_fit(run()), origin=origin), [of("labels-random", 0.9)])["why"]

    assert "your own program" in why("fit") and "your own loop" in why("watch") and why("csv") == OF_ANOTHER_PROGRAM
