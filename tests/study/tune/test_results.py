from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.tune.conftest import Asks

from trainbook.errors import RunError
from trainbook.knobs import load
from trainbook.study.tune.conclusion import conclude, finish, recipe_text
from trainbook.study.tune.planning import Plan, extended, is_spent, next_order
from trainbook.study.tune.pruning import expected_share
from trainbook.study.tune.results import read
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial

RATE, BETA = "optimizer.learning_rate", "optimizer.beta1"
Loss = Callable[[Trial, dict[str, Any]], float | None]


def tried(
    question: StudyQuestion, loss: Loss, begun: tuple[dict[str, Any], list[Trial]] | None = None
) -> tuple[dict[str, Any], list[Trial]]:
    """A whole study without workers; or the rest of one that was `begun` with a smaller budget."""
    trials: list[Trial] = list(begun[1]) if begun else []
    plan: dict[str, Any] = extended(question, begun[0]) if begun else {}
    while True:
        order = next_order(question, trials, plan or None)
        plan |= dict(order.plan or {})
        if order.refused or not order.trials:
            return {**plan, **({"refused": order.refused} if order.refused else {})}, trials
        for each in order.trials:
            value = loss(each, {RATE: 2e-3, BETA: 0.9, **each.values})
            state = "done" if value is not None else "infeasible"
            trials.append(replace(each, state=state, loss=value, tokens=1000, seconds=36.0, gpu_seconds=36.0))


def facts_of(question: StudyQuestion, loss: Loss) -> dict[str, Any]:
    plan, trials = tried(question, loss)
    return read(question, Plan.from_json(plan), trials)


def bowl(best: float = 5e-4, steepness: float = 1.0) -> Loss:
    return lambda trial, values: 1 + steepness * math.log10(values[RATE] / best) ** 2 + 1e-3 * ((trial.seed or 0) % 3)


def test_the_best_is_told_with_its_repeated_seeds_and_their_spread(ask: Asks) -> None:
    question = ask(budget=16, seeds=3)
    facts = facts_of(question, bowl())
    best = facts["best"]
    seeds = [int(seed) for seed in best["repeats"]["losses"]]
    assert len(seeds) == 3 and question.loaded.config.training.seed not in seeds
    assert best["repeats"]["spread"] == pytest.approx(1e-3)
    assert best["loss"] == min(each["loss"] for each in facts["trials"] if each["kind"] != "repeat")
    assert facts["difference"]["verdict"] == "better" and facts["difference"]["mean"] < 0
    assert "The gain is larger than seed noise." in " ".join(conclude(facts))


def test_a_gain_within_the_luck_of_seeds_is_not_called_one(ask: Asks) -> None:
    noise = {"base": (0.0, 0.3, -0.2), "repeat": (0.1, -0.3, 0.25)}
    facts = facts_of(
        ask(budget=8, seeds=3),
        lambda trial, values: (
            2.0
            - 1e-3 * trial.number
            + (
                noise["repeat"][trial.number % 3]
                if trial.of
                else noise["base"][trial.number % 3]
                if trial.kind == "repeat"
                else 0.0
            )
        ),
    )
    assert facts["difference"]["verdict"] == "cannot tell"
    assert "Seed noise alone could explain that." in " ".join(conclude(facts))


def lucky_once(trial: Trial, values: dict[str, Any]) -> float:
    """The last three are ahead of the base: the last one by luck, and the one before it with new seeds."""
    number = trial.number if trial.of is None else trial.of
    once, again = {0: (2.0, 2.0), 5: (1.9, 1.88), 6: (1.8, 1.7), 7: (1.5, 1.87)}.get(number, (3.0, 3.0))
    return once if trial.of is None else again + 0.01 * (((trial.seed or 0) * (number + 1)) % 4)


def test_a_lucky_best_is_told_beside_the_one_that_is_taken_in_its_place(ask: Asks) -> None:
    question = ask(budget=8, seeds=3)
    facts = facts_of(question, lucky_once)
    assert facts["best"]["number"] == 6 and [each["number"] for each in facts["finalists"]] == [7, 6, 5]
    means = {each["number"]: each["repeats"]["mean"] for each in facts["finalists"]}
    assert min(means, key=lambda number: means[number]) == 6
    assert all(len(each["repeats"]["losses"]) == 3 for each in facts["finalists"])
    told = conclude(facts)
    assert facts["repeated"] == [7, 6, 5, 0]
    assert "Repeated with 3 new seeds: trials 7, 6 and 5, the best three, and the base (trial 0)." in told
    assert told[0].startswith("Best: trial 6 (") and "loss 1.8; mean 1.7" in told[0]
    assert told[1].startswith("Trial 7 had the lowest loss in the search (1.5), but mean 1.8")
    assert told[1].endswith(" (standard deviation) over 3 new seeds, so trial 6 is preferred.")
    recipe = load(Path("best.yaml"), text=recipe_text(facts, question.loaded, "s"))
    assert recipe.config.optimizer.learning_rate == facts["best"]["values"][RATE]
    assert "is preferred" not in " ".join(conclude(facts_of(question, bowl())))
    assert "is preferred" not in " ".join(conclude(facts_of(ask(budget=8, seeds=0), lucky_once)))


