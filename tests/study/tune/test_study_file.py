from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import load
from trainbook.knobs.dumping import dump
from trainbook.study.space import base_text
from trainbook.study.tune.planning import first_plan
from trainbook.study.tune.study_file import StudyQuestion, load_values, read_question

STUDY = """base: gpt-tiny
fixed:
  training.max_steps: 20
  schedule: {warmup_steps: 2}
nuisance:
  learning_rate: {low: 1e-4, high: 1e-1}
  beta1:
method: zoom
budget: 12
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_a_study_file_says_what_is_searched_and_the_knobs_say_the_rest(tmp_path: Path) -> None:
    question = read_question(write(tmp_path, STUDY))
    assert question.roles.nuisance is not None
    rate, beta = question.roles.nuisance
    assert (rate.path, rate.scale, rate.low, rate.high) == ("optimizer.learning_rate", "log", 1e-4, 1e-1)
    assert (beta.path, beta.scale, beta.low, beta.high) == ("optimizer.beta1", "log_one_minus", 0.8, 0.99)
    assert question.loaded.config.training.max_steps == 20
    assert (question.method, question.budget.amount, question.metric) == ("zoom", 12, "loss")


def test_options_and_overrides_go_over_the_file(tmp_path: Path) -> None:
    question = read_question(write(tmp_path, STUDY), ["model.dropout=0.1"], method="sobol", budget="20", seeds=None)
    assert (question.method, question.budget.amount, question.seeds) == ("sobol", 20, 3)
    assert question.loaded.config.model.dropout == 0.1


def test_a_recipe_needs_no_file_and_the_order_of_importance_chooses() -> None:
    question = read_question("gpt-tiny", budget="12")
    assert question.roles.nuisance is None


def test_what_a_recipe_has_chosen_may_be_without_effect_beside_what_is_asked_for(tmp_path: Path) -> None:
    """The recipe has a beta2, which sgd has no use for: it trains like this, and so it can be tuned."""
    question = read_question("gpt-tiny", ["optimizer.type=sgd"], budget="12")
    plan = first_plan(question)
    assert plan is not None
    assert [each.path for each in plan.space.dimensions] == ["optimizer.learning_rate", "optimizer.momentum"]
    text = STUDY.replace("fixed:", "fixed:\n  optimizer.type: sgd").replace("  beta1:", "  momentum:")
    assert read_question(write(tmp_path, text)).loaded.config.optimizer.type == "sgd"


def test_what_is_compared_makes_an_arm_of_each_combination(tmp_path: Path) -> None:
    text = "scientific:\n  model.dropout: [0.0, 0.1]\n  schedule.type: [linear, cosine]\n"
    question = read_question(write(tmp_path, STUDY.replace("budget: 12", "budget: 40") + text))
    assert question.roles.num_arms == 4
    assert {"model.dropout": 0.1, "schedule.type": "linear"} in question.roles.arms


def test_what_is_compared_is_counted_in_the_same_order_however_the_file_has_it(tmp_path: Path) -> None:
    text = STUDY.replace("budget: 12", "budget: 40") + "scientific:\n"
    lines = ["  schedule.type: [linear, cosine]\n", "  model.dropout: [0.0, 0.1]\n"]
    one, other = (read_question(write(tmp_path, text + "".join(each))) for each in (lines, lines[::-1]))
    assert one.roles.arms == other.roles.arms


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("{low: 1e-4, high: 1e-1}", "{low: 1e-3, high: 1e-3}", 6, "the range is empty"),
        ("{low: 1e-4, high: 1e-1}", "{low: 1e-1, high: 1e-4}", 6, "the range is reversed"),
        ("{low: 1e-4, high: 1e-1}", "{low: 0.0, high: 1e-1}", 6, "low must be a number > 0, but got 0"),
        ("  beta1:", "  weight_decay: {low: 0.0, high: 0.1}", 7, "a log scale cannot include zero"),
        ("  beta1:", "  betta1:", 7, "no such knob. Did you mean optimizer.beta1?"),
        (
            "  beta1:",
            "  beta1: 0.9",
            7,
            "must be a range or a list of values, but got 0.9. One value belongs to fixed.",
        ),
        ("  beta1:", "  beta1: {lowest: 0.9}", 7, "has no 'lowest'"),
        ("  beta1:", "  training.max_steps: {low: 5, high: 50}", 7, "has two roles, nuisance and fixed"),
        ("  training.max_steps: 20", "  lr: 1e-3", 6, "has two roles, nuisance and fixed. A knob has one."),
        ("  beta1:", "  optimizer.lr:", 7, "is twice in nuisance. Keep one of the two."),
        ("  training.max_steps: 20", "  training.max_steps: {low: 5}", 3, "or null, but got a mapping."),
        ("  beta1:", "  beta1: {choices: {low: 0.8}}", 7, "a list of at least one value, but got a mapping."),
        ("method: zoom", "method: {zoom: 3}", 8, "but got a mapping."),
        ("budget: 12", "budget: {trials: 12}", 9, "but got a mapping."),
        ("  beta1:", "  warmup_ratio: {low: 0.01, high: 0.1, scale: log}", 7, "says the same as schedule.warmup_steps"),
        ("  beta1:", "  training.seed: [1, 2]", 7, "the best of several seeds is chance"),
        ("  beta1:", "  evaluation.eval_steps: [1, 2]", 7, "compared by their evaluation"),
        ("  beta1:", "  optimizer.momentum:", 7, "has no effect"),
        ("method: zoom", "method: zom", 8, "Did you mean zoom?"),
        ("method: zoom", "method: [zoom]", 8, "must be one of sobol, random, zoom"),
        ("method: zoom", "metod: zoom", 8, "Did you mean method?"),
        ("budget: 12", "budget: 9", 9, "9 trials are too few for 2 searched knobs: at least 10 are needed."),
        ("base: gpt-tiny", "base: gpt-tny", 1, "gpt-tny: no such recipe or file. Did you mean gpt-tiny?"),
        ("base: gpt-tiny", "base: nothing.yaml", 1, "nothing.yaml: no such file."),
        ("base: gpt-tiny", "base:", 1, "must be a recipe's name or a configuration file, but got null."),
        ("base: gpt-tiny", "base: [gpt-tiny]", 1, "but got ['gpt-tiny']."),
        ("budget: 12", "budget: lots", 9, "must be a number of trials"),
        ("budget: 12", "seeds: -1", 9, "must be a whole number >= 0, but got -1"),
        ("budget: 12", "metric: los", 9, "Did you mean loss?"),
        ("  beta1:", "  beta1: {only_if: {optimizer.typ: sgd}}", 7, "Did you mean optimizer.type?"),
        (
            "  beta1:",
            "  beta1: {only_if: {optimizer.type: sgd}}",
            7,
            "only if optimizer.type is 'sgd', which it never is",
        ),
        ("  beta1:", "  beta1: {only_if: {learning_rate: 1e-3}}", 7, "which it never is"),
        (
            "  beta1:",
            "  beta1: {only_if: {num_hidden_layers: 3}}\n  num_hidden_layers: {low: 2, high: 8, step: 2}",
            7,
            "only if model.num_hidden_layers is 3, which it never is",
        ),
        ("  beta1:", "  beta1: {only_if: {learning_rate: 0.5}}", 7, "only if optimizer.learning_rate is 0.5, which it"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_the_law(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = write(tmp_path, STUDY.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        read_question(path)
    assert any(
        f"{path}:{line}" in problem.where and message in f"{problem.message} {problem.hint}"
        for problem in refused.value.problems
    ), str(refused.value)


def test_what_is_fixed_against_a_law_is_told_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY.replace("fixed:\n", "fixed:\n  optimizer.momentum: 0.5\n"))
    with pytest.raises(ConfigError, match=r"study.yaml:3  optimizer.momentum: has no effect"):
        read_question(path)
    with pytest.raises(ConfigError, match=r"override  optimizer.momentum: has no effect"):
        read_question(path, ["optimizer.momentum=0.6"])
    path = write(tmp_path, STUDY.replace("fixed:\n", "fixed:\n  num_attention_heads: 7\n"))
    with pytest.raises(ConfigError, match=r"recipe gpt-tiny:11, .*study.yaml  model.hidden_size: must be a multiple"):
        read_question(path)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = STUDY.replace("  beta1:", "  betta1:").replace("method: zoom", "method: zom")
    with pytest.raises(ConfigError) as refused:
        read_question(write(tmp_path, text))
    assert len(refused.value.problems) == 2


def test_what_the_command_line_fixes_cannot_be_searched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is fixed on the command line"):
        read_question(write(tmp_path, STUDY), ["lr=1e-3"])
    text = STUDY.replace("  schedule: {warmup_steps: 2}\n", "").replace("  beta1:", "  warmup_steps: [1, 2]")
    with pytest.raises(ConfigError, match=r"schedule.warmup_steps: is, by warmup_ratio, fixed on the command line"):
        read_question(write(tmp_path, text), ["warmup_ratio=0.1"])


def test_a_knob_that_is_idle_with_one_of_the_compared_values_needs_a_condition(tmp_path: Path) -> None:
    text = STUDY.replace("budget: 12", "budget: 40") + "scientific:\n  optimizer.type: [adamw, sgd]\n"
    with pytest.raises(ConfigError, match=r"study.yaml:7 .*beta1: has no effect with optimizer.type 'sgd'"):
        read_question(write(tmp_path, text))
    question = read_question(write(tmp_path, text.replace("beta1:", "beta1: {only_if: {optimizer.type: adamw}}")))
    assert question.roles.num_arms == 2


def test_a_range_is_not_something_to_compare(tmp_path: Path) -> None:
    text = STUDY.replace("  beta1:\n", "") + "scientific:\n  beta1: {low: 0.8, high: 0.9}\n"
    with pytest.raises(ConfigError, match="needs a list of values"):
        read_question(write(tmp_path, text))


def test_what_is_compared_has_no_condition(tmp_path: Path) -> None:
    text = STUDY + "scientific:\n  schedule.type: {choices: [linear, cosine], only_if: {optimizer.type: adamw}}\n"
    with pytest.raises(
        ConfigError, match=r"study.yaml:11  schedule.type: is compared in all trials, so it cannot have only_if"
    ):
        read_question(write(tmp_path, text))


def test_a_study_without_a_base_or_a_recipe_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a study needs a base"):
        read_question(write(tmp_path, "nuisance: {lr: }\n"))
    with pytest.raises(UserError, match="Did you mean gpt-tiny"):
        read_question("gpt-tiney")


def test_a_configuration_is_the_one_that_was_named_and_none_in_a_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, steps in (("a", 10), ("a/a", 20)):
        Path(folder).mkdir()
        text = f"data: {{source: x.txt}}\ntraining: {{max_steps: {steps}}}\nschedule: {{warmup_steps: 1}}\n"
        Path(folder, "my.yaml").write_text(text)
    assert read_question("a/my.yaml", budget=4).loaded.config.training.max_steps == 10
    Path("a/study.yaml").write_text("base: a/my.yaml\nbudget: 4\n")
    assert read_question("a/study.yaml").loaded.config.training.max_steps == 20, "beside the study"


def test_the_command_line_goes_over_what_the_file_fixes(tmp_path: Path) -> None:
    question = read_question(write(tmp_path, STUDY), ["max_steps=30"])
    assert question.loaded.config.training.max_steps == 30


def test_a_worker_knows_what_is_fixed_as_the_one_who_asked_does(tmp_path: Path) -> None:
    asked = read_question(
        write(tmp_path, STUDY.replace("nuisance:\n  learning_rate: {low: 1e-4, high: 1e-1}\n  beta1:\n", ""))
    )
    facts = json.loads(json.dumps(asked.as_json()))
    known = StudyQuestion.from_json(facts, asked.loaded, "base.yaml")
    assert known.roles.settled == asked.roles.settled >= {"training.max_steps", "schedule.warmup_ratio"}
    assert first_plan(known) == first_plan(asked)


def test_what_the_base_asks_for_may_be_idle_beside_what_a_trial_chooses(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        "training: {max_steps: 20}\noptimizer: {beta2: 0.98}\n"
        "schedule: {type: warmup_stable_decay, warmup_steps: 2, decay_ratio: 0.3}\n"
    )
    study = tmp_path / "study.yaml"
    study.write_text("base: base.yaml\nscientific: {optimizer.type: [adamw, sgd]}\nnuisance: {learning_rate: }\n")
    question = read_question(study, budget="8")
    assert load_values(question.loaded, {"schedule.type": "cosine"}).config.schedule.type == "cosine"
    assert load_values(question.loaded, {"optimizer.type": "sgd"}).config.optimizer.type == "sgd"
    text = base_text(question.loaded, {"schedule.type": "cosine"})
    (tmp_path / "best.yaml").write_text(text)
    found = load(tmp_path / "best.yaml")
    assert found.config.schedule.decay_ratio == 0.3, "written, and idle"
    (tmp_path / "again.yaml").write_text(dump(found))
    assert load(tmp_path / "again.yaml").config == found.config, "as the run that is made of it writes it"
    assert load(base, ["schedule.type=cosine"]).config.schedule.type == "cosine", "an override makes it idle, told"
    base.write_text(base.read_text().replace("warmup_stable_decay", "cosine"))
    with pytest.raises(ConfigError, match=r"schedule\.decay_ratio: has no effect"):  # one author's own two values
        load(base)


def test_what_is_compared_against_a_law_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("base: gpt-tiny\nscientific: {model.num_attention_heads: [4, 7]}\nnuisance: {learning_rate: }\n")
    with pytest.raises(ConfigError, match=r"study\.yaml:2 .*num_attention_heads"):
        read_question(study, budget="8")


def test_a_metric_that_this_training_cannot_have_is_told_at_its_line(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("base: gpt-tiny\nmetric: exact_match\nnuisance: {learning_rate: }\n")
    with pytest.raises(ConfigError, match=r"study\.yaml:2  metric: "):
        read_question(study, budget="8")
