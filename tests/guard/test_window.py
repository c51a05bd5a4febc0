from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from tests.conftest import slow
from torch import Tensor

from trainbook.guard.window import RobustWindow

CPU = torch.device("cpu")
LEAST_SPREAD = 0.01


def window_of(*series: Sequence[float], size: int = 128) -> RobustWindow:
    """A window that has accepted these values, one series for each signal, and has looked at them."""
    window = RobustWindow([LEAST_SPREAD] * len(series), size, CPU)
    for values in zip(*series, strict=True):
        window.add(torch.tensor(values, dtype=torch.float32), torch.tensor(True), refresh=False)
    window.refresh()
    return window


def deviation(window: RobustWindow, value: float) -> float:
    return float(window.distances(torch.tensor([[value]])).deviations)


def bands_of(values: np.ndarray, floor: float | None = None) -> list[tuple[float, float, float, float]]:
    """The definition, in double precision, for a window that was looked at once, at the end: level, and the median of
    the surprises and their spread above and below it; of the present level and of the slow one."""
    level = slow = values[0]
    surprises = [0.0]
    for number, now in enumerate(values[1:], start=2):
        surprises.append(now - level)
        level += (now - level) / min(number, 4)
        slow += (now - slow) / min(number, 64)
    known = np.sort(surprises[-128:])
    median, place = np.median(known), min(math.ceil((len(known) - 1) * 0.975), len(known) - 4)
    edge_in_sigmas = stats.norm.ppf((place + 1 - 3 / 8) / (len(known) + 1 / 4))
    least = max(1.4826 * np.median(np.abs(known - median)), LEAST_SPREAD * (abs(level) if floor is None else floor))
    edges = (known[place] - median, median - known[len(known) - 1 - place])
    above, below = (max(least, edge / edge_in_sigmas) * (1 + 8 / len(known)) for edge in edges)
    return [(each, median, above, below) for each in ([level, slow] if len(values) >= 64 else [level])]


def expected_deviation(values: np.ndarray, value: float, floor: float | None = None) -> float:
    """The mildest answer of all levels."""
    distances = [(value - level - median, above, below) for level, median, above, below in bands_of(values, floor)]
    return min((each / (above if each > 0 else below) for each, above, below in distances), key=abs)


@pytest.mark.parametrize("count", [32, 33, 100, 128, 300])
@pytest.mark.parametrize("value", [0.5, 2.8, 3.2, 30.0])
def test_the_distance_is_in_robust_standard_deviations(count: int, value: float):
    values = np.random.default_rng(count).standard_t(3, count) * 0.02 + 3
    plain = expected_deviation(values, value)
    logarithmic = expected_deviation(np.log(values), math.log(value), floor=1.0)
    assert deviation(window_of(values.tolist()), value) == pytest.approx(min(plain, logarithmic, key=abs), rel=1e-3)


def test_odd_values_do_not_make_another_one_usual():
    """Were the largest of few values the edge, any value as large as it would be two standard deviations away."""
    usual = (3 + 0.05 * np.random.default_rng(3).normal(size=40)).tolist()
    odd = [*usual[:10], 4.0, *usual[10:20], 4.0, *usual[20:30], 4.0, *usual[30:]]
    assert deviation(window_of(odd), 4.0) > 3


@pytest.mark.parametrize("index", [1.5, 3.0])
def test_the_tail_is_that_of_a_power_law(index: float):
    """One in a thousand of Pareto's values lies beyond ten deviations of the tail: within what 64 of them can tell."""
    values = 1 + np.random.default_rng(1).pareto(index, 512)
    window = RobustWindow([LEAST_SPREAD], 512, CPU)
    window.bands[:, :, 1:] = 0.0  # the level stays where it is
    for value in values.tolist():
        window.add(torch.tensor([value]), torch.tensor(True), refresh=False)
    window.levels[0] = 0.0
    window.surprises[0] = torch.tensor(values)
    window.refresh()
    beyond = 1000 ** (1 / index)
    assert float(window.tails[0, 0]) * 10 == pytest.approx(beyond, rel=0.5)


def test_a_steady_fall_is_no_surprise_however_steep():
    falling = [10 - 0.05 * number for number in range(150)]
    window = window_of(falling)
    assert abs(deviation(window, falling[-1] - 0.05)) < 1
    assert deviation(window, falling[0]) > 10


def test_few_values_tell_nothing():
    values = [3 + 0.01 * (number % 5) for number in range(31)]
    window = window_of(values)
    assert deviation(window, 1e30) == 0
    window.add(torch.tensor([3.0]), torch.tensor(True), refresh=True)
    assert deviation(window, 1e30) > 100