def test_a_lucky_best_is_told_as_the_highest_where_higher_is_better(ask: Asks) -> None:
    question = ask("metric: accuracy\nnuisance: {learning_rate: }\n", budget=8, seeds=3)
    facts = facts_of(question, lambda trial, values: 1 / lucky_once(trial, values))
    assert facts["best"]["number"] == 6
    assert conclude(facts)[1].startswith("Trial 7 had the highest accuracy in the search (0.6667), but mean 0.5")


def test_a_best_whose_repetitions_failed_for_other_reasons_is_told_and_not_taken(ask: Asks) -> None:
    question = ask(budget=8, seeds=3)
    plan, trials = tried(question, lucky_once)
    why = "Trial 7 had the lowest loss in the search (1.5), but no loss with new seeds"
    for numbers, taken in (({7}, "trial 6"), ({5, 6, 7}, "the base")):
        failed = [replace(each, state="failed", loss=None) if each.of in numbers else each for each in trials]
        told = conclude(read(question, Plan.from_json(plan), failed))
        assert told[1] == f"{why}, so {taken} is preferred."
    assert told[2] == "No trial beats the base and holds with new seeds: keep the base."


def half_of_interval(repeated: list[dict[str, Any]], comparisons: int) -> float:
    """By ordinary least squares on the effects of trial and seed."""
    import numpy as np
    from scipy.stats import t

    table = np.array([list(each["repeats"]["losses"].values()) for each in repeated])
    rows, columns = table.shape
    trial, seed = np.indices(table.shape).reshape(2, -1)
    effects = np.hstack([np.eye(rows)[trial], np.eye(columns)[seed][:, 1:]])
    left = table.ravel() - effects @ np.linalg.lstsq(effects, table.ravel(), rcond=None)[0]
    freedom = table.size - effects.shape[1]
    return float(t.ppf(1 - 0.025 / comparisons, freedom) * np.sqrt(left @ left / freedom * 2 / columns))


def test_the_interval_of_the_best_allows_for_those_that_new_seeds_chose_it_from(ask: Asks) -> None:
    for loss, num_finalists in ((lucky_once, 3), (lambda trial, values: float(7 not in (trial.number, trial.of)), 1)):
        facts = facts_of(
            ask(budget=8, seeds=3), lambda trial, values, of=loss: of(trial, values) + 0.01 * (trial.number % 5)
        )
        repeated = [*facts["finalists"], facts["base"]]
        low, high = facts["difference"]["interval"]
        assert len(facts["finalists"]) == num_finalists and facts["difference"]["seeds"] == 3
        assert (high - low) / 2 == pytest.approx(half_of_interval(repeated, num_finalists)) and high > low


def test_of_two_trials_the_interval_is_that_of_the_paired_t_test(ask: Asks) -> None:
    from scipy.stats import ttest_rel

    from trainbook.study.tune.results import paired

    losses = [{"1": 2.1, "2": 2.4, "3": 2.2}, {"1": 2.0, "2": 2.5, "3": 1.9}]
    new, old = ({"number": number, "repeats": {"losses": each, "infeasible": 0}} for number, each in enumerate(losses))
    found = paired(ask(), new, old)
    expected = ttest_rel(list(losses[0].values()), list(losses[1].values())).confidence_interval(0.95)
    assert found is not None and found["interval"] == pytest.approx([expected.low, expected.high])


def test_finalists_within_seed_noise_of_the_best_are_told_as_tied(ask: Asks) -> None:
    noise = (0.11, -0.09, 0.02)

    def close(trial: Trial, values: dict[str, Any]) -> float:
        number = trial.number if trial.of is None else trial.of
        level = {0: 3.0, 6: 1.988, 7: 1.986}.get(number, 2.5)
        return level + (noise[((trial.seed or 0) + number) % 3] if trial.of is not None else 0.0)

    facts = facts_of(ask(budget=8, seeds=3), close)
    told = " ".join(conclude(facts))
    assert {facts["best"]["number"], *facts["ties"]} == {6, 7}
    assert "cannot be told apart from trial" in told and "treat them as tied" in told
    assert facts_of(ask(budget=8, seeds=1), close)["ties"] == []  # one seed says nothing about seeds
    assert facts_of(ask(budget=8, seeds=3), lucky_once)["ties"] == []


def diverging(*numbers: int, base: bool = False) -> Loss:
    """As `bowl`, but these cannot be trained with any new seed but the first; nor can the base, if asked."""

    def loss(trial: Trial, values: dict[str, Any]) -> float | None:
        is_lost = trial.of in numbers or (base and trial.of == 0)
        return None if is_lost and (trial.seed or 0) % 3 != 1 else bowl()(trial, values)

    return loss


