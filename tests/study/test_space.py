from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.knobs.aliases import by_path
from trainbook.knobs.values import BrokenLaw
from trainbook.study.space import Dimension, Space, dimension

RATE, BETA, LAYERS = "optimizer.learning_rate", "optimizer.beta2", "model.num_hidden_layers"
GRID = [(place + 0.5) / 3000 for place in range(3000)]  # even draws: shares are then exact, not statistics


def of(path: str, **given: object) -> Dimension:
    return dimension(by_path()[path], **given)  # pyright: ignore[reportArgumentType]


@settings(deadline=None, max_examples=30)
@given(low=st.floats(-9, -3), decades=st.integers(1, 5))
def test_each_decade_of_a_log_scale_has_the_same_share_of_the_draws(low: float, decades: int) -> None:
    rate = of(RATE, low=10**low, high=10 ** (low + decades), scale="log")
    counts = [0] * decades
    for unit in GRID:
        counts[min(int(math.log10(rate.at(unit)) - low + 1e-9), decades - 1)] += 1
    assert max(counts) - min(counts) <= 2


def test_beta_between_09_and_099_is_drawn_as_often_as_between_099_and_0999() -> None:
    drawn = [of(BETA, low=0.9, high=0.999).at(unit) for unit in GRID]
    assert sum(0.9 <= beta < 0.99 for beta in drawn) == sum(0.99 <= beta < 0.999 for beta in drawn) == 1500


@settings(deadline=None)
@given(unit=st.floats(0, 1, exclude_max=True))
@pytest.mark.parametrize(
    "each",
    [
        of(RATE),
        of(BETA),
        of(LAYERS),
        of("schedule.warmup_steps"),
        of("model.dropout", step=0.05),
        of("optimizer.type"),
        of(RATE, low=1e-4, high=1e-2, scale="linear"),
    ],
    ids=lambda each: f"{each.path} {each.scale}",
)
def test_a_value_is_inside_its_range_and_stands_for_itself_when_it_is_placed_again(
    each: Dimension, unit: float
) -> None:
    value = each.at(unit)
    if each.scale == "choice":
        assert value in each.choices
    else:
        assert each.low * (1 - 1e-5) <= value <= each.high * (1 + 1e-5)
        assert isinstance(value, int) == each.is_whole
    again = each.at(each.place(value))
    assert again == value or math.isclose(again, value, rel_tol=1e-5)


def test_steps_are_drawn_equally_often_and_nothing_else_is() -> None:
    dropout = of("model.dropout", low=0.0, high=0.3, step=0.1)
    drawn = [dropout.at(unit) for unit in GRID]
    assert {value: drawn.count(value) for value in drawn} == {0.0: 750, 0.1: 750, 0.2: 750, 0.3: 750}
    layers = [of(LAYERS, low=2, high=4).at(unit) for unit in GRID]
    assert {value: layers.count(value) for value in layers} == {2: 1000, 3: 1000, 4: 1000}


def test_a_knob_is_searched_only_where_its_condition_is_met() -> None:
    kinds = of("optimizer.type", choices=["adamw", "sgd"])
    momentum = of("optimizer.momentum", only_if=[("optimizer.type", "sgd")])
    space = Space((kinds, momentum))
    assert set(space.at([0.1, 0.5])) == {"optimizer.type"}
    assert set(space.at([0.9, 0.5])) == {"optimizer.type", "optimizer.momentum"}


def test_a_condition_may_ask_for_a_knob_that_is_not_searched() -> None:
    space = Space((of("optimizer.momentum", only_if=[("optimizer.type", "sgd")]),))
    assert space.at([0.5], {"optimizer.type": "adamw"}) == {}
    assert space.at([0.5], {"optimizer.type": "sgd"}) != {}