def test_a_rejected_value_stays_out():
    values = list(np.random.default_rng(1).normal(3, 0.1, 200))
    window, twin = window_of(values), window_of(values)
    for bad in (50.0, math.nan, math.inf, -math.inf):
        window.add(torch.tensor([bad]), torch.tensor(False), refresh=True)
    torch.testing.assert_close(window.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_only_the_last_values_count():
    calm = [3 + 0.1 * (number % 7) for number in range(128)]
    wild = [100.0, 1.0] * 25
    expected = deviation(window_of(calm, size=64), 5.0)
    assert deviation(window_of(wild + calm * 10, size=64), 5.0) == pytest.approx(expected, rel=1e-3)
    assert expected > 5 > 1 > abs(deviation(window_of(wild + calm[:32], size=64), 5.0))


def test_a_curve_that_hardly_moves_leaves_room_for_a_breath():
    window = window_of([2.0] * 64)
    assert deviation(window, 2.1) == pytest.approx(0.1 / (2.0 * LEAST_SPREAD * (1 + 8 / 64)), rel=0.05)


def test_each_signal_has_room_of_its_own():
    window = RobustWindow([0.01, 0.1], 64, CPU)
    for _ in range(64):
        window.add(torch.tensor([2.0, 2.0]), torch.tensor(True), refresh=True)
    loss, norm = window.distances(torch.tensor([[2.1, 2.1]])).deviations[0].tolist()
    assert loss == pytest.approx(10 * norm, rel=1e-3)


def test_of_values_that_fall_to_nothing_only_ratios_mean_anything():
    falling = [10 * 0.9**number for number in range(128)]
    window = window_of(falling)
    assert abs(deviation(window, falling[-1] / 1.2)) < 10
    assert deviation(window, falling[-1] * 1e9) > 10


@pytest.mark.parametrize("level", [-3.0, 0.0])
def test_losses_that_are_not_positive_are_judged_as_they_are(level: float):
    window = window_of((level + 0.1 * np.random.default_rng(5).standard_normal(150)).tolist())
    assert abs(deviation(window, level)) < 3
    assert deviation(window, level + 5) > 10 and deviation(window, level - 5) < -10


def test_signals_do_not_mix():
    loss, norm = [3 + 0.01 * (number % 9) for number in range(64)], [1 + 0.1 * (number % 9) for number in range(64)]
    both = window_of(loss, norm).distances(torch.tensor([[3.3, 1.3]])).deviations[0]
    alone = [deviation(window_of(series), value) for series, value in ((loss, 3.3), (norm, 1.3))]
    assert both.tolist() == pytest.approx(alone)


def test_a_saved_window_goes_on_as_it_was():
    values = list(np.random.default_rng(2).normal(3, 0.1, 150))
    window, other = window_of(values), RobustWindow([LEAST_SPREAD], 128, CPU)
    other.load_state_dict({name: value.clone() for name, value in window.state_dict().items()})
    for value in (3.1, 2.9, 3.0):
        for each in (window, other):
            each.add(torch.tensor([value]), torch.tensor(True), refresh=True)
    torch.testing.assert_close(window.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("count", [20, 100, 150, 300])
@pytest.mark.parametrize("size", [32, 64, 256])
def test_a_window_of_another_size_takes_the_newest_that_fit(size: int, count: int):
    values = [float(number) for number in range(1, count + 1)]
    other = RobustWindow([LEAST_SPREAD], size, CPU)
    other.load_state_dict(window_of(values, size=128).state_dict())
    kept = min(size, count, 128)
    assert int(other.count) == kept
    assert other.values[0, :kept].tolist() == values[-kept:]


def alarms(noise: np.ndarray, threshold: float = 10.0) -> int:
    """Of many independent series side by side, one a row; on both sides."""
    series = torch.tensor(noise, dtype=torch.float32)
    window = RobustWindow([LEAST_SPREAD] * len(series), 128, CPU)
    found = 0
    for number, values in enumerate(series.T, start=1):
        found += int((window.distances(values[None]).deviations.abs() > threshold).sum())
        window.add(values, torch.tensor(True), refresh=number % 8 == 0)
    return found


def alarms_of_the_public_rule(noise: np.ndarray) -> int:
    """Mean and six standard deviations of the last 128 values, at least 64, the present one left out; above only."""
    found = 0
    for now in range(64, noise.shape[1]):
        recent = noise[:, max(0, now - 128) : now]
        found += int((noise[:, now] > recent.mean(1) + 6 * recent.std(1, ddof=1)).sum())
    return found


@pytest.mark.parametrize("level", [slow(3.0), 30.0])
def test_false_alarms_are_not_more_than_those_of_the_public_rule(level: float):
    draw = np.random.default_rng(3)
    gaussian = level + 0.1 * draw.standard_normal((200, 1000))
    assert alarms(gaussian) == alarms_of_the_public_rule(gaussian) == 0
    heavy = level + 0.1 * draw.standard_t(4, (200, 1000))
    public = alarms_of_the_public_rule(heavy)
    assert public > 50
    assert alarms(heavy) < public / 2


def test_nothing_is_asked_of_the_host():
    window = RobustWindow([0.01, 0.05], 32, torch.device("meta"))  # tensors without numbers: there is nothing to ask
    now = torch.empty(2, device="meta")
    window.add(now, torch.empty((), dtype=torch.bool, device="meta"), refresh=True)
    assert isinstance(window.distances(now[None]).deviations, Tensor)
