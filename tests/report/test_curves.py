"""A run's metric along steps, tokens, time or epochs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trainbook.errors import UserError
from trainbook.report.curves import (
    By,
    Curve,
    curve_of,
    seconds_of,
    speed_of,
    steps_of,
    tokens_of,
    where_all_have_values,
)
from trainbook.runs.run_record import RunRecord


def record(*rows: dict[str, Any], evaluations: list[dict[str, Any]] | None = None, **facts: Any) -> RunRecord:
    return RunRecord("run", list(rows), evaluations or [], facts=facts)


def measured(*places: float, is_noisy: bool = False) -> Curve:
    return Curve(np.array(places), np.array(places) * 10, is_noisy)


def test_by_steps_runs_have_in_common_what_each_of_them_was_evaluated_at():
    found = where_all_have_values([measured(10, 20, 30, 40, 61), measured(40, 80), measured(20, 40, 60, 80)], "steps")
    assert [curve.places.tolist() for curve in found] == [[40]] * 3 and [curve.at(40) for curve in found] == [400] * 3
    assert where_all_have_values([measured(10, 20), measured(15, 25)], "steps") == []


def test_by_tokens_and_time_values_near_to_each_other_count():
    found = where_all_have_values([measured(100, 200, 300), measured(101, 150, 203, 310)], "tokens")
    assert [curve.places.tolist() for curve in found] == [[100, 200]] * 2
    assert [curve.at(200) for curve in found] == [2000, 2030]  # as they were measured
    assert where_all_have_values([measured(0, 1), measured(0.5, 1.5)], "time") == []


def test_training_losses_are_means_over_the_same_steps():
    often, rarely = measured(*range(10, 410, 10), is_noisy=True), measured(*range(20, 420, 20), is_noisy=True)
    found = where_all_have_values([often, rarely], "steps")
    assert [curve.at(400) for curve in found] == [np.mean([3800, 4000])] * 2  # 370 and 390 count in neither


def test_a_training_loss_is_the_mean_over_the_tenth_before_the_place():
    curve = Curve(np.arange(101.0), np.arange(101.0) % 2, is_noisy=True)
    assert curve.at(100) == pytest.approx(5 / 11)  # steps 90 to 100, of which five are odd


def test_the_tenth_is_of_the_way_since_the_first_row():
    """As of a run that began at another run's checkpoint, or of a log whose first rows are lost."""
    curve = Curve(np.arange(1000.0, 1101.0), np.arange(101.0), is_noisy=True)
    assert curve.at(1100) == pytest.approx(95)  # the rows of 1,090 to 1,100, not of 990 to 1,100


def test_rows_without_the_metric_or_without_a_number_are_left_out():
    run = record({"step": 1, "loss": 3.0}, {"step": 2}, {"step": 3, "loss": math.nan}, {"step": 4, "loss": 1.0})
    curve = curve_of(run, "loss", "train", "steps")
    assert curve is not None and (curve.places.tolist(), curve.values.tolist()) == ([1, 4], [3.0, 1.0])
    assert curve_of(run, "accuracy", "eval", "steps") is None


@pytest.mark.parametrize(("by", "places"), [("steps", [2, 4]), ("tokens", [20, 40]), ("epochs", [0.5, 1.0])])
def test_places_are_steps_tokens_or_epochs(by: By, places: list[float]):
    rows = [{"step": 2 * n, "tokens": 20 * n, "epoch": n / 2, "loss": 1.0} for n in (1, 2)]
    curve = curve_of(record(*rows), "loss", "train", by)
    assert curve is not None and curve.places.tolist() == places


def test_time_is_that_of_the_steps_without_pauses():
    """2 s a step over 10 steps, then 3 s; the clock on the wall ran on in between."""
    rows = [{"step": 10, "step_seconds": 2.0, "time": 1e9}, {"step": 20, "step_seconds": 3.0, "time": 2e9}]
    run = record(*[{**row, "loss": 1.0} for row in rows], evaluations=[{"step": 15, "loss": 1.0}])
    curve = curve_of(run, "loss", "eval", "time")
    assert seconds_of(run) == 50.0 and curve is not None and curve.places.tolist() == [35.0]


def test_where_steps_are_not_timed_the_clock_is_read():
    on_the_wall = record({"step": 1, "time": 1.7e9}, {"step": 2, "time": 1.7e9 + 5})
    since_the_start = record({"step": 1, "time": 3.0}, {"step": 2, "time": 8.0})
    assert seconds_of(on_the_wall) == 5.0 and seconds_of(since_the_start) == 8.0
    assert seconds_of(record({"step": 1}, train_seconds=7.5)) == 7.5 and seconds_of(record({"step": 1})) is None


def test_speed_is_that_of_the_whole_or_a_usual_steps():
    steps = [{"step": 10 * n, "tokens": 100 * n, "step_seconds": 0.5, "tokens_per_second": 99.0} for n in (1, 2)]
    assert speed_of(record(*steps)) == 20.0  # 200 tokens in 10 s, whatever single steps did
    logged = record(*[{"step": n, "tokens_per_second": speed} for n, speed in enumerate((10.0, 50.0, 60.0))])
    assert speed_of(logged) == 50.0
    whole = record({"step": 1, "tokens": 10, "time": 1.0}, {"step": 2, "tokens": 30, "time": 2.0})
    assert speed_of(whole) == 15.0 and speed_of(record({"step": 1})) is None
    assert tokens_of(whole) == 30 and steps_of(whole) == 2


def test_a_run_that_does_not_say_the_place_is_named_with_what_it_says():
    with pytest.raises(UserError, match="--by tokens: run 'run' did not log it; it has steps, epochs"):
        curve_of(record({"step": 1, "epoch": 0.5, "loss": 1.0}), "loss", "train", "tokens")