@pytest.mark.parametrize(
    ("path", "given", "law"),
    [
        (RATE, {"low": 1e-3, "high": 1e-3}, "the range is empty: low and high are both 0.001"),
        (RATE, {"low": 1e-2, "high": 1e-3}, "the range is reversed: low 0.01 is above high 0.001"),
        (RATE, {"low": 0.0, "high": 1e-2}, "low must be a number > 0, but got 0"),
        (
            "model.dropout",
            {"low": 0.0, "high": 0.5, "scale": "log"},
            "a log scale cannot include zero: low must be > 0",
        ),
        (BETA, {"low": 0.9, "high": 1.0}, "high must be a number >= 0 and < 1, but got 1"),
        ("schedule.floor", {"low": 0.5, "high": 1.0, "scale": "log_one_minus"}, "high must be < 1, but got 1"),
        (RATE, {"scale": "logarithmic"}, "scale must be one of linear, log, log_one_minus, choice"),
        (RATE, {"choices": []}, "choices must be a list of at least one value"),
        ("optimizer.type", {"choices": ["adamw", "adamw"]}, "has 'adamw' twice"),
        ("model.dropout", {"low": 0.0, "high": 0.1, "step": 0.2}, "step must be > 0 and at most"),
        ("model.dropout", {"low": 0.0, "high": 0.1, "step": 1e-300}, "step must be at least 1e-10, or left out"),
        ("optimizer.learning_rate", {"low": 1e-4, "high": 1e308}, "high must be a number > 0, and at most 1e30"),
        (LAYERS, {"low": 1, "high": 4, "step": 0.5}, "takes whole numbers only, so step must be one too, but got 0.5"),
        ("model.hidden_size", {"low": 64, "high": 128}, "has no default scale"),
        ("training.seed", {}, "set low and high"),
        (RATE, {"choices": [1e-3], "low": 1e-4}, "Keep one of the two"),
    ],
)
def test_a_range_that_breaks_a_law_is_refused_with_the_law_and_the_value(
    path: str, given: dict[str, object], law: str
) -> None:
    with pytest.raises(BrokenLaw) as refused:
        of(path, **given)
    assert law in refused.value.message


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_a_space_that_was_written_down_is_the_same_space(units: list[float]) -> None:
    space = Space((of(RATE), of("optimizer.type"), of("optimizer.momentum", only_if=[("optimizer.type", "muon")])))
    assert Space.from_json(space.as_json()).at(units) == space.at(units)


@given(low=st.floats(-30, 5), width=st.floats(0.01, 20))
def test_a_range_that_is_moved_never_leaves_what_the_knob_allows(low: float, width: float) -> None:
    for path in (RATE, BETA, "schedule.floor", "optimizer.weight_decay", LAYERS):
        moved = of(path).between(low, low + width)
        declaration = by_path()[path]
        for unit in (0.0, 0.5, 0.999):
            value = moved.at(unit)
            if math.isfinite(value) and value not in (0.0, 1.0):
                from trainbook.knobs.values import check

                assert check(declaration, value) == value


def test_a_condition_on_a_knob_that_is_itself_left_out_sees_what_the_base_has() -> None:
    first = Dimension("optimizer.type", "choice", choices=("adamw", "sgd"))
    second = Dimension("schedule.type", "choice", choices=("linear", "cosine"), only_if=(("optimizer.type", "sgd"),))
    third = Dimension("schedule.floor", "linear", 0.0, 0.5, only_if=(("schedule.type", "cosine"),))
    chain = Space((first, second, third))
    assert set(chain.at([0.9, 0.9, 0.5])) == {"optimizer.type", "schedule.type", "schedule.floor"}
    assert set(chain.at([0.1, 0.9, 0.5])) == {"optimizer.type"}
    assert set(chain.at([0.1, 0.1, 0.5], {"schedule.type": "linear"})) == {"optimizer.type"}


@pytest.mark.parametrize(("low", "high"), [(-0.4, 0.33), (0.71, 1.4), (-5.0, 5.0), (0.99, 2.0)])
def test_steps_beyond_an_edge_stay_within_the_law(low: float, high: float) -> None:
    dropout = dimension(by_path()["model.dropout"], low=0.1, high=0.4, step=0.15, scale="linear")
    moved = dropout.between(low, high)
    assert 0 <= moved.low < moved.high < 1
    assert ((moved.low - 0.1) / 0.15) == pytest.approx(round((moved.low - 0.1) / 0.15), abs=1e-6)


@given(value=st.floats(0, 0.119))
def test_a_value_in_the_last_part_of_a_step_has_the_last_place(value: float) -> None:
    floor = of("schedule.floor", low=0.0, high=0.119, step=0.06, scale="linear")
    assert floor.place(value) == (0.25 if value <= 0.03 else 0.75)
