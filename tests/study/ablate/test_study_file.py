from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study.ablate.conftest import ARMS, DATA, Asks

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import load
from trainbook.study.ablate.study_file import AblateQuestion, is_more, read_ablation
from trainbook.study.space import base_text


def test_arms_data_sets_and_defaults(ask: Asks):
    question = ask()
    assert question.arms == {"momentum": {"optimizer.beta1": 0.8}, "epsilon": {"optimizer.epsilon": 1e-6}}
    assert question.cells[0] == ("control", "one") and len(question.cells) == 6
    assert question.values_of(("momentum", "two")) == {"data.source": "y.txt", "optimizer.beta1": 0.8}
    base = question.loaded.config.optimizer.learning_rate
    assert question.rates == pytest.approx([base / 4, base / 2, base, 2 * base, 4 * base])
    assert (question.seeds, question.rate_seeds, question.epsilon, question.metric) == (5, 1, 0.01, "loss")
    assert question.num_runs == 6 * (5 + 5)


def test_without_data_sets_there_is_the_bases_own(ask: Asks):
    assert ask(ARMS).cells == [("control", "data"), ("momentum", "data"), ("epsilon", "data")]


def test_the_seeds_of_the_search_are_not_those_of_the_comparison(ask: Asks):
    question = ask("rate_seeds: 3\nseeds: 50\n" + ARMS)
    assert len(set(question.search_seeds)) == 3 and len(set(question.final_seeds)) == 50
    assert not set(question.search_seeds) & set(question.final_seeds)


def test_a_factorial_has_every_combination_but_the_bases_own(ask: Asks):
    question = ask("factors: {beta1: [0.9, 0.8], optimizer.epsilon: [1e-8, 1e-6]}\n")
    assert question.loaded.config.optimizer.beta1 == 0.9 and len(question.arms) == 3
    assert {"optimizer.beta1": 0.8, "optimizer.epsilon": 1e-6} in question.arms.values()


@pytest.mark.parametrize(
    ("text", "rates"), [("rates: [1e-2, 1e-3]", (1e-3, 1e-2)), ("rates: none", ()), ("rates: ", ())]
)
def test_learning_rates_are_a_list_or_none(ask: Asks, text: str, rates: tuple[float, ...]):
    assert ask(f"{text}\n{ARMS}").rates == rates


def test_an_arm_that_is_a_learning_rate_searches_none(ask: Asks):
    question = ask("arms: {high: {learning_rate: 0.1}, other: {beta1: 0.8}}\nseeds: 2\n")
    assert question.rates_of("high") == () and len(question.rates_of("other")) == 5
    assert question.num_runs == 2 * 5 + 3 * 2


def test_arms_may_train_for_longer_if_the_file_says_so(ask: Asks):
    assert ask("arms: {long: {max_steps: 50}}\nlengths: free\n").arms == {"long": {"training.max_steps": 50}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "study.yaml  arms: a study needs arms or factors"),
        ("armss: {a: {beta1: 0.8}}\n", "study.yaml:2  armss: unknown key. Did you mean arms?"),
        ("arms: [1]\n", "study.yaml:2  arms: must be a mapping of names to knobs"),
        ("arms: {a: 3}\n", "study.yaml:2  arms.a: must be a mapping of knobs, but got 3."),
        ("arms: {a: {betta1: 0.8}}\n", "betta1: no such knob. Did you mean optimizer.beta1"),
        ("arms: {a: {beta1: 1.8}}\n", "optimizer.beta1: must be"),
        ("arms:\n  a: {beta1: 0.9}\n", "study.yaml:3  arms.a: changes nothing: the base has these values already."),
        ("arms: {control: {beta1: 0.8}}\n", "arms.control: is the name of the unchanged base."),
        ("arms: {a: {max_steps: 50}}\n", "training.max_steps: must be the same in all arms"),
        ("arms: {a: {max_steps: 50}}\nlengths: equal\n", "Fix it, or say 'lengths: free'"),
        (ARMS + "lengths: long\n", "study.yaml:3  lengths: must be equal or free, but got 'long'."),
        (ARMS + "seeds: 1\n", "seeds: must be a whole number from 2 to 1,000, but got 1."),
        (ARMS + "epsilon: 2\n", "epsilon: must be a number between 0 and 1, but got 2."),
        (ARMS + "rates: [0]\n", "rates: must be learning rates above 0"),
        (ARMS + "rates: 5\n", "rates: must be a list, points and ratio, or none, but got 5."),
        (ARMS + "rates: {points: 0}\n", "rates: points must be a whole number from 1 to 99"),
        (ARMS + "rates: {ratio: 1}\n", "rates: ratio must be above 1"),
        (ARMS + "rates: {steps: 1}\n", "rates: has no 'steps': it takes points and ratio."),
        (ARMS + "metric: los\n", "metric: no evaluation has a metric"),
        (ARMS + "data: {a: {data.sourc: x}}\n", "no such knob"),
        ("factors: {beta1: 0.5}\n", "must be a range or a list of values"),
    ],
)
def test_each_mistake_is_told_with_its_line_and_the_nearest_right_name(ask: Asks, text: str, said: str):
    with pytest.raises(ConfigError) as refused:
        ask(text)
    assert said in str(refused.value)


def test_a_study_needs_a_base_that_exists(tmp_path: Path):
    path = tmp_path / "study.yaml"
    path.write_text(ARMS)
    with pytest.raises(ConfigError, match="a study needs a base"):
        read_ablation(path)
    path.write_text(f"base: gpt-tinny\n{ARMS}")
    with pytest.raises(ConfigError, match="gpt-tiny"):
        read_ablation(path)
    with pytest.raises(UserError, match="no such file"):
        read_ablation(tmp_path / "none.yaml")


def test_far_too_many_runs_are_refused(ask: Asks):
    with pytest.raises(UserError, match="runs are asked for; a study has at most 100,000"):
        ask(f"seeds: 1000\nrate_seeds: 1000\nrates: {{points: 99}}\n{ARMS}")


def test_a_worker_reads_the_same_question_from_the_ledger(ask: Asks, tmp_path: Path):
    question = ask()
    (tmp_path / "base.yaml").write_text(base_text(question.loaded))
    facts = json.loads(json.dumps(question.as_json()))
    read = AblateQuestion.from_json(facts, load(tmp_path / "base.yaml"), "base.yaml")
    assert (read.cells, read.rates, read.final_seeds) == (question.cells, question.rates, question.final_seeds)
    assert [read.values_of(each) for each in read.cells] == [question.values_of(each) for each in question.cells]


def test_a_study_is_extended_by_seeds_arms_and_data_sets(ask: Asks):
    old, more = ask().as_json(), ask(ARMS[:-2] + ", beta: {beta2: 0.9}}\n" + DATA).as_json()
    assert is_more("arms", old["arms"], more["arms"]) and not is_more("arms", more["arms"], old["arms"])
    assert is_more("seeds", 5, 6) and not is_more("seeds", 6, 5) and not is_more("epsilon", 0.01, 0.02)
    assert not is_more("data", {"one": {"data.source": "x"}}, {"one": {"data.source": "y"}})
