from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.knobs.aliases import by_path
from trainbook.study.space import Space, dimension
from trainbook.study.tune.methods import (
    METHODS,
    PointSearch,
    SearchPoint,
    Tried,
    key,
    narrowed,
    num_rounds,
    propose,
    space_of_round,
)

RATE, BETA = "optimizer.learning_rate", "optimizer.beta1"
BASE = {RATE: 2e-3, BETA: 0.9, "optimizer.type": "adamw", "schedule.type": "cosine"}


def space(*paths: str) -> Space:
    return Space(tuple(dimension(by_path()[path]) for path in paths))


def bowl(values: object, best_rate: float = 3e-4) -> float:
    return (math.log10(values[RATE]) - math.log10(best_rate)) ** 2  # pyright: ignore


def search_all(method: str, search: PointSearch, loss: Callable[..., float] = bowl) -> list[Tried]:
    tried: list[Tried] = []
    while points := propose(method, search, tried):
        tried += [Tried(each.units, each.values, each.round, loss=loss({**BASE, **each.values})) for each in points]
    return tried


@pytest.mark.parametrize("method", METHODS)
def test_no_method_tries_a_point_twice_or_more_points_than_asked(method: str) -> None:
    tried = search_all(method, PointSearch(space(RATE, BETA), 13, seed=5, base=BASE))
    assert len(tried) == 13
    assert len({key(each.values) for each in tried}) == 13


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_points_and_another_seed_others(method: str) -> None:
    first, again, other = (
        [each.values for each in search_all(method, PointSearch(space(RATE, BETA), 7, seed, BASE))]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert method == "one-at-a-time" or first != other


@settings(deadline=None)
@given(points=st.integers(1, 64), seed=st.integers(0, 99))
def test_sobol_fills_a_log_range_evenly(points: int, seed: int) -> None:
    tried = search_all("sobol", PointSearch(space(RATE), points, seed, BASE))
    slots = 1 << ((points - 1).bit_length())
    used = [int(space(RATE).dimensions[0].place(each.values[RATE]) * slots * (1 - 1e-7)) for each in tried]
    assert len(tried) == points
    assert max(used.count(slot) for slot in used) <= 2  # one in each of 2^k slots, but for rounded digits


def test_a_space_of_few_points_is_gone_through_once() -> None:
    kinds = dimension(by_path()["schedule.type"])
    tried = search_all("sobol", PointSearch(Space((kinds,)), 30, 0, BASE), loss=lambda values: 1.0)
    assert {each.values["schedule.type"] for each in tried} == set(kinds.choices) - {"cosine"}  # the base's own


def test_one_at_a_time_changes_one_knob_and_shares_the_points_out() -> None:
    tried = search_all("one-at-a-time", PointSearch(space(RATE, BETA), 9, 0, BASE))
    assert [len(each.values) for each in tried] == [1] * 9
    assert sum(RATE in each.values for each in tried) == 5


def test_one_at_a_time_gives_what_a_knob_has_no_use_for_to_the_others() -> None:
    kinds = dimension(by_path()["schedule.type"], choices=("cosine", "linear", "constant"))
    idle = dimension(by_path()["optimizer.momentum"], only_if=(("optimizer.type", "sgd"),))
    region = Space((*space(RATE, BETA).dimensions, kinds, idle))
    tried = search_all(
        "one-at-a-time", PointSearch(region, 16, 0, {**BASE, "optimizer.momentum": 0.9}), lambda values: 1.0
    )
    changed = [next(iter(each.values)) for each in tried]
    assert [changed.count(each.path) for each in region.dimensions] == [7, 7, 2, 0]
    assert [each.values["schedule.type"] for each in tried if "schedule.type" in each.values] == ["linear", "constant"]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ({"low": 1, "high": 16, "scale": "linear"}, 8),
        ({"low": 1, "high": 16, "scale": "log"}, 8),
        ({"low": 1, "high": 16, "scale": "log"}, 40),
    ],
)
def test_one_at_a_time_tries_as_many_values_as_are_asked_for_and_then_all_there_are(given: dict, base: int) -> None:
    layers = dimension(by_path()["model.num_hidden_layers"], **given)
    for points in range(1, 20):
        search = PointSearch(Space((layers,)), points, 0, {layers.path: base})
        values = [each.values[layers.path] for each in search_all("one-at-a-time", search, lambda values: 1.0)]
        others = set(range(1, 17)) - {base}
        assert len(values) == len(set(values)) == min(points, len(others)) and set(values) <= others