def test_a_best_that_diverges_with_new_seeds_is_not_recommended_and_the_next_one_is_repeated(ask: Asks) -> None:
    question = ask(budget=16, seeds=3)
    best = facts_of(question, bowl())["best"]["number"]
    facts = facts_of(question, diverging(best))
    assert facts["best"]["number"] not in (best, 0) and facts["best"]["repeats"]["infeasible"] == 0
    assert [each["number"] for each in facts["unstable"]] == [best]
    assert facts["unstable"][0]["repeats"]["infeasible"] == 2
    told = " ".join(conclude(facts))
    assert (
        f"Trial {best} reached" in told and "could not be trained with 2 of 3 new seeds: it is not recommended" in told
    )


def test_the_base_is_kept_where_nothing_better_holds_with_new_seeds(ask: Asks) -> None:
    question = ask(budget=16, seeds=3)
    facts = facts_of(question, diverging(*range(1, 16)))
    assert facts["best"]["number"] == 0 and len(facts["unstable"]) == 3
    assert "No trial beats the base and holds with new seeds" in " ".join(conclude(facts))
    assert "Nothing beat the base: these are its values." in recipe_text(facts, question.loaded, "s")


def test_where_the_base_diverges_too_no_gain_is_called_one(ask: Asks) -> None:
    question = ask(budget=16, seeds=4)
    facts = facts_of(question, diverging(*range(1, 16), base=True))
    assert facts["unstable"] == [] and facts["best"]["repeats"]["infeasible"] > 0
    assert facts["difference"]["mean"] < 0 and facts["difference"]["verdict"] == "cannot tell"
    assert "could not be trained with every seed" in " ".join(conclude(facts))


def test_a_best_without_a_single_repetition_that_trained_is_told_as_such(ask: Asks) -> None:
    lost = facts_of(ask(budget=8), lambda trial, values: None if trial.seed else bowl()(trial, values))
    told = conclude(lost)[0]
    assert "It was not repeated" not in told and "2 could not be trained. Do not use it." in told
    assert lost["best"]["repeats"]["mean"] is None
    assert "It was not repeated" in conclude(facts_of(ask(budget=8, seeds=0), bowl()))[0]


@pytest.mark.parametrize(("best", "end"), [(1e-7, "low"), (1.0, "high")])
def test_a_best_at_an_end_of_the_range_is_told_as_one(ask: Asks, best: float, end: str) -> None:
    facts = facts_of(ask(budget=24), bowl(best))
    assert [(each["knob"], each["end"]) for each in facts["boundary"]] == [(RATE, end)]
    assert f"at the {end} end of what was tried" in " ".join(conclude(facts))


def test_the_highest_value_tried_is_an_end_also_inside_of_the_range(ask: Asks) -> None:
    """Eight points do not reach the ends of the range: what lies above the highest of them is not known."""
    facts = facts_of(ask("nuisance: {learning_rate: {low: 1e-5, high: 0.1}}\n", budget=4), bowl(1.0))
    tried_rates = [each["values"].get(RATE, 2e-3) for each in facts["trials"]]
    assert facts["best"]["values"][RATE] == max(tried_rates) < 0.1 * 10**-0.2  # not within 5 % of the end
    assert [(each["knob"], each["end"]) for each in facts["boundary"]] == [(RATE, "high")]
    above = facts_of(
        ask("nuisance: {learning_rate: {low: 1e-5, high: 0.1}}\n", budget=16),
        lambda trial, values: None if values[RATE] > 1e-2 else bowl(1.0)(trial, values),
    )
    assert above["boundary"] == []  # what lies above it diverged


def test_a_best_in_the_middle_is_at_no_end(ask: Asks) -> None:
    assert facts_of(ask(budget=24), bowl())["boundary"] == []


def test_a_knob_that_has_no_part_in_the_best_is_at_no_end(ask: Asks) -> None:
    """The default momentum is at an end of the range, but adamw has none."""
    momentum = "{low: 0.9, high: 0.99, only_if: {optimizer.type: sgd}}"
    question = ask(f"nuisance:\n  optimizer.type: [adamw, sgd]\n  momentum: {momentum}\n", budget=64, seeds=0)
    assert question.loaded.config.optimizer.momentum == 0.9
    facts = facts_of(question, lambda trial, values: 2.0 if values.get("optimizer.type") == "sgd" else 1.0)
    assert facts["boundary"] == []
    facts = facts_of(question, lambda trial, values: 2.0 - values.get("optimizer.momentum", 0.0))
    assert [each["end"] for each in facts["boundary"]] == ["high"]


def test_a_lonely_best_is_told_as_one(ask: Asks) -> None:
    alone = facts_of(ask(budget=12), lambda trial, values: 1.0 if trial.number == 5 or trial.of == 5 else 3.0)
    assert alone["good_region"]["points"] == 1 and not alone["good_region"]["enough"]
    assert facts_of(ask(budget=12), bowl(steepness=0.01))["good_region"]["enough"]


