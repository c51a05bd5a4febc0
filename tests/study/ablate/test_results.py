from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.study.ablate.conftest import ARMS, DATA, Asks, carried_out

from trainbook.errors import RunError
from trainbook.knobs import load
from trainbook.study.ablate.conclusion import conclude, finish, seeds_for
from trainbook.study.ablate.outcomes import Point, RunOutcome, at_once
from trainbook.study.ablate.planning import Cell, cells_of
from trainbook.study.ablate.results import results
from trainbook.study.ablate.statistics import smallest_effect


def truth(cell: Cell, rate: float, seed: int) -> float:
    """momentum is better by 5 %; epsilon makes no difference. A seed is good or bad for all arms alike."""
    luck = 0.05 * float(np.random.default_rng(seed).standard_normal())
    own = 0.002 * float(np.random.default_rng([seed, len(cell[0]), len(cell[1])]).standard_normal())
    return (2.0 if cell[1] == "one" else 4.0) * (0.95 if cell[0] == "momentum" else 1.0) * (1 + own) + luck + rate


def facts_of(ask: Asks, text: str = ARMS + DATA, folder: Path = Path("none"), **options: object) -> dict:
    question = ask(text, **options)
    trials, plan = carried_out(question, truth)
    return results(question, plan, trials, folder)


def test_effects_are_shares_of_the_control_and_the_verdicts_those_of_the_truth(ask: Asks):
    facts = facts_of(ask)
    better, same = facts["arms"]
    assert (better["name"], better["verdict"]) == ("momentum", "better")
    assert better["effect"]["mean"] == pytest.approx(-0.05, abs=0.003) and better["effect"]["pairs"] == 10
    assert better["effect"]["low"] < -0.05 + 0.003 and better["effect"]["high"] < 0
    assert (same["name"], same["verdict"]) == ("epsilon", "equivalent")
    assert better["probability_of_improvement"][0] > 0.8
    assert [each["mean"] for each in facts["control"]["by_data"]] == pytest.approx([2, 4], abs=0.1)
    assert facts["cost"]["runs"] == len(facts["trials"]) == 60


def test_pairs_take_away_the_luck_of_a_seed(ask: Asks):
    """Its standard deviation between seeds is 10 times that of the differences."""
    momentum = facts_of(ask)["arms"][0]
    assert momentum["by_data"][0]["deviation"] / 2 > 5 * momentum["noise"]


def test_a_best_rate_at_an_edge_is_told(ask: Asks):
    facts = facts_of(ask)  # the truth's best rate is the lowest
    assert facts["control"]["by_data"][0]["edge"] == "lowest"
    assert any("best learning rate of the control was an outermost one" in line for line in conclude(facts))


def test_a_score_that_never_moves_shows_no_equivalence_and_rates_that_tie_are_told(ask: Asks):
    def stuck(cell: Cell, rate: float, seed: int) -> float:
        return 0.6667 if cell[0] != "momentum" else 0.7 + rate + 0.01 * seed % 0.03

    question = ask()
    trials, plan = carried_out(question, stuck)
    facts = results(question, plan, trials, Path("none"))
    other, same = facts["arms"]
    assert (same["name"], same["verdict"]) == ("epsilon", "no evidence") and not other["never_varied"]
    assert [each["data"] for each in same["never_varied"]] == ["one", "two"]
    said = conclude(facts)
    assert any(
        "is the same in every run of it and of the control (0.6667 on one, 0.6667 on two)" in each for each in said
    )
    assert any("of the control is the same at 5 learning rates" in each for each in said)
    assert facts["control"]["by_data"][0]["edge"] is None


