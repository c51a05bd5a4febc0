from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.knobs.sections.schedule import ScheduleKnobs
from trainbook.optim import share_of_peak, shares
from trainbook.optim.schedules import SHAPES

TOTAL, WARMUP = 120, 20


def reference(name: str, total: int = TOTAL, warmup: int = WARMUP, **options: Any) -> Callable[[int], float]:
    """The multiplier of transformers' scheduler, as a function of the update."""
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = {} if name == "warmup_stable_decay" else {"num_training_steps": total}
    made = transformers.get_scheduler(
        name, optimizer, num_warmup_steps=warmup, scheduler_specific_kwargs=options, **steps
    )
    return made.lr_lambdas[0]


@pytest.mark.parametrize(
    ("knobs", "theirs", "options"),
    [
        ({"type": "constant"}, "constant_with_warmup", {}),
        ({"type": "linear"}, "linear", {}),
        ({"type": "cosine"}, "cosine", {}),
        ({"type": "cosine", "floor": 0.1}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ({"type": "cosine_with_restarts", "num_cycles": 1}, "cosine_with_restarts", {"num_cycles": 1}),
        ({"type": "cosine_with_restarts", "num_cycles": 3}, "cosine_with_restarts", {"num_cycles": 3}),
        ({"type": "polynomial", "power": 1.0}, "polynomial", {"power": 1.0, "lr_end": 0.0}),
        ({"type": "polynomial", "power": 2.5, "floor": 0.05}, "polynomial", {"power": 2.5, "lr_end": 0.05}),
        ({"type": "inverse_sqrt"}, "inverse_sqrt", {}),
    ],
)
@pytest.mark.parametrize("warmup", [0, WARMUP])
def test_after_warm_up_the_rate_is_that_of_transformers(
    knobs: dict[str, Any], theirs: str, options: dict[str, Any], warmup: int
):
    expected = reference(theirs, warmup=warmup, **options)
    for update in range(warmup, TOTAL + 1):  # behind it, theirs may rise again
        assert share_of_peak(ScheduleKnobs(**knobs), update, TOTAL, warmup) == pytest.approx(
            expected(update), abs=1e-12
        )


@pytest.mark.parametrize(("shape", "theirs"), [("linear", "linear"), ("cosine", "cosine"), ("sqrt", "1-sqrt")])
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_warmup_stable_decay_is_that_of_transformers(shape: Any, theirs: str, floor: float):
    schedule = ScheduleKnobs(type="warmup_stable_decay", decay_ratio=0.25, decay_shape=shape, floor=floor)
    options = {"num_decay_steps": 30, "num_stable_steps": 70, "min_lr_ratio": floor, "decay_type": theirs}
    expected = reference("warmup_stable_decay", **options)
    for update in range(WARMUP, TOTAL + 3):
        assert share_of_peak(schedule, update, TOTAL, WARMUP) == pytest.approx(expected(update), abs=1e-12)


def test_closed_forms():
    at = {"constant": 1.0, "linear": 0.75, "cosine": (1 + math.cos(math.pi / 4)) / 2, "polynomial": 0.75**3}
    for name, expected in at.items():
        schedule = ScheduleKnobs(type=name, power=3.0)  # pyright: ignore[reportArgumentType]
        assert share_of_peak(schedule, 45, 120, 20) == pytest.approx(expected, abs=1e-15)
        floored = ScheduleKnobs(type=name, power=3.0, floor=0.1)  # pyright: ignore[reportArgumentType]
        assert share_of_peak(floored, 45, 120, 20) == pytest.approx(0.1 + 0.9 * expected, abs=1e-15)
    assert share_of_peak(ScheduleKnobs(type="inverse_sqrt"), 80, 120, 20) == pytest.approx(0.5)


def test_restarts_return_to_the_peak():
    schedule = ScheduleKnobs(type="cosine_with_restarts", num_cycles=4)
    found = shares(schedule, total=100, warmup=0)
    assert [update for update, share in enumerate(found) if share == 1.0] == [0, 25, 50, 75]


def test_stable_means_stable_until_the_decay_begins():
    found = shares(ScheduleKnobs(type="warmup_stable_decay", decay_ratio=0.2), total=100, warmup=10)
    assert found[10:81] == [1.0] * 71
    assert found[81:] == pytest.approx([1 - k / 20 for k in range(1, 20)])


def test_a_decay_longer_than_what_warm_up_leaves_begins_at_the_peak():
    found = shares(ScheduleKnobs(type="warmup_stable_decay", decay_ratio=0.9), total=10, warmup=6)
    assert found[5:] == pytest.approx([6 / 7, 1.0, 0.75, 0.5, 0.25])


ALL = st.sampled_from(list(SHAPES))
quickly = settings(deadline=None, database=None, max_examples=50)


@quickly
@given(name=ALL, warmup=st.integers(0, 50), after=st.integers(1, 200), floor=st.floats(0, 1))
def test_warm_up_rises_by_equal_steps_and_ends_at_the_peak(name: Any, warmup: int, after: int, floor: float):
    found = shares(ScheduleKnobs(type=name, floor=floor), warmup + after, warmup)
    assert len(found) == warmup + after
    assert found[:warmup] == [(update + 1) / (warmup + 1) for update in range(warmup)]
    assert found[warmup] == pytest.approx(1.0)


@quickly
@given(name=ALL, warmup=st.integers(0, 20), after=st.integers(1, 100), floor=st.floats(0, 1), cycles=st.integers(1, 4))
def test_no_update_is_spent_at_rate_zero_nor_above_the_peak(
    name: Any, warmup: int, after: int, floor: float, cycles: int
):
    schedule = ScheduleKnobs(type=name, floor=floor, num_cycles=cycles, power=2.0)
    for share in shares(schedule, warmup + after, warmup):
        assert 0 < share <= 1 + 1e-12


@quickly
@given(
    name=ALL.filter(lambda name: name != "cosine_with_restarts"), warmup=st.integers(0, 20), after=st.integers(2, 80)
)
def test_after_warm_up_the_rate_never_rises(name: Any, warmup: int, after: int):
    found = shares(ScheduleKnobs(type=name), warmup + after, warmup)[warmup:]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(found))


@pytest.mark.parametrize("name", ["linear", "cosine", "cosine_with_restarts", "polynomial", "warmup_stable_decay"])
def test_one_past_the_last_update_the_rate_is_the_floor(name: Any):
    for floor in (0.0, 0.1):
        schedule = ScheduleKnobs(type=name, floor=floor)
        assert share_of_peak(schedule, 100, 100, 10) == pytest.approx(floor, abs=1e-15)
        assert share_of_peak(schedule, 99, 100, 10) > floor
        assert share_of_peak(schedule, 1000, 100, 10) == pytest.approx(floor, abs=1e-15), "and stays there"