def test_one_trial_is_told_as_one(ask: Asks) -> None:
    question = ask(budget=3, seeds=0)
    plan, trials = tried(question, bowl())
    trials[2] = replace(trials[2], state="failed", loss=None)
    told = " ".join(conclude(read(question, Plan.from_json(plan), trials)))
    assert "1 trial failed for other reasons and is left out." in told
    assert "1 trial besides the base ended with a loss, and shares of importance" in told


def test_what_diverged_is_counted_and_is_in_no_number(ask: Asks) -> None:
    facts = facts_of(ask(budget=16), lambda trial, values: None if values[RATE] > 3e-3 else bowl()(trial, values))
    lost = sum(each["state"] == "infeasible" for each in facts["trials"])
    assert lost > 0 and facts["infeasible_share"] == lost / 15 and facts["counts"]["infeasible"] == lost
    assert all(each["loss"] is None for each in facts["trials"] if each["state"] == "infeasible")
    assert all(math.isfinite(value) for value in facts["best"]["repeats"]["losses"].values())


def test_higher_is_better_where_the_metric_says_so(ask: Asks) -> None:
    question = ask("metric: accuracy\nnuisance: {learning_rate: }\n", budget=16)
    facts = facts_of(question, lambda trial, values: 1 / (bowl()(trial, values) or 1))
    assert facts["best"]["loss"] == max(each["loss"] for each in facts["trials"] if each["kind"] != "repeat")
    assert facts["difference"]["verdict"] == "better"
    assert "higher than the base" in " ".join(conclude(facts))


# Importance

KNOBS = "nuisance: {learning_rate: , beta1: }\n"


def dominated(trial: Trial, values: dict[str, Any]) -> float:
    return (math.log10(values[RATE]) + 3) ** 2 + 0.01 * (math.log10(1 - values[BETA]) + 1) ** 2


def test_the_knob_that_decides_nearly_all_is_found_to(ask: Asks) -> None:
    shares = facts_of(ask(KNOBS, budget=64, seeds=0), dominated)["importance"]
    assert shares[RATE] > 0.8 and sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"budget": 20}, "19 trials besides the base ended with a loss, and shares of importance need 30"),
        ({"budget": 40, "pruning": "asha"}, "pruned trials are missing"),
        ({"budget": 40, "method": "zoom"}, "zoom follows its own results"),
        ({"budget": 40, "method": "one-at-a-time"}, "one-at-a-time changes one knob at a time"),
    ],
)
def test_importance_is_refused_where_it_would_mislead(ask: Asks, options: dict[str, Any], why: str) -> None:
    facts = facts_of(ask(KNOBS, seeds=0, **options), dominated)
    assert facts["importance"] is None and why in facts["importance_refused"]


def test_a_space_of_fewer_points_than_trials_is_told(ask: Asks) -> None:
    few = facts_of(ask("nuisance: {schedule.type: [cosine, linear, constant]}\n", budget=8, seeds=0), level)
    assert "The search ended after 3 of 8 trials: there is no other point to try in the search space." in conclude(few)
    for method, told in (
        ("zoom", "zoom found no other point to try"),
        ("one-at-a-time", "there is no other point to try, one knob at a time"),
    ):
        text = "nuisance: {schedule.type: [cosine, linear, constant]}\n"
        few = facts_of(ask(text, budget=8, seeds=0, method=method), level)
        assert f"The search ended after 3 of 8 trials: {told}." in conclude(few)
    assert "no other point" not in " ".join(conclude(facts_of(ask(KNOBS, budget=12, seeds=0), dominated)))


def level(trial: Trial, values: dict[str, Any]) -> float:
    return 2.0


# What is compared


def test_each_compared_value_is_tuned_for_itself_on_the_same_points(ask: Asks) -> None:
    question = ask("scientific: {model.dropout: [0.0, 0.1]}\nnuisance: {learning_rate: }\n", budget=16, seeds=2)
    facts = facts_of(
        question,
        lambda trial, values: (
            1 + values["model.dropout"] + math.log10(values[RATE] / (1e-4 if values["model.dropout"] else 3e-3)) ** 2
        ),
    )
    rates = [
        [
            each["values"][RATE]
            for each in facts["trials"]
            if each["kind"] == "search" and each["values"]["model.dropout"] == arm
        ]
        for arm in (0.0, 0.1)
    ]
    assert rates[0] == rates[1] and len(rates[0]) == 7
    bests = [arm["best"]["values"] for arm in facts["arms"]]
    assert bests[0][RATE] > 5 * bests[1][RATE]
    assert facts["best"]["values"]["model.dropout"] == 0.0


ARMS = "scientific: {model.dropout: [0.0, 0.1]}\nnuisance: {learning_rate: }\n"


