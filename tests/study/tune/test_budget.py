from __future__ import annotations

from dataclasses import replace

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import load
from trainbook.knobs.measured import largest_effect, measured
from trainbook.study.tune import budget
from trainbook.study.tune.budget import Budget, affordable, by_importance, choose, needed, parse_budget
from trainbook.study.tune.planning import make_plan
from trainbook.study.tune.study_file import read_question


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        (32, Budget(32)),
        ("32", Budget(32)),
        ("32 trials", Budget(32)),
        ("2.5 GPU-hours", Budget(2.5, "GPU-hours")),
        ("3h", Budget(3, "GPU-hours")),
        ("4B tokens", Budget(4e9, "tokens")),
        ("1.5e6 tokens", Budget(1.5e6, "tokens")),
        ("1,500,000 tokens", Budget(1.5e6, "tokens")),
        (".5 hours", Budget(0.5, "GPU-hours")),
        ("1 trial", Budget(1)),
        ("1h", Budget(1, "GPU-hours")),
    ],
)
def test_a_budget_is_read_and_can_be_read_again_as_it_is_shown(given: object, budget: Budget) -> None:
    assert parse_budget(given) == budget == parse_budget(str(budget))


def test_one_of_anything_is_told_as_one() -> None:
    assert [str(Budget(1)), str(Budget(1, "GPU-hours"))] == ["1 trial", "1 GPU-hour"]
    with pytest.raises(ConfigError, match="budget: 1 trial is too few"):
        read_question("gpt-tiny", budget="1")


@pytest.mark.parametrize(
    "given",
    [
        "many",
        "-3",
        "0",
        "2.5 trials",
        "5 apples",
        True,
        None,
        "1e999",
        "..5",
        "2,5 GPU-hours",
        "30m",
        "3k trials",
        "2m hours",
        "",
    ],
)
def test_what_is_no_budget_is_refused_with_the_law(given: object) -> None:
    with pytest.raises(UserError, match="budget: must be"):
        parse_budget(given)


def test_so_many_trials_are_tokens_whose_name_was_forgotten() -> None:
    with pytest.raises(UserError, match=r'from 1 to 100,000 trials, but got .* Did you mean "4e\+09 tokens"'):
        parse_budget("4e9")


def test_adams_knobs_follow_the_playbooks_numbers_of_trials() -> None:
    searched = {trials: affordable(trials) for trials in (3, 9, 10, 25, 26, 32)}
    assert searched == {3: 1, 9: 1, 10: 2, 25: 2, 26: 3, 32: 3}
    chosen = {trials: [each.path for each in choose(load("gpt-tiny"), trials)[0]] for trials in (9, 25)}
    assert chosen == {
        9: ["optimizer.learning_rate"],
        25: ["optimizer.learning_rate", "optimizer.beta1"],
    }
    assert len(choose(load("gpt-tiny"), 26)[0]) == 3


def test_knobs_without_effect_are_not_chosen() -> None:
    loaded = load({"optimizer": {"type": "sgd"}, "data": {"source": "x"}, "training": {"max_steps": 5}})
    paths = [each.path for each in choose(loaded, 200)[0]]
    assert "optimizer.momentum" in paths
    assert not {"optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"} & set(paths)


def test_a_knob_that_is_idle_with_one_of_the_compared_values_is_not_chosen() -> None:
    """All of that value's trials would be refused: sgd has no beta1."""
    arms = [{"optimizer.type": "adamw"}, {"optimizer.type": "sgd"}]
    chosen, words = choose(load("gpt-tiny"), 12, ["optimizer.type"], arms)
    assert [each.path for each in chosen] == ["optimizer.learning_rate", "schedule.type"]
    assert "optimizer.beta1" in words[-1] and "no effect with some of the compared values" in words[-1]


def test_the_words_say_what_is_searched_what_would_be_next_and_what_has_to_be_asked_for() -> None:
    _, words = choose(load("gpt-tiny"), 12)
    assert "optimizer.learning_rate and optimizer.beta1" in words[0]
    assert "would be added at 26 trials" in words[1]
    assert "model.hidden_size" in words[2]


def test_within_a_rank_what_mattered_most_in_our_studies_is_searched_first(monkeypatch: pytest.MonkeyPatch) -> None:
    effects = {"optimizer.beta2": 0.01, "optimizer.epsilon": 0.2, "optimizer.learning_rate": 0.0}
    monkeypatch.setattr(budget, "largest_effect", effects.get)
    order = [each.path for each in by_importance()]
    assert order[0] == "optimizer.learning_rate", "a rank is not overruled"
    assert order.index("optimizer.epsilon") < order.index("optimizer.beta2")


def test_the_largest_effect_is_one_that_a_study_confirmed() -> None:
    assert largest_effect("schedule.floor") is None, "nothing was measured"
    assert largest_effect("optimizer.epsilon") == 0.0
    of_beta1 = [facts for facts in measured("optimizer.beta1") if facts["verdict"] != "no evidence"]
    assert largest_effect("optimizer.beta1") == max(abs(facts["mean"]) for facts in of_beta1) > 0.05


def test_where_all_knobs_have_a_role_nothing_is_searched_and_that_is_said() -> None:
    chosen, words = choose(load("gpt-tiny"), 12, [each.path for each in by_importance()])
    assert chosen == [] and "no knob is left to search" in words[0]


def test_each_value_that_is_compared_has_to_be_tuned_for_itself() -> None:
    assert needed(2, arms=3) == 3 * needed(2) == 30
    assert needed(5) - needed(4) == 12


def test_what_is_fixed_and_what_would_displace_it_are_not_searched() -> None:
    question = read_question("gpt-tiny", budget="200")
    free = {each.path for each in make_plan(question, 200).space.dimensions}
    assert {"optimizer.learning_rate", "schedule.warmup_steps"} & free
    roles = replace(question.roles, fixed=(("optimizer.learning_rate", 1e-3), ("schedule.warmup_steps", 3)))
    left = {each.path for each in make_plan(replace(question, roles=roles), 200).space.dimensions}
    assert not {"optimizer.learning_rate", "schedule.warmup_steps", "schedule.warmup_ratio"} & left


@pytest.mark.parametrize(("trials", "end"), [(3, ", the most important knob"), (25, ", the most important knobs")])
def test_the_searched_knobs_are_counted_in_words(trials: int, end: str) -> None:
    _, words = choose(load("gpt-tiny"), trials)
    assert words[0].endswith(end)
