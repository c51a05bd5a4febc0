from __future__ import annotations

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import choices, law_text, load
from trainbook.knobs.aliases import by_path
from trainbook.knobs.values import BrokenLaw, check, show


@pytest.mark.parametrize(
    ("path", "law"),
    [
        ("model.dropout", "a number >= 0 and < 1"),
        ("model.hidden_size", "a whole number >= 1"),
        ("model.intermediate_size", "a whole number >= 1 or null"),
        ("model.type", "a non-empty string"),
        ("model.bias", "true or false"),
        ("optimizer.learning_rate", "a number > 0"),
        ("optimizer.type", "one of adamw, adamw_8bit, paged_adamw_8bit, stable_adamw, lion, muon, sgd"),
        ("schedule.floor", "a number >= 0 and <= 1"),
        ("precision.loss_scale", "'dynamic' or a number > 0"),
        ("precision.initial_scale_power", "a whole number >= 0 and <= 32"),
        ("data.source", "a non-empty string"),
        ("data.validation", "a non-empty string or null"),
        ("logging.report_to", "a list with any of tensorboard, wandb"),
    ],
)
def test_the_law_in_words(path: str, law: str) -> None:
    assert law_text(by_path()[path]) == law


def test_every_default_obeys_its_own_law_and_is_its_own_translation() -> None:
    for path, declaration in by_path().items():
        default = declaration.field.default
        checked = check(declaration, default)
        assert (checked, type(checked)) == (default, type(default)), path


def test_false_is_not_zero_and_one_is_not_true() -> None:
    for path, value in (("precision.loss_scale", False), ("memory.gradient_checkpointing", 1)):
        with pytest.raises(BrokenLaw):
            check(by_path()[path], value)


def test_choices_are_empty_for_what_is_not_a_choice() -> None:
    assert choices(by_path()["optimizer.type"])[:2] == ("adamw", "adamw_8bit")
    assert choices(by_path()["precision.loss_scale"]) == ("dynamic",)
    assert choices(by_path()["logging.report_to"]) == ("tensorboard", "wandb")
    assert choices(by_path()["optimizer.learning_rate"]) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"),
        (0.001, "0.001"),
        (1e-8, "1e-8"),
        (1.5e-5, "1.5e-5"),
        (0.1, "0.1"),
        (1.0, "1"),
        (0.0, "0"),
        (1e22, "1e22"),
        (-2.5, "-2.5"),
        (12345.678, "12345.678"),
        (0.00012345678, "1.2345678e-4"),
        (True, "true"),
        (None, "null"),
        ("word", "'word'"),
        ((1, 2.0), "[1, 2]"),
    ],
)
def test_values_are_shown_as_yaml_writes_them(value: object, text: str) -> None:
    assert show(value) == text
    if isinstance(value, float):
        assert float(text) == value


@pytest.mark.parametrize(
    "override",
    ["hidden_size=1e30", "max_steps=1e30", "global_batch_size=1e12", "max_tokens=1e300", "lr=1e300", "seed=1e18"],
)
def test_a_number_without_end_is_refused_like_any_other_mistake(override: str) -> None:
    with pytest.raises(ConfigError, match="and at most"):
        load(None, [override])


def test_an_integer_of_many_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"and at most .* but got a larger number"):
        load({"hidden_size": 10**400})