def lucky(trial: Trial, values: dict[str, Any]) -> float:
    """With dropout better by 0.2 with every seed; but one run without it was very lucky."""
    dropout = values["model.dropout"]
    luck = 0.9 if trial.kind == "search" and not dropout and trial.number % 5 == 0 else 0.0
    return 2 - 2 * dropout - luck + 0.1 * math.log10(values[RATE] / 1e-3) ** 2 + 1e-3 * ((trial.seed or 0) % 3)


def test_between_compared_values_new_seeds_decide_and_not_the_luckiest_run(ask: Asks) -> None:
    facts = facts_of(ask(ARMS, budget=16, seeds=3), lucky)
    assert min(facts["trials"], key=lambda each: each["loss"])["values"]["model.dropout"] == 0.0
    assert facts["best"]["values"]["model.dropout"] == 0.1
    (answer,) = facts["comparison"]
    assert answer["compared"] == {"model.dropout": 0.1} and answer["against"] == {"model.dropout": 0.0}
    assert answer["verdict"] == "better" and answer["seeds"] == 3 and answer["interval"][1] < 0
    told = " ".join(conclude(facts))
    assert "model.dropout=0.1 is " in told and "each at its best. It is better." in told


def test_an_arm_whose_base_is_better_than_all_that_was_tried_there_is_judged_by_its_base(ask: Asks) -> None:
    """Without dropout the base has 1.5 with every new seed and the rest 2; with it the best has 1.9, its base 2."""

    def of(trial: Trial, values: dict[str, Any]) -> float:
        is_base = trial.kind == "base" or trial.of in (0, 1)
        if values["model.dropout"]:
            return 2.0 if is_base else 1.9 + 1e-4 * trial.number
        return (1.5 if is_base else 2.0) if trial.kind == "repeat" else (1.5 if is_base else 1.4 + 1e-3 * trial.number)

    facts = facts_of(ask(ARMS, budget=16, seeds=3), of)
    assert facts["base"]["values"]["model.dropout"] == 0.0 and facts["difference"]["mean"] > 0
    (answer,) = facts["comparison"]
    assert answer["compared"] == {"model.dropout": 0.0} and answer["mean"] == pytest.approx(-0.4, abs=0.02)
    told = " ".join(conclude(facts))
    assert "with the base's values, which no trial beat: 1.5" in told


def test_a_base_that_cannot_be_judged_ends_the_study_at_once(ask: Asks) -> None:
    question = ask()
    bases = [
        replace(each, state="infeasible", reason="it has no loss") for each in next_order(question, [], None).trials
    ]
    assert "to compare trials by" in (next_order(question, bases, None).refused or "")


def test_repetitions_that_were_made_are_not_to_be_paid_again(ask: Asks) -> None:
    few = "nuisance: {learning_rate: [1e-3, 3e-3, 1e-2, 2e-3]}\n"
    facts = facts_of(ask(few, budget="12000 tokens", seeds=1), bowl())
    assert facts["tokens"] < 11000 and not facts["budget_is_spent"]
    assert "there is no other point to try" in " ".join(conclude(facts))


def test_a_budget_of_which_much_is_left_since_the_base_was_dear_is_told(ask: Asks) -> None:
    question = ask(budget="20000 tokens", seeds=1)
    plan, trials = tried(question, bowl())
    cheap = [each if each.kind == "base" else replace(each, tokens=200) for each in trials]
    facts = read(question, Plan.from_json(plan), cheap)
    assert facts["budget_used"] == pytest.approx((1000 + 19 * 200) / 20000)
    assert "Only 24% of 20,000 tokens was used" in " ".join(conclude(facts))
    assert "was used" not in " ".join(conclude(read(question, Plan.from_json(plan), trials)))


def test_between_compared_values_the_interval_allows_for_those_to_choose_from_too(ask: Asks) -> None:
    three = "scientific: {model.dropout: [0.0, 0.1, 0.2]}\nnuisance: {learning_rate: }\n"
    facts = facts_of(
        ask(three, budget=24, seeds=3),
        lambda trial, values: (
            2 - 0.1 * (trial.kind != "base" and trial.of not in (0, 1, 2)) + 0.01 * (trial.number**2 % 11)
        ),
    )
    assert len(facts["comparison"]) == 2 and len(facts["finalists"]) == 3
    repeated = [each for arm in facts["arms"] for each in (*arm["finalists"], arm["base"])]
    for answer in facts["comparison"]:
        low, high = answer["interval"]
        half = half_of_interval(repeated, comparisons=2 * (3 + 1))
        assert (high - low) / 2 == pytest.approx(half) and high > low


