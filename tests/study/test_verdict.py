"""Whether a change helped, from two curves and their noise."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from trainbook.study.verdict import (
    CHANCE,
    compare_curves,
    compare_growth,
    compare_scatter,
    compare_seeds,
    compare_speeds,
    fluctuation,
    reach_of,
    t_interval,
)


def curve(*values: float) -> list[tuple[int, float]]:
    return [(10 * place, value) for place, value in enumerate(values, start=1)]


def test_a_straight_line_does_not_fluctuate_however_its_points_are_spaced():
    assert fluctuation([(1, 5.0), (2, 4.0), (5, 1.0), (6, 0.0), (7, -1.0)]) == pytest.approx(0.0, abs=1e-12)


def test_the_fluctuation_is_the_sigma_of_one_value():
    # +a, -a in turn about a falling line: each lies 2a off the line between its neighbours, whose sigma is a sqrt(1.5).
    alternating = curve(*(10 - place + 0.3 * (-1) ** place for place in range(8)))
    assert fluctuation(alternating) == pytest.approx(2 * 0.3 / math.sqrt(1.5))


@pytest.mark.parametrize(
    ("remedy", "verdict"),
    [
        ((3.0, 2.0, 1.8, 1.7, 1.65, 1.61), "helped"),
        ((3.0, 2.8, 2.7, 2.6, 2.55, 2.51), "made it worse"),
        ((3.0, 2.5, 2.3, 2.2, 2.15, 2.11), "did not help"),  # the very same
        ((3.0, 2.49, 2.31, 2.19, 2.16, 2.10), "cannot tell"),
        ((3.0, 2.5, math.nan, math.nan, math.nan, math.nan), "made it worse"),
        ((3.0, 2.5, 2.2, 9.0, 4.0, 40.0), "made it worse"),  # so wild that its mean says little, but never as good
    ],
)
def test_the_verdict_of_single_runs(remedy, verdict):
    control = curve(3.0, 2.5, 2.3, 2.2, 2.15, 2.11)
    found = compare_curves("loss", control, curve(*remedy))
    assert found.verdict == verdict, found
    mirrored = {"helped": "made it worse", "made it worse": "helped"}
    assert compare_curves("loss", curve(*remedy), control).verdict == mirrored.get(verdict, verdict)
    if found.interval is not None and verdict != "did not help":
        assert found.interval[0] <= found.difference <= found.interval[1]
        assert (found.interval[0] < 0 < found.interval[1]) == (verdict == "cannot tell")


@pytest.mark.parametrize(("shift", "is_said"), [(0.2, True), (-0.2, False), (0.01, False)])
def test_an_interval_that_is_mostly_worse_is_said_to_be(shift: float, is_said: bool):
    pairs = [(curve(2.0, 2.0), curve(2.0 + each, 2.0 + each)) for each in (shift - 0.3, shift, shift + 0.3)]
    found = compare_seeds("loss", pairs)
    assert found.verdict == "cannot tell" and ("most of it worse" in found.reason) is is_said


def test_two_runs_that_both_break_are_no_help():
    found = compare_curves("loss", curve(3.0, math.inf), curve(2.0, math.nan))
    assert (found.verdict, found.interval) == ("did not help", None)


def test_a_difference_that_chance_could_make_is_not_called_help():
    control = curve(2.6, 2.4, 2.2, 2.0, 1.8, 1.6)
    shifted = [(step, value - CHANCE * 1.8) for step, value in control]  # one sigma, without any scatter
    assert compare_curves("loss", control, shifted).verdict == "cannot tell"
    shifted = [(step, value - 5 * CHANCE * 1.8) for step, value in control]
    assert compare_curves("loss", control, shifted).verdict == "helped"


def test_over_seeds_the_interval_is_students():
    differences = [-0.30, -0.10, -0.22, -0.18]
    low, high = t_interval(differences)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    pairs = [(curve(2.0, 2.0, 2.0), curve(*[2.0 + each] * 3)) for each in differences]
    found = compare_seeds("loss", pairs)
    assert found.verdict == "helped"
    assert (found.difference, *found.interval) == pytest.approx((-0.20, low, high))  # pyright: ignore
    assert compare_seeds("loss", [*pairs, (curve(2.0, 2.0), curve(9.0, 9.0))]).verdict == "cannot tell"


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_of_several_looks_each_has_its_part_of_the_error(looks):
    sigmas, confidence = reach_of(looks)
    assert looks * stats.norm.sf(sigmas) == pytest.approx(stats.norm.sf(2.0))
    assert looks * (1 - confidence) == pytest.approx(0.05)
    control, remedy = curve(3.0, 2.5, 2.3, 2.2, 2.15, 2.1), curve(3.0, 2.3, 2.2, 2.0, 2.05, 1.95)
    once, more = compare_curves("loss", control, remedy), compare_curves("loss", control, remedy, looks)
    assert once.interval is not None and more.interval is not None
    middle = once.difference
    assert (more.interval[1] - middle) / (once.interval[1] - middle) == pytest.approx(sigmas / 2)
    pairs = [(curve(3.0), curve(2.0 + 0.1 * seed)) for seed in range(3)]
    values = [-1.0, -0.9, -0.8]
    assert compare_seeds("loss", pairs, looks).interval == pytest.approx(t_interval(values, confidence))


def test_seeds_of_which_some_break_in_one_arm_are_not_averaged():
    whole, broken = curve(2.0, 2.0, 2.0), curve(2.0, math.nan, math.nan)
    assert compare_seeds("loss", [(broken, whole), (broken, whole)]).verdict == "helped"
    assert compare_seeds("loss", [(broken, whole), (whole, whole)]).verdict == "cannot tell"


def test_a_machine_that_was_slow_for_a_while_is_not_blamed_on_one_of_the_arms():
    calm = [[100.0, 101.0, 99.0], [100.0, 99.0, 101.0]]
    assert compare_speeds("speed", calm, [[120.0, 121.0, 119.0], [119.0, 120.0, 121.0]]).verdict == "helped"
    assert compare_speeds("speed", calm, [[80.0, 81.0, 79.0], [79.0, 80.0, 81.0]]).verdict == "made it worse"
    # The same mean of 120, but of one run at 140 and one at 100.
    assert compare_speeds("speed", calm, [[140.0, 141.0, 139.0], [99.0, 100.0, 101.0]]).verdict == "cannot tell"
    assert compare_speeds("speed", [[100.0]], [[120.0]]).verdict == "cannot tell"


def test_growth_is_judged_by_its_slope_and_not_by_its_level():
    growing = [(step, 1e9 + 1e6 * step + 1e4 * (-1) ** step) for step in range(20)]
    level = [(step, 5e9 + 1e4 * (-1) ** step) for step in range(20)]
    found = compare_growth("memory", growing, level)
    assert found.verdict == "helped"
    assert (found.control, found.remedy) == pytest.approx((1e6, 0.0), abs=1e3)
    assert compare_growth("memory", level, growing).verdict == "made it worse"


def test_less_scatter_is_better_only_if_it_is_beyond_chance():
    def scattered(size: float) -> list[tuple[int, float]]:
        return curve(*(3 - 0.1 * place + size * (-1) ** place for place in range(10)))

    assert compare_scatter("scatter", scattered(0.4), scattered(0.01)).verdict == "helped"
    assert compare_scatter("scatter", scattered(0.01), scattered(0.4)).verdict == "made it worse"
    assert compare_scatter("scatter", scattered(0.4), scattered(0.3)).verdict == "cannot tell"


def test_of_runs_of_different_lengths_it_is_their_ends_that_are_compared():
    rising = [(step, 0.86 + 0.001 * (step - 120)) for step in range(25, 201, 25)]
    shorter = [(step, 0.89 + 0.004 * (120 - step)) for step in range(15, 121, 15)]
    found = compare_curves("final validation loss", rising, shorter)
    assert (found.control, found.remedy) == (pytest.approx(0.94), pytest.approx(0.89)), "as on their straight lines"
    assert found.verdict == "helped"
    as_long = [(step, value) for (step, _), (_, value) in zip(rising, shorter, strict=True)]
    assert compare_curves("validation loss", rising, as_long).remedy == pytest.approx(0.95), (
        "the mean of the last three"
    )