def test_one_at_a_time_passes_over_the_base_in_a_range_without_steps() -> None:
    floor = dimension(by_path()["schedule.floor"], low=0.0, high=0.5, scale="linear")
    tried = search_all("one-at-a-time", PointSearch(Space((floor,)), 5, 0, {floor.path: 0.25}), lambda values: 1.0)
    assert len({each.values[floor.path] for each in tried} - {0.25}) == 5


@pytest.mark.parametrize("method", ["tpe", "gp"])
def test_a_base_in_the_last_part_of_a_step_is_no_trouble(method: str) -> None:
    floor = dimension(by_path()["schedule.floor"], low=0.0, high=0.119, step=0.06, scale="linear")
    region = Space((*space(RATE).dimensions, floor))
    base = {RATE: 2e-3, floor.path: 0.1}
    search = PointSearch(region, 5, 0, base, base_tried=Tried(tuple(region.place(base)), base, loss=1.0))
    assert len(search_all(method, search)) == 5


# Zoom


@settings(deadline=None)
@given(
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=12),
    losses=st.lists(st.floats(0, 10), min_size=12, max_size=12, unique=True),
)
def test_zoom_keeps_the_best_point_inside_and_off_the_edge(places: list[float], losses: list[float]) -> None:
    region = space(RATE, BETA)
    for _ in range(3):
        tried = [Tried((u, u), region.at([u, u]), loss=loss) for u, loss in zip(places, losses, strict=False)]
        best = min(tried, key=lambda each: each.loss or 0.0)
        smaller = narrowed(region, tried)
        for each, before in zip(smaller.dimensions, region.dimensions, strict=True):
            low, high = each.to_scale(each.low), each.to_scale(each.high)
            place = (each.to_scale(best.values[each.path]) - low) / (high - low)
            assert 0.05 < place < 0.95
            assert high - low <= 0.61 * (before.to_scale(before.high) - before.to_scale(before.low))
        region = smaller


@pytest.mark.parametrize(("unit", "side"), [(0.01, "low"), (0.99, "high")])
def test_a_best_at_an_edge_widens_the_range_beyond_it(unit: float, side: str) -> None:
    region = space(RATE)
    tried = [Tried((u,), region.at([u]), loss=abs(u - unit)) for u in (0.01, 0.3, 0.5, 0.7, 0.99)]
    moved, before = narrowed(region, tried).dimensions[0], region.dimensions[0]
    ends = [each.to_scale(end) for each in (moved, before) for end in (each.low, each.high)]
    beyond = ends[2] - ends[0] if side == "low" else ends[1] - ends[3]
    assert beyond > 0.3 * (ends[1] - ends[0])


def test_zoom_waits_for_its_round_and_then_looks_closer() -> None:
    search = PointSearch(space(RATE), 12, 0, BASE)
    first = propose("zoom", search, [])
    open_ones = [Tried(each.units, each.values, is_open=True) for each in first]
    assert propose("zoom", search, open_ones) == []
    tried = search_all("zoom", search)
    assert len(tried) == 12 and {each.round for each in tried} == set(range(num_rounds(12)))
    last = [each.values[RATE] for each in tried if each.round == num_rounds(12) - 1]
    assert max(last) / min(last) < 100  # of a range of 1,000
    assert min(last) < 3e-4 < max(last)