def test_what_seeds_explain_is_no_answer_to_what_is_compared(ask: Asks) -> None:
    noise = (0.3, -0.2, 0.1, -0.4, 0.25)
    facts = facts_of(ask(ARMS, budget=16, seeds=3), lambda trial, values: 2 + noise[(7 * trial.number) % 5])
    assert [each["verdict"] for each in facts["comparison"]] == ["cannot tell"]
    assert "do not show which one is better" in " ".join(conclude(facts))
    alone = facts_of(ask(ARMS, budget=16, seeds=0), lucky)
    assert "undecided, because they share no repeated seed" in " ".join(conclude(alone))


def test_the_recipe_says_that_nothing_was_better_than_the_base_where_values_are_compared_too(ask: Asks) -> None:
    question = ask(ARMS, budget=16, seeds=2)
    facts = facts_of(question, lambda trial, values: 1.0 if trial.kind == "base" or trial.of in (0, 1) else 2.0)
    assert "Nothing beat the base" in recipe_text(facts, question.loaded, "s")


def test_importance_is_read_from_one_compared_value_at_a_time(ask: Asks) -> None:
    text = ARMS.replace("{learning_rate: }", "{learning_rate: , beta1: }")
    few = facts_of(ask(text, budget=50, seeds=0), dominated)  # 24 of each
    assert few["importance"] is None and "24 trials besides the base ended with a loss" in few["importance_refused"]
    assert "for each value that is compared" in few["importance_refused"]
    enough = facts_of(ask(text, budget=66, seeds=0), dominated)
    assert enough["importance"][RATE] > 0.8 and all(arm["importance"] for arm in enough["arms"])


# Budgets that are not in trials


def test_a_budget_that_is_spent_ends_the_search_and_leaves_enough_for_the_repetitions(ask: Asks) -> None:
    question = ask(budget="26000 tokens", seeds=2)
    base = Trial(0, "base", {}, state="done", loss=1.0, tokens=1000)
    dear = [Trial(number, "search", {}, state="done", loss=1.0, tokens=3000) for number in range(1, 5)]
    assert not is_spent(question, [base, *dear[:1]]) and is_spent(question, [base, *dear])
    under_way = [replace(each, state="running", tokens=0) for each in dear[1:]]
    cheap = ask(budget="9000 tokens", seeds=0)
    assert is_spent(cheap, [base, dear[0], *under_way]) and not is_spent(cheap, [base, dear[0], *under_way[:2]])
    hours = ask(budget="1 GPU-hours", seeds=0)
    shared = replace(base, seconds=7200.0, gpu_seconds=1800.0)  # four workers on one GPU
    assert not is_spent(hours, [shared]) and is_spent(hours, [replace(shared, gpu_seconds=3600.0)])


def test_of_trials_that_are_stopped_early_more_are_planned(ask: Asks) -> None:
    plans = [tried(ask(budget="20000 tokens", seeds=2, pruning=each), bowl())[0] for each in ("none", "asha")]
    assert plans[0]["trials"] == 12 and plans[1]["trials"] == 1 + int(11 / expected_share("asha"))


def test_a_budget_in_tokens_or_hours_becomes_trials_when_the_base_has_been_seen(ask: Asks) -> None:
    for budget in ("20000 tokens", "0.2 GPU-hours"):  # 1,000 tokens and a hundredth of an hour each
        plan, trials = tried(ask(budget=budget, seeds=2), bowl())
        assert len(trials) == 20 and plan["trials"] == 12
        assert "about 12 trials and the repetitions" in plan["words"][0]


def test_a_budget_that_turns_out_too_small_is_told_with_what_it_takes(ask: Asks) -> None:
    plan, trials = tried(ask(budget="5000 tokens", seeds=2), bowl())
    assert len(trials) == 1
    assert "3 trials and 8 repetitions need about 11,000 tokens" in plan["refused"]


def test_one_at_a_time_needs_as_few_trials_for_a_budget_in_tokens_as_in_trials(ask: Asks) -> None:
    text = "nuisance: {learning_rate: , beta1: , beta2: }\n"
    plan, _ = tried(ask(text, budget="8000 tokens", seeds=0, method="one-at-a-time"), bowl())
    assert plan["trials"] == 8
    plan, _ = tried(ask(text, budget="6000 tokens", seeds=0, method="one-at-a-time"), bowl())
    assert "7 trials and 0 repetitions need about 7,000 tokens" in plan["refused"]


# A finished study that is given more


@pytest.mark.parametrize("method", ["sobol", "random", "zoom", "one-at-a-time", "tpe"])
def test_a_finished_study_is_extended_by_new_points_over_the_same_knobs(ask: Asks, method: str) -> None:
    text = "nuisance: {learning_rate: }\n"
    begun = tried(ask(text, budget=8, method=method), bowl())
    plan, trials = tried(ask(text, budget=14, method=method), bowl(), begun)
    assert trials[: len(begun[1])] == begun[1] and plan["space"] == begun[0]["space"]
    searched = [each for each in trials if each.kind == "search"]
    assert len(searched) == 13 and len({str(each.values) for each in searched}) == 13
    facts = read(ask(text, budget=14, method=method), Plan.from_json(plan), trials)
    assert all(len(each["repeats"]["losses"]) == 2 for each in (*facts["finalists"], facts["base"]))


