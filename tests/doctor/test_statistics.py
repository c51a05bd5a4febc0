"""Robust numbers, against scipy where it has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from scipy import stats as scipy_stats

from trainbook.doctor.statistics import (
    change_point,
    detrended,
    median_and_spread,
    quantile_over_steps,
    rank_correlation,
    robust_line,
    running_median,
    thinned,
    wave_of_epochs,
)

stats: Any = scipy_stats  # its answers have no types


@pytest.fixture(params=range(4))
def values(request: pytest.FixtureRequest) -> np.ndarray:
    return np.random.default_rng(request.param).standard_normal(37).round(1)  # rounded: some are tied


def test_the_spread_is_scipys_median_absolute_deviation_in_units_of_a_standard_deviation(values: np.ndarray):
    assert median_and_spread(values) == pytest.approx(
        (np.median(values), stats.median_abs_deviation(values, scale="normal")), rel=1e-6
    )


def test_one_odd_value_moves_the_spread_little(values: np.ndarray):
    spoiled = np.append(values, 1e6)
    assert abs(median_and_spread(spoiled)[1] - median_and_spread(values)[1]) < 0.2


def test_the_line_and_its_interval_are_those_of_theil_and_sen(values: np.ndarray):
    steps = np.arange(len(values)) * 5.0
    found, known = robust_line(steps, values + 0.02 * steps), stats.theilslopes(values + 0.02 * steps, steps, 0.95)
    assert found.slope == pytest.approx(known.slope)
    assert (found.low, found.high) == pytest.approx((known.low_slope, known.high_slope))
    assert found.intercept == pytest.approx(known.intercept)


def test_rank_correlation_is_kendalls(values: np.ndarray):
    steps = np.arange(len(values)).astype(float)
    assert rank_correlation(steps, values) == pytest.approx(stats.kendalltau(steps, values).statistic)


def test_rank_correlation_of_what_does_not_vary_is_zero():
    assert rank_correlation(np.arange(5.0), np.ones(5)) == 0.0


def test_a_running_median_is_scipys_filter_inside_and_takes_what_there_is_at_the_ends(values: np.ndarray):
    found = running_median(values, 5)
    assert found[2:-2] == pytest.approx(ndimage.median_filter(values, 5)[2:-2])
    assert found[0] == np.median(values[:3]) and found[1] == np.median(values[:4])
    assert found[-1] == np.median(values[-3:]) and found[-2] == np.median(values[-4:])
    assert len(found) == len(values)


def test_of_a_short_series_too():
    assert running_median(np.array([3.0, 1.0]), 5).tolist() == [2.0, 2.0]


def test_what_is_left_without_a_trend_has_none():
    line = np.arange(20.0)
    assert detrended(line)[2:-2] == pytest.approx(np.zeros(16))


def test_a_change_is_found_where_it_is_with_the_size_of_a_t_test():
    noise = np.random.default_rng(3).standard_normal(40)
    values = noise + np.repeat([0.0, 8.0], [25, 15])
    found = change_point(values)
    assert found is not None and found.at == 25
    assert (found.before, found.after) == pytest.approx((values[:25].mean(), values[25:].mean()))
    assert found.size == pytest.approx(-stats.ttest_ind(values[:25], values[25:]).statistic)


def test_a_series_that_is_too_short_has_no_change():
    assert change_point(np.arange(5.0)) is None


@pytest.mark.parametrize("count", [0, 1, 7, 400, 401, 5000])
def test_thinned_values_keep_the_first_and_the_last(count: int):
    kept = thinned(count, 400)
    assert len(kept) <= 400 and (np.diff(kept) > 0).all()
    if count:
        assert kept[0] == 0 and kept[-1] == count - 1


def test_a_quantile_over_steps_is_that_of_a_value_for_each_step():
    steps = np.array([1, 2, 3, 4, 10, 30, 50])
    values = np.array([9.0, 8.0, 7.0, 6.0, 3.0, 2.0, 4.0])
    each = np.repeat(values, np.diff(steps, prepend=0))
    for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0):
        assert quantile_over_steps(steps, values, share) == np.quantile(each, share, method="inverted_cdf")


def test_a_wave_with_the_period_of_an_epoch_is_told_from_noise():
    draw, epochs = np.random.default_rng(0), np.linspace(0.5, 6, 40)
    falling = np.exp(-epochs / 3)
    noise = [np.exp(0.3 * draw.standard_normal(40)) for _ in range(300)]
    chances = [wave.by_chance for each in noise if (wave := wave_of_epochs(epochs, falling * each))]
    assert len(chances) == 300 and min(chances) > 1e-4
    assert np.mean(np.array(chances) < 0.1) == pytest.approx(0.1, abs=0.05), "the probability is one"
    wave = wave_of_epochs(epochs, falling * noise[0] * np.exp(np.sin(2 * np.pi * epochs)))
    assert wave is not None and wave.by_chance < 1e-6 and wave.swing == pytest.approx(np.exp(2), rel=0.3)
    assert wave_of_epochs(epochs[:15], falling[:15]) is None


def test_batches_that_cost_the_same_in_each_epoch_are_no_wave():
    draw, epochs = np.random.default_rng(1), 0.5 + np.arange(100) / 20
    hard = [np.exp(2 * draw.standard_t(2, size=20)).clip(1e-9, 1e9) for _ in range(300)]
    noise = np.exp(0.05 * draw.standard_normal(100))
    chances = [wave.by_chance for costs in hard if (wave := wave_of_epochs(epochs, noise * np.tile(costs, 5)))]
    assert len(chances) == 300 and np.mean(np.array(chances) < 0.1) == pytest.approx(0.1, abs=0.05)


def test_a_line_through_points_at_one_place_has_no_slope_that_is_known():
    line = robust_line(np.full(4, 10.0), np.array([1.0, 2.0, 3.0, 9.0]))
    assert (line.slope, line.intercept) == (0.0, 2.5) and line.low == -math.inf and line.high == math.inf