def test_zoom_finds_an_optimum_outside_of_the_range_that_it_was_given() -> None:
    tried = search_all("zoom", PointSearch(space(RATE), 24, 0, BASE), loss=lambda values: bowl(values, 5e-2))
    best = min(tried, key=lambda each: each.loss or 0.0)
    assert best.values[RATE] > 1e-2


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 99), kind=st.sampled_from(["cosine", "linear"]))
def test_zoom_never_leaves_the_base_behind_where_that_is_the_best(seed: int, kind: str) -> None:
    base = {**BASE, "schedule.type": kind}
    region = space(RATE, "schedule.type")

    def loss(values: object) -> float:
        return bowl(values, 2e-3) + (values["schedule.type"] != kind)  # pyright: ignore

    at_base = Tried(tuple(region.place(base)), {path: base[path] for path in (RATE, "schedule.type")}, loss=loss(base))
    search = PointSearch(region, 24, seed, base, base_tried=at_base)
    tried = search_all("zoom", search, loss)
    last = space_of_round(search, tried, num_rounds(24) - 1)
    rate, kinds = last.dimensions
    assert rate.low < base[RATE] < rate.high and kind in kinds.choices
    assert key(at_base.values) not in {key(each.values) for each in tried}


def test_zoom_leaves_a_choice_out_only_when_it_was_tried_a_few_times_and_is_clearly_worse() -> None:
    region = space("schedule.type")
    kinds = region.dimensions[0].choices

    def after(losses: dict[object, list[float]]) -> tuple[object, ...]:
        tried = [Tried((0.5,), {"schedule.type": kind}, loss=loss) for kind, all in losses.items() for loss in all]
        return narrowed(region, tried).dimensions[0].choices

    assert after({kinds[0]: [1.0, 1.1, 1.2, 1.3], kinds[1]: [5.0, 5.0]}) == kinds
    assert kinds[1] not in after({kinds[0]: [1.0, 1.1, 1.2, 1.3], kinds[1]: [5.0, 5.0, 5.0]})
    assert kinds[1] in after({kinds[0]: [1.0, 1.1, 1.2, 1.3], kinds[1]: [5.0, 5.0, 1.15]})


def test_a_base_whose_value_has_no_place_on_the_scale_is_no_trouble() -> None:
    region = space("optimizer.weight_decay")
    base = {"optimizer.weight_decay": 0.0}
    search = PointSearch(region, 12, 0, base, base_tried=Tried((0.0,), base, loss=0.0))
    assert len(search_all("zoom", search, lambda values: values["optimizer.weight_decay"])) == 12
    assert len(search_all("gp", search, lambda values: values["optimizer.weight_decay"])) == 12


def test_a_model_goes_through_a_space_that_has_an_end_and_asks_no_more() -> None:
    region = space("schedule.type")
    kinds = set(region.dimensions[0].choices)
    search = PointSearch(region, 30, 0, {"schedule.type": "cosine"})
    tried = search_all("tpe", search, lambda values: 1.0)
    assert sorted(each.values["schedule.type"] for each in tried) == sorted(kinds - {"cosine"})


def test_what_cannot_be_trained_is_where_the_model_does_not_look_again() -> None:
    search = PointSearch(space(RATE), 20, 0, BASE)
    tried: list[Tried] = []
    while points := propose("tpe", search, tried):
        for each in points:
            diverged = each.values[RATE] > 1e-3
            loss = None if diverged else bowl(each.values, 5e-4)
            tried.append(Tried(each.units, each.values, each.round, loss=loss, is_infeasible=diverged))
    late = tried[10:]
    assert sum(each.is_infeasible for each in late) <= 3


def test_a_point_is_what_it_says() -> None:
    (point, *_) = propose("sobol", PointSearch(space(RATE), 4, 0, BASE), [])
    assert isinstance(point, SearchPoint) and dict(point.values) == space(RATE).at(point.units)