@pytest.mark.parametrize("method", ["sobol", "random"])
def test_an_extended_search_has_the_points_of_one_that_was_planned_so_long(ask: Asks, method: str) -> None:
    begun = tried(ask(KNOBS, budget=10, method=method, seeds=0), bowl())
    _, extended_trials = tried(ask(KNOBS, budget=20, method=method, seeds=0), bowl(), begun)
    _, at_once = tried(ask(KNOBS, budget=20, method=method, seeds=0), bowl())
    assert [each.values for each in extended_trials] == [each.values for each in at_once]


def test_a_budget_in_tokens_is_extended_by_what_trials_have_cost(ask: Asks) -> None:
    begun = tried(ask(budget="20000 tokens"), bowl())
    plan, trials = tried(ask(budget="30000 tokens"), bowl(), begun)
    assert plan["trials"] == begun[0]["trials"] + 10 and plan["space"] == begun[0]["space"]
    assert sum(each.tokens for each in trials) <= 30000 + 3 * 2 * 1000  # new finalists are repeated, too
    assert "a trial took 1,000 tokens" in plan["words"][0]


# The files


def test_the_recipe_loads_and_has_what_was_found(ask: Asks, tmp_path: Path) -> None:
    question = ask("fixed: {model.dropout: 0.1}\nnuisance: {learning_rate: , schedule.floor: }\n", budget=12)
    facts = facts_of(question, bowl())
    (tmp_path / "best.yaml").write_text(recipe_text(facts, question.loaded, "s"))
    found = load(tmp_path / "best.yaml").config
    assert found.optimizer.learning_rate == facts["best"]["values"][RATE]
    changed = [
        path
        for path in ("optimizer.beta2", "schedule.warmup_steps", "model.dropout")
        if found.get(path) != question.loaded.get(path)
    ]
    assert changed == []


def test_the_folder_has_the_answer_the_words_the_recipe_and_the_pictures(ask: Asks, tmp_path: Path) -> None:
    question = ask(KNOBS, budget=16)
    plan, trials = tried(question, dominated)
    facts = finish(question, plan, trials, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"study.json", "conclusion.md", "best.yaml", "learning-rate.png", "isolation.png", "parallel.png"} <= names
    assert len(facts["pictures"]) == 3


def test_a_study_of_the_learning_rate_alone_has_one_picture_that_names_it(ask: Asks, tmp_path: Path) -> None:
    from trainbook.charts import study

    question = ask("nuisance: {learning_rate: {low: 1e-5, high: 1e-2}}\n", budget=8)
    plan, trials = tried(question, lambda trial, values: (math.log10(values[RATE]) + 3) ** 2)
    facts = finish(question, plan, trials, tmp_path)
    assert [Path(each).name for each in facts["pictures"]] == ["learning-rate.png"]
    (axis,) = study.study_figures(facts)["learning-rate"].axes
    assert axis.get_xlabel() == "learning rate (log scale)"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1e-5", "0.0001", "0.001", "0.01"]


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (1e-5, 1e-2, [1e-5, 1e-4, 1e-3, 1e-2]),
        (5.6e-5, 4e-3, [1e-4, 3e-4, 1e-3, 3e-3]),
        (1e-3, 1e-2, [1e-3, 2e-3, 5e-3, 1e-2]),
        (0.31, 0.32, []),
    ],
)
def test_marks_of_a_log_scale_are_round(low: float, high: float, marks: list[float]) -> None:
    from trainbook.charts.study import round_marks

    assert [10**mark for mark in round_marks(math.log10(low), math.log10(high))] == pytest.approx(marks)


def test_a_base_without_a_place_on_a_log_scale_is_left_out_of_the_pictures(ask: Asks, tmp_path: Path) -> None:
    text = "fixed: {optimizer.type: adamw}\nnuisance: {learning_rate: , weight_decay: }\n"
    question = ask(text, budget=16)
    loaded = load(question.base, ["optimizer.weight_decay=0.0"])
    question = replace(question, loaded=loaded)
    plan, trials = tried(question, bowl(best=2e-3))
    facts = finish(question, plan, trials, tmp_path)
    assert facts["base_values"]["optimizer.weight_decay"] == 0.0
    assert len(facts["pictures"]) == 3 and facts["remarks"] == []