def test_data_of_which_the_control_learned_nothing_is_told(ask: Asks, tmp_path: Path):
    question = ask()
    trials, plan = carried_out(question, truth)
    events = {"one": 2.03, "two": 4.9}
    for each in trials:
        cell = cells_of(question, plan)[each.arm]
        run = tmp_path / "trials" / f"trial-{each.number:04}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text('{"step": 1, "segment": 0, "split": "train", "time": 1.0, "loss": 5.0}\n')
        event = {"step": 0, "segment": 0, "time": 0.0, "kind": "start", "prior_loss": events[cell[1]]}
        (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    trials = [replace(each, run=f"trials/trial-{each.number:04}") for each in trials]
    said = [line for line in conclude(results(question, plan, trials, tmp_path)) if "guessing by frequency" in line]
    assert len(said) == 1 and said[0].startswith("On one the control ends at a loss of 2.0")


@pytest.mark.parametrize(("seeds", "noise", "is_told"), [(5, 0, True), (5, 60, False), (2, 0, False)])
def test_a_speed_is_told_only_if_the_runs_of_both_arms_lie_apart(
    ask: Asks, tmp_path: Path, seeds: int, noise: int, is_told: bool
):
    question = ask(seeds=seeds)
    trials, plan = carried_out(question, truth)
    for each in trials:
        arm, _ = cells_of(question, plan)[each.arm]
        speed = (80 if arm == "momentum" else 100) + noise * ((each.seed or 0) % 2)
        run = tmp_path / "trials" / f"trial-{each.number:04}"
        run.mkdir(parents=True)
        rows = [{"step": step, "segment": 0, "split": "train", "time": each.number + step / 10} for step in (1, 2, 3)]
        rows = [{**row, "loss": 5.0, "tokens_per_second": speed} for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trials = [replace(each, run=f"trials/trial-{each.number:04}") for each in trials]
    said = conclude(results(question, plan, trials, tmp_path))
    assert ("momentum has 0.80 times the control's tokens per second." in said) is is_told
    assert any("tokens per second" in line for line in said) is is_told


def opposite(cell: Cell, rate: float, seed: int) -> float:
    """momentum helps on one data set, and harms on the other."""
    helps = cell[1] == "one"
    return truth(cell, rate, seed) * (1.0 if cell[0] != "momentum" else 0.9 / 0.95 if helps else 1.02 / 0.95)


def test_data_sets_that_disagree_on_the_sign_are_told(ask: Asks):
    question = ask()
    trials, plan = carried_out(question, opposite)
    momentum, epsilon = conclude(results(question, plan, trials, Path("none")))[:2]
    assert "It depends on the data: better on one (-" in momentum and " %), worse on two (+" in momentum
    assert "It depends" not in epsilon


def of_times(began: float, ended: float) -> RunOutcome:
    return RunOutcome((), 5.0, None, None, 0, 0, span=(began, ended))


def test_runs_that_follow_each_other_share_nothing():
    assert at_once([]) == 0 and at_once([of_times(0, 10), of_times(10, 20), of_times(25, 30)]) == 1
    assert at_once([of_times(0, 10), of_times(5, 20), of_times(9, 12), of_times(12, 13)]) == 3


def test_an_arm_that_cannot_be_trained_is_no_evidence(ask: Asks):
    question = ask()
    trials, plan = carried_out(
        question, lambda cell, rate, seed: None if cell[0] == "epsilon" else truth(cell, rate, seed)
    )
    facts = results(question, plan, trials, Path("none"))
    assert facts["arms"][1]["verdict"] == "no evidence" and facts["arms"][1]["effect"] is None
    said = conclude(facts)
    assert any(line.startswith("epsilon: no evidence either way, because fewer than two seeds") for line in said)
    assert any(line == "epsilon could not be trained on one at any of the learning rates." for line in said)


def test_no_evidence_says_what_the_design_could_see_and_how_many_seeds_it_takes(ask: Asks):
    def noisy(cell: Cell, rate: float, seed: int) -> float:
        return 2 + 0.05 * float(np.random.default_rng([seed, len(cell[0])]).standard_normal()) + rate

    question = ask(ARMS)
    facts = results(question, *reversed(carried_out(question, noisy)), Path("none"))  # pyright: ignore
    line = conclude(facts)[0]
    assert (
        line.startswith("momentum: no evidence either way")
        and "is found in 80 % of studies; to find one of 1 %" in line
    )


def effect_of_arm(facts: dict, **changed: float) -> dict:
    """The study with another effect of its first arm, which is not confirmed."""
    first, *others = facts["arms"]
    corrected = changed.pop("p_corrected")
    effect = first["effect"] | {"mean": -0.08, "low": -0.1, "high": -0.05, **changed}
    arm = first | {"verdict": "no evidence", "p_corrected": corrected, "effect": effect}
    return facts | {"arms": [arm, *others]}


@pytest.mark.parametrize(
    ("p_corrected", "p_flips", "least", "reason"),
    [
        (0.0013, 0.062, 6.1e-5, "because the sign-flip test does not agree (p = 0.062)."),
        (0.064, 6.1e-5, 6.1e-5, "because p = 0.064 after Holm's correction for 2 arms."),
        (0.14, 0.0625, 0.0625, "because p = 0.14 after Holm's correction for 2 arms."),  # five pairs can show no less
        (
            0.14,
            0.07,
            6.1e-5,
            "because p = 0.14 after Holm's correction for 2 arms and the sign-flip test does not agree (p = 0.07).",
        ),
    ],
)
def test_a_difference_that_one_of_the_tests_does_not_confirm_says_which(
    ask: Asks, p_corrected: float, p_flips: float, least: float, reason: str
):
    line = conclude(effect_of_arm(facts_of(ask), p_corrected=p_corrected, p_flips=p_flips, least_flips=least))[0]
    assert line.startswith("momentum: not confirmed: -8.00 % (95 % interval -10.00 % to -5.00 %, 10 pairs of runs), ")
    assert reason in line and "no evidence" not in line


WIDE = "rates: [1e-4, 1e-3, 1e-2, 1e-1, 1]\n"


def with_sensitivity(facts: dict, control: list[float], arm: list[float]) -> dict:
    """The study with these sensitivities of the control and of its first arm, by data set."""

    def put(of: dict, values: list[float]) -> dict:
        return of | {"by_data": [e | {"sensitivity": v} for e, v in zip(of["by_data"], values, strict=True)]}

    first, *others = facts["arms"]
    return facts | {"control": put(facts["control"], control), "arms": [put(first, arm), *others]}


@pytest.mark.parametrize(
    ("arm", "which"),
    [([0.2, 0.75], "less"), ([0.9, 1.4], "more"), ([0.2, 0.8], None), ([0.2, 2.0], None), ([0.5, 1.2], None)],
)
def test_an_arm_of_another_sensitivity_to_the_learning_rate_on_every_data_set_is_told(
    ask: Asks, arm: list[float], which: str | None
):
    facts = with_sensitivity(facts_of(ask, ARMS + DATA + WIDE), [0.4, 1.0], arm)
    said = [line for line in conclude(facts) if line.startswith("momentum is") and "sensitive" in line]
    assert len(said) == (which is not None)
    if which:
        assert said[0].startswith(
            f"momentum is {which} sensitive to the learning rate than the control: the loss is above its best one by "
            f"{arm[0]:g} and {arm[1]:g} on one and two, against 0.4 and 1, in the mean over 5 rates from 0.0001 to 1 "
        )


@pytest.mark.parametrize("text", [ARMS + DATA, ARMS + WIDE, ARMS + DATA + "rates: [1e-4, 1e-2, 1e-1, 1]\n"])
def test_few_or_near_rates_or_one_data_set_say_nothing_of_a_sensitivity(ask: Asks, text: str):
    facts = facts_of(ask, text)
    few = len(facts["data"])
    assert not any("sensitive to" in e for e in conclude(with_sensitivity(facts, [0.4] * few, [0.1] * few)))


def test_an_arm_that_is_evaluated_on_something_else_is_told(ask: Asks):
    facts = facts_of(ask)
    assert not any("is measured on" in line for line in conclude(facts))
    facts["arms"][0]["values"] = {"training.mask_ratio": 0.4}
    assert any(
        line.startswith("momentum changes training.mask_ratio, and with it what the loss is measured on")
        for line in conclude(facts)
    )


def test_the_seeds_that_an_effect_takes_see_it(ask: Asks):
    for noise_, data_sets, arms in ((0.008, 2, 2), (0.02, 1, 1), (0.03, 3, 5)):
        seeds = seeds_for(0.01, noise_, data_sets, arms)
        assert seeds is not None and smallest_effect(noise_, seeds, data_sets, arms) <= 0.01
    assert seeds_for(0.01, 1.0, 1, 1) is None and seeds_for(0.01, 0.0, 1, 1) == 2


def test_the_answer_is_written_with_a_recipe_that_loads_and_pictures(ask: Asks, tmp_path: Path):
    pytest.importorskip("matplotlib")
    question = ask()
    trials, plan = carried_out(question, truth)
    folder = tmp_path / "study"
    folder.mkdir()
    facts = finish(question, plan, trials, folder)
    assert facts["best"] == "momentum" and load(Path(facts["recipe"])).config.optimizer.beta1 == 0.8
    assert load(Path(facts["recipe"])).config.optimizer.learning_rate == question.rates[0]
    assert [Path(each).name for each in facts["pictures"]] == ["effects.png", "rates.png"] and not facts["remarks"]
    assert json.loads((folder / "ablation.json").read_text())["best"] == "momentum"
    assert "momentum is better than the control: loss -" in (folder / "conclusion.md").read_text()


def test_a_study_whose_control_never_ends_with_a_loss_fails_and_says_why(ask: Asks, tmp_path: Path):
    question = ask()
    trials, plan = carried_out(question, lambda cell, rate, seed: None)
    with pytest.raises(
        RunError, match=r"No run of the control ended with a value of loss. The first trial reported: div"
    ):
        finish(question, plan, trials, tmp_path)


def test_the_first_evaluation_that_reaches_a_target_on_a_straight_line():
    points = (Point(10, 100, 1.0, 3.0), Point(20, 200, 2.0, 2.0), Point(30, 300, 3.0, 2.5))
    outcome = RunOutcome(points, 5.0, None, None, 0, 0)
    assert outcome.reaches(2.5, 1) == Point(20, 150, 1.5, 2.5) and outcome.best(1) == 2.0
    assert outcome.reaches(1.0, 1) is None and outcome.reaches(4.0, 1) == points[0]
    assert outcome.reaches(2.9, -1) == points[0] and math.isinf(RunOutcome((), 1, None, None, 0, 0).best(1))