def test_pictures_mark_the_recommended_trial_and_show_the_whole_range(ask: Asks) -> None:
    """New seeds put another trial before the one with the lowest single loss; four points reach no end of the range."""
    from trainbook.charts import study as charts

    facts = facts_of(ask(KNOBS, budget=10, seeds=3), lucky_once)
    assert facts["recommended"] == 6 != min(facts["trials"], key=lambda each: each["loss"])["number"]
    drawn = charts.study_figures(facts)
    rate = next(each for each in facts["space"] if each["path"] == RATE)
    (axis,) = drawn["learning-rate"].axes
    low, high = axis.get_xlim()
    assert 10**low <= rate["low"] and 10**high >= rate["high"]
    marked = next(line for line in axis.lines if line.get_label() == "recommended").get_xdata()[0]
    assert 10**marked == pytest.approx(facts["best"]["values"][RATE])
    orange = [line for line in drawn["parallel"].axes[0].lines if line.get_color() == charts.ORANGE]
    place = (math.log10(facts["best"]["values"][RATE] / rate["low"])) / math.log10(rate["high"] / rate["low"])
    assert len(orange) == 1 and orange[0].get_ydata()[0] == pytest.approx(place)


def test_none_among_the_choices_is_in_the_pictures_too(ask: Asks) -> None:
    from trainbook.charts.study import _points

    facts = facts_of(ask("nuisance: {learning_rate: , logit_soft_cap: }\n", budget=16), bowl(best=2e-3))
    cap = next(each for each in facts["space"] if each["path"] == "model.logit_soft_cap")
    tried_with = [each["values"]["model.logit_soft_cap"] for each in facts["trials"] if each["kind"] == "search"]
    assert None in tried_with and len(_points(facts, cap)) == 1 + len(tried_with), "the base has it too"


def test_a_picture_that_fails_costs_neither_the_answer_nor_the_recipe(
    ask: Asks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        assert (tmp_path / "study.json").is_file() and (tmp_path / "conclusion.md").is_file()
        raise ValueError("math domain error")

    monkeypatch.setattr("trainbook.charts.study.draw_study", fail)
    question = ask(KNOBS, budget=16)
    facts = finish(question, *tried(question, dominated), tmp_path)
    assert facts["remarks"] == ["the figures could not be drawn: ValueError: math domain error"]


def test_an_answer_that_cannot_be_written_is_a_message_and_the_next_start_writes_it(
    ask: Asks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    question = ask(budget=4)
    plan, trials = tried(question, bowl())
    with monkeypatch.context() as patch:
        patch.setattr("trainbook.study.tune.conclusion.write_text_atomically", full)
        with pytest.raises(RunError, match=r"cannot be written into .*: No space left on device. All trials are kept"):
            finish(question, plan, trials, tmp_path)
    assert (tmp_path / finish(question, plan, trials, tmp_path)["recipe"]).is_file()


def test_a_study_in_which_nothing_could_be_trained_says_why(ask: Asks, tmp_path: Path) -> None:
    question = ask()
    plan, trials = tried(question, lambda trial, values: None)
    with pytest.raises(RunError, match="No trial ended with a value of loss"):
        finish(question, plan, trials, tmp_path)


def test_a_base_that_fails_ends_the_study_at_once(ask: Asks) -> None:
    question = ask()
    order = next_order(question, [], None)
    failed = [replace(each, state="failed", reason="x.txt: no such file.") for each in order.trials]
    refused = next_order(question, failed, order.plan).refused
    assert refused == "the base configuration could not be trained: x.txt: no such file."


def test_a_base_that_diverges_is_only_a_trial_that_did(ask: Asks) -> None:
    facts = facts_of(ask(budget=8), lambda trial, values: None if trial.kind == "base" else bowl()(trial, values))
    assert facts["base"]["state"] == "infeasible" and facts["difference"] is None and facts["best"] is not None


def test_of_a_trial_that_may_be_pruned_only_its_expected_share_is_set_aside(ask: Asks) -> None:
    base = Trial(0, "base", {}, state="done", loss=1.0, tokens=1000)
    under_way = [Trial(number, "search", {}, state="running", tokens=0) for number in range(1, 5)]
    whole, pruned = (ask(budget="4000 tokens", seeds=0, pruning=pruning) for pruning in ("none", "asha"))
    assert expected_share("asha") < 0.5
    assert is_spent(whole, [base, *under_way]) and not is_spent(pruned, [base, *under_way])
    begun = [replace(each, tokens=1000) for each in under_way[:3]]
    assert is_spent(pruned, [base, *begun]), "what they have taken beyond that counts as it is"


def test_trials_with_the_very_same_number_are_said_to_be_equal(ask: Asks) -> None:
    same = facts_of(ask(budget=8, seeds=3), lambda trial, values: 0.5385)
    told = " ".join(conclude(same))
    assert "All trials have the same loss (0.5385): what was searched makes no difference to it here." in told
    assert "end of what was tried" not in told
    some = facts_of(ask(budget=8, seeds=0), lambda trial, values: 2.0 if trial.number in (3, 5, 6) else 2.5)
    assert {some["best"]["number"], *some["equal"]} == {3, 5, 6}
    told = "Trial 5 and trial 6 have the same loss (2), so this metric cannot separate them from trial 3."
    assert told in " ".join(conclude(some))
    assert "the same loss" not in " ".join(conclude(facts_of(ask(budget=8, seeds=0), bowl())))
