from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import quick, slow
from torch import Tensor

from trainbook.guard import Judge
from trainbook.guard.judge import LEDGER_ROWS, TOGETHER
from trainbook.guard.window import REFRESH

CPU = torch.device("cpu")
NAN, INF = math.nan, math.inf
NOISE = np.random.default_rng(0).normal(0, 1, 400)
LOSSES, NORMS = (3 + 0.1 * NOISE[:200]).tolist(), (1 + 0.1 * NOISE[200:]).tolist()


def verdict(judge: Judge, loss: float, grad_norm: float = 1.0, excused: bool | None = None) -> bool:
    answer = judge.judge(
        torch.tensor(loss), torch.tensor(grad_norm), None if excused is None else torch.tensor(excused)
    )
    assert answer.dtype is torch.bool and answer.shape == ()
    return bool(answer)


def verdicts(judge: Judge, losses: Iterable[float], norms: Iterable[float] | None = None) -> list[bool]:
    return [verdict(judge, *pair) for pair in zip(losses, norms or NORMS, strict=False)]


def copied(make: Callable[..., Judge]) -> Callable[..., Judge]:
    """Made once; each test has a copy of its own."""
    made = lru_cache(make)
    return wraps(make)(lambda *arguments, **options: copy.deepcopy(made(*arguments, **options)))


@copied
def experienced(**options: Any) -> Judge:
    """One that has accepted two hundred healthy updates."""
    judge = Judge(CPU, **options)
    assert all(verdicts(judge, LOSSES, NORMS))
    return judge


@pytest.mark.parametrize(("loss", "grad_norm"), [(2.0, 1.0), (-1.0, 0.0), (1e38, 1e38)])
def test_a_first_update_passes_whatever_its_size(loss: float, grad_norm: float):
    assert verdict(Judge(CPU), loss, grad_norm)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("threshold", [None, 10.0])
def test_what_is_not_finite_is_rejected_from_the_first_update_on(bad: float, threshold: float | None):
    judge = Judge(CPU, threshold=threshold)
    assert not verdict(judge, bad, 1.0)
    assert not verdict(judge, 1.0, bad)
    assert not verdict(judge, bad, bad)
    assert int(judge.rejected) == 3


@copied
def learning(start: float, end: float, norm: float = 1.0) -> Judge:
    """One that has seen a loss come down in twenty steps and then stay where it is, with a little noise."""
    judge = Judge(CPU)
    fall = [start + (end - start) * min(1.0, number / 20) for number in range(120)]
    assert all(verdicts(judge, [loss + 0.1 * noise for loss, noise in zip(fall, NOISE, strict=False)], [norm] * 120))
    return judge


def test_a_loss_above_that_of_the_beginning_needs_only_half_the_distance():
    judge = learning(start=4.0, end=3.0)
    assert not verdict(judge, 4.2)
    assert 5 < float(judge.deviations[0]) < 10
    assert verdict(judge, 3.8), "far from the usual as well, but training began with more"
    assert (
        judge.read()
        .rejections[0]
        .reason.endswith(", and above the initial loss (3.943, the mean of the first updates)")
    )


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ([1.6, 2.0, 18.0, 19.0], "1.6, of the first update"),
        ([5.0, 2.0, 2.2, 19.0], "3.6, the median of the first updates"),
    ],
)
def test_losses_that_diverge_at_once_do_not_raise_the_initial_loss_that_is_told(first: list[float], told: str):
    judge = Judge(CPU)
    assert all(verdicts(judge, [*first, *[1 + 0.1 * noise for noise in NOISE[:60]]], [1.0] * 64))
    judge.read()
    twin = Judge(CPU)
    twin.load_state_dict(judge.state_dict())
    for each in (judge, twin):
        assert not verdict(each, 60.0)
        assert each.read().rejections[0].reason.endswith(f", and above the initial loss ({told})")


def test_a_loss_above_that_of_the_beginning_is_nothing_where_little_was_learnt():
    judge = learning(start=3.2, end=3.0)
    assert verdict(judge, 3.6)


@lru_cache
def scattered(bad: float, share: float, *, spread: float, seed: int = 0) -> tuple[Judge, float, float]:
    """A run whose losses fall from 1.8 and then scatter by factors around .1; a share of the later ones is bad. Gives
    the judge, and how many of the bad and of the good ones it rejected."""
    draw, judge = np.random.default_rng(seed), Judge(CPU)
    rejected: dict[bool, list[bool]] = {True: [], False: []}
    for step in range(600):
        level = 0.1 + 1.7 * math.exp(-step / 8)
        is_bad = step >= 60 and draw.random() < share
        loss = bad * math.exp(0.2 * draw.normal()) if is_bad else level * math.exp(spread * draw.normal())
        rejected[is_bad].append(not verdict(judge, loss, math.exp(0.3 * draw.normal())))
    of_bad, of_good = (sum(rejected[each]) / max(1, len(rejected[each])) for each in (True, False))
    return judge, of_bad, of_good


@pytest.mark.parametrize("seed", quick(range(3), 0))
@pytest.mark.parametrize(
    ("bad", "share", "spread"), [(9.0, 0.01, 0.7), slow(4.0, 0.01, 0.3), (4.0, 0.05, 0.3), (12.0, 0.05, 0.6)]
)
def test_bad_batches_at_random_are_rejected_one_like_the_other(bad: float, share: float, spread: float, seed: int):
    """Those that were rejected first must not make the next ones usual, also where good losses scatter by factors."""
    _, of_bad, of_good = scattered(bad, share, spread=spread, seed=seed)
    assert of_bad > 0.9 and of_good < 0.01


def test_values_that_are_a_part_of_the_data_are_taken_for_usual_in_the_end():
    judge, of_odd, _ = scattered(1.5, 0.25, spread=0.3, seed=0)
    assert of_odd < 0.5 and verdict(judge, 1.5)


def test_how_often_values_come_alone_is_in_the_state():
    judge, twin = scattered(12.0, 0.05, spread=0.6, seed=0)[0], Judge(CPU)
    assert float(judge.evidence[2]) > 0.02
    twin.load_state_dict(judge.state_dict())
    torch.testing.assert_close(twin.state_dict(), judge.state_dict(), rtol=0, atol=0)
    older: dict[str, Any] = {**judge.state_dict(), "evidence": judge.evidence[:2]}
    older["window"] = {name: value for name, value in older["window"].items() if name != "tails"}
    Judge(CPU).load_state_dict(older)


def test_a_run_that_repeats_one_batch_has_no_spread_to_judge_by():
    judge = experienced()
    assert not any(verdicts(judge, [6.0, 6.0]))
    judge.adopt(judge.read().row)
    assert verdict(judge, 20.0) and verdict(judge, 4.0)


@pytest.mark.parametrize("seed", quick(range(5), 0, 3))
def test_a_margin_loss_that_is_mostly_zero_is_judged_by_the_loss_that_it_began_with(seed: int):
    draw, judge = np.random.default_rng(seed), Judge(CPU)
    for step in range(600):
        misses = draw.binomial(8, 0.5 * math.exp(-step / 100) + 0.01) / 8  # of a batch of eight
        assert verdict(judge, misses * draw.uniform(0.2, 1.0), math.sqrt(misses))
    assert not verdict(judge, 0.9, 30.0)
    assert not verdict(judge, 2.0, 1.0)


def test_what_a_run_began_with_is_in_its_state():
    judge, twin = learning(start=4.0, end=3.0), Judge(CPU)
    twin.load_state_dict(judge.state_dict())
    assert not verdict(twin, 4.2)


def test_a_state_that_does_not_know_the_beginning_says_nothing_of_it():
    judge, twin = learning(start=4.0, end=3.0), Judge(CPU)
    twin.load_state_dict({name: value for name, value in judge.state_dict().items() if name != "beginning"})
    assert not verdict(twin, 60.0)
    assert "initial loss" not in twin.read().rejections[0].reason


def test_one_nan_costs_one_update_and_leaves_no_trace():
    judge, twin = experienced(), experienced()
    assert not verdict(judge, NAN, NAN)
    torch.testing.assert_close(judge.window.state_dict(), twin.window.state_dict(), rtol=0, atol=0)
    assert all(verdicts(judge, LOSSES))


def test_equal_outliers_in_a_row_are_all_rejected():
    judge = experienced()
    assert not any(verdicts(judge, [6.0] * 20))
    assert not any(verdicts(judge, [3.0] * 20, [30.0] * 20))
    assert all(verdicts(judge, LOSSES))


def test_a_loss_that_is_suddenly_too_low_is_rejected_and_a_small_gradient_is_not():
    judge = experienced()
    assert not verdict(judge, 0.2)
    assert verdict(judge, 3.0, 1e-3)


@copied
def plateau(noise: float = 0.002) -> Judge:
    """Of a classifier that knows no more yet than how frequent its three classes are."""
    judge = Judge(CPU)
    assert all(verdicts(judge, (math.log(3) + noise * NOISE[:60]).tolist()))
    return judge


@pytest.mark.parametrize("per_update", [0.01, 0.03, 0.06])
def test_a_loss_that_leaves_a_plateau_is_accepted(per_update: float):
    falling = [math.log(3) * (1 - per_update) ** step for step in range(1, 80)]
    assert all(verdicts(plateau(), [*falling, *[falling[-1]] * 20]))


@pytest.mark.parametrize("share", [0.9, 0.8, 0.6])
def test_a_loss_that_jumps_off_a_plateau_is_accepted(share: float):
    assert all(verdicts(plateau(), [share * math.log(3)] * 40))


def test_a_loss_that_is_less_than_half_of_the_usual_is_rejected_on_a_plateau():
    judge = plateau()
    assert not verdict(judge, 0.3)
    assert judge.read().rejections[0].reason.endswith("standard deviations below recent values")


def test_what_is_rejected_below_the_limit_says_that_several_in_a_row_add_up():
    judge = learning(start=4.0, end=3.0)
    while verdict(judge, 3.9):
        assert judge.judged < 140
    (rejection,) = judge.read().rejections
    assert rejection.loss_deviation < 10
    assert rejection.reason.endswith("above recent values; the limit is 10, but several such updates in a row add up")


def test_a_loss_may_be_an_outlier_while_the_gradient_norm_is_not_and_the_other_way_round():
    judge = experienced()
    assert not verdict(judge, 5.3, 0.9)
    assert not verdict(judge, 3.0, 30.0)


def far(judge: Judge, deviations: float) -> tuple[float, float]:
    """A loss and a gradient norm that are both so many standard deviations above the usual."""
    found = []
    for signal in range(2):
        low, high = 0.0, 100.0
        for _ in range(30):
            signals = judge.beginning.clone()
            signals[signal] = middle = (low + high) / 2
            is_beyond = judge.window.distances(signals[None]).deviations[0, signal] > deviations
            low, high = (low, middle) if is_beyond else (middle, high)
        found.append(high)
    return found[0], found[1]


def both_of(each: float) -> tuple[float, float]:
    """A loss and a gradient norm that rise and fall together."""
    return 3 + 0.1 * each, math.exp(0.3 * each)


@copied
def rising_together() -> Judge:
    judge = Judge(CPU)
    assert all(verdict(judge, *both_of(each)) for each in np.random.default_rng(0).standard_normal(200))
    return judge


def test_how_far_both_may_be_above_the_usual_depends_on_whether_they_rise_together():
    """4.4 deviations: one update in a thousand, if they always do and have the tails of a Laplace distribution."""
    judge = experienced()
    assert not verdict(judge, *far(judge, 3.4)) and verdict(judge, *far(judge, 3.2))
    judge, limit = rising_together(), math.log(0.5 / 1e-3) / math.sqrt(2)
    assert not verdict(judge, *far(judge, limit + 0.1)) and verdict(judge, *far(judge, limit - 0.1))


def test_before_anything_is_known_loss_and_norm_are_taken_to_rise_together():
    assert float(Judge(CPU)._together()) == pytest.approx(0.44)


def test_what_the_run_says_of_loss_and_norm_is_saved_and_taken_back():
    judge, other = experienced(), Judge(CPU)
    other.load_state_dict(judge.state_dict())
    assert float(other._together()) == float(judge._together()) == pytest.approx(0.33)
    other, state = Judge(CPU), judge.state_dict()
    kept = {name: value for name, value in state["window"].items() if name != "concordance"}
    other.load_state_dict({**state, "window": kept})  # of an older version
    assert float(other._together()) == pytest.approx(0.44)
    before = judge.window.concordance
    while judge.judged % REFRESH != REFRESH - 1:
        assert verdict(judge, 3.0)
    assert not verdict(judge, NAN)  # the window is looked at all the same
    judge.take_back()
    assert torch.equal(judge.window.concordance, before)


@pytest.mark.parametrize("seed", quick(range(2), 0))
def test_healthy_updates_with_long_tails_that_rise_together_are_rarely_rejected(seed: int):
    judge, draw = Judge(CPU), np.random.default_rng(seed)
    rejected = [not verdict(judge, 3 * math.exp(0.03 * z), math.exp(0.3 * z)) for z in draw.laplace(size=1000)]
    assert np.mean(rejected) <= 0.003


def test_what_is_doubtful_is_accepted_but_does_not_change_what_is_usual():
    judge, twin = rising_together(), rising_together()
    for number, each in enumerate(np.random.default_rng(1).standard_normal(100)):
        assert verdict(judge, *both_of(each)) and verdict(twin, *both_of(each))
        if number % 5 == 0:
            assert verdict(judge, *far(judge, 4.0))
    assert torch.equal(judge.window.values, twin.window.values)
    torch.testing.assert_close(judge.window.levels, twin.window.levels, rtol=0, atol=0.02)


def test_without_a_threshold_only_what_is_not_finite_is_rejected():
    judge = experienced(threshold=None)
    assert verdict(judge, 1e6, 1e6) and verdict(judge, 1e-6)
    assert not any(verdicts(judge, [NAN, INF, -INF])) and not verdict(judge, 3.0, INF)


def test_a_lower_threshold_rejects_more():
    strict, mild = experienced(threshold=6.0), experienced(threshold=20.0)
    outliers = [value for value in np.arange(6, 3, -0.05) if not verdict(strict, value)]
    assert outliers and verdict(mild, outliers[-1])
    assert not verdict(mild, 60.0)


def test_judging_asks_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch):
    judge = Judge(CPU)
    loss, norm, excused = torch.tensor(1.0), torch.tensor(1.0), torch.tensor(True)
    with monkeypatch.context() as patch:
        for name in ("item", "__bool__", "__float__", "__int__", "__index__", "tolist", "numpy", "cpu"):
            patch.setattr(Tensor, name, lambda *_: pytest.fail("the host waited for the device"))
        for _ in range(40):  # past several looks at the window
            judge.judge(loss, norm, excused)
    assert judge.judged == 40


def test_ranks_judge_what_they_agree_on():
    judge = Judge(CPU, agree=lambda signals: signals * NAN)
    assert not verdict(judge, 1.0)


def test_a_disabled_judge_lets_everything_pass_and_counts_nothing():
    judge = Judge(CPU, enabled=False)
    assert verdict(judge, NAN, INF)
    assert judge.read().rejected == 0


def test_rejections_are_counted_in_all_and_in_a_row():
    judge, found = Judge(CPU), []
    for loss in (1.0, NAN, NAN, 1.0, INF, 1.0, 1.0, NAN):
        verdict(judge, loss)
        reading = judge.read()
        found.append((reading.rejected, reading.troubled_in_a_row))
    assert found == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1), (3, 0), (3, 0), (4, 1)]


def test_a_reading_tells_of_a_row_that_has_ended_already():
    judge = Judge(CPU)
    verdicts(judge, [1.0, NAN, NAN, NAN, 1.0, NAN, 1.0])
    reading = judge.read()
    assert reading.troubled_in_a_row == 0
    assert [rejection.step for rejection in reading.rejections] == [2, 3, 4, 6]
    assert judge.read().rejections == []


def test_a_row_that_goes_on_is_counted_from_its_beginning():
    judge = Judge(CPU)
    verdicts(judge, [NAN] * 3)
    judge.read()
    verdicts(judge, [NAN] * 2)
    assert judge.read().troubled_in_a_row == 5


def test_of_very_many_rejections_the_newest_are_remembered():
    judge = Judge(CPU)
    verdicts(judge, [NAN] * (LEDGER_ROWS + 6))
    reading = judge.read()
    assert reading.rejected == LEDGER_ROWS + 6
    assert [rejection.step for rejection in reading.rejections] == list(range(7, LEDGER_ROWS + 7))


def test_accepted_losses_are_read_oldest_first():
    judge = Judge(CPU, window=32)
    losses = [3 + 0.01 * (number % 10) for number in range(50)]
    verdicts(judge, [*losses, NAN])
    assert judge.read().recent_losses == pytest.approx(losses[-32:])


@pytest.mark.parametrize(
    ("loss", "grad_norm", "reason"),
    [
        (NAN, NAN, "the loss is NaN"),
        (3.0, INF, "the gradient norm is infinite"),
        (
            *(60.0, 1.0),
            r"the loss \(60\) is .* standard deviations above recent values, and above the initial loss \(3.*\)",
        ),
        (0.06, 1.0, r"the loss \(0.06\) is .* standard deviations below recent values"),
        (3.0, 50.0, r"the gradient norm \(50\) is .* standard deviations above recent values"),
    ],
)
def test_a_rejection_says_why(loss: float, grad_norm: float, reason: str):
    judge = experienced()
    assert not verdict(judge, loss, grad_norm)
    (rejection,) = judge.read().rejections
    assert rejection.step == 201
    assert (rejection.loss, rejection.grad_norm) == pytest.approx((loss, grad_norm), nan_ok=True)
    assert re.fullmatch(reason, rejection.reason), rejection.reason


def test_an_overflow_that_is_excused_is_rejected_but_is_no_trouble():
    judge = Judge(CPU)
    assert not verdict(judge, 3.0, INF, excused=True)
    assert not verdict(judge, NAN, INF, excused=True), "the loss itself is broken: no scale will mend that"
    assert not verdict(judge, 3.0, INF, excused=True)
    assert not verdict(judge, 3.0, INF, excused=False)
    reading = judge.read()
    assert (reading.rejected, reading.troubled_in_a_row) == (4, 2)
    assert [rejection.is_overflow for rejection in reading.rejections] == [True, False, True, False]
    assert "loss scale" in reading.rejections[0].reason


def test_a_saved_judge_goes_on_as_if_nothing_had_happened():
    values = np.concatenate([3 + 0.1 * NOISE[:200], [NAN, 9.0, 3.0, NAN]])
    whole, others, expected = Judge(CPU), {cut: Judge(CPU) for cut in (3, 40, 201)}, []
    for number, value in enumerate(values):
        if number in others:
            others[number].load_state_dict(_cloned(whole.state_dict()))
        expected.append(verdict(whole, value))
    told = str(whole.read())
    for cut, other in others.items():
        verdict(whole, NAN)  # what was saved is a copy's
        assert verdicts(other, values[cut:], [1.0] * len(values)) == expected[cut:]
        assert str(other.read()) == told


def test_what_was_told_before_saving_is_not_told_again():
    judge, other = Judge(CPU), Judge(CPU)
    verdicts(judge, [NAN, NAN])
    judge.read()
    other.load_state_dict(_cloned(judge.state_dict()))
    verdict(other, INF)
    assert [rejection.step for rejection in other.read().rejections] == [3]


def test_going_back_forgets_what_was_usual_but_not_what_was_rejected():
    judge = experienced()
    state = _cloned(judge.state_dict())
    verdicts(judge, np.linspace(3, 3.6, 100).tolist() + [NAN] * 3, [1.0] * 103)
    judge.read()
    judge.go_back(state)
    assert judge.judged == 303
    torch.testing.assert_close(judge.window.state_dict(), state["window"], rtol=0, atol=0)
    reading = judge.read()
    assert (reading.rejected, reading.troubled_in_a_row, reading.rejections) == (3, 0, [])
    judge.go_back(state, judged=200)
    assert judge.judged == 200


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return {key: _cloned(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_what_loss_and_norm_may_be_together_follows_a_window_that_was_loaded():
    judge, other = Judge(CPU), Judge(CPU)
    assert float(judge._together()) == pytest.approx(TOGETHER[1])
    other.window.concordance.fill_(0.0)
    for load in (judge.load_state_dict, judge.go_back):
        judge.window.concordance.fill_(1.0)
        judge._together_by = (None, None)
        assert float(judge._together()) == pytest.approx(TOGETHER[1])
        load(other.state_dict())
        assert float(judge._together()) == pytest.approx(TOGETHER[0])


@pytest.mark.parametrize("seed", range(12))
def test_the_first_predictions_of_a_model_that_begins_to_learn_may_be_wrong(seed: int):
    """While it says the same of every sample, the losses of small batches are nearly equal; then they scatter."""
    draw = np.random.default_rng(seed)
    begins = 0.693 + 0.006 * draw.standard_normal(32)
    level = np.linspace(0.68, 0.56, 40)
    learns = level + 0.06 * draw.standard_normal(40)
    rising = np.linspace(math.log(0.25), math.log(1.5), 40)
    norms = np.concatenate([0.2 + 0.05 * draw.random(32), np.exp(rising + 0.3 * draw.standard_normal(40))])
    judge = Judge(CPU)
    told = verdicts(judge, [*begins, *learns], norms.tolist())
    assert told[:32] == [True] * 32 and told.count(False) <= 1
    assert not verdict(judge, 2.5, 8.0)  # what is far worse than an untrained model, with a large gradient
    assert not verdict(judge, NAN, 1.0)


def test_a_band_widens_with_the_newest_values_and_not_with_a_few_bad_ones():
    judge = Judge(CPU)
    wide = [3 + 0.5 * each for each in NOISE[:16]]
    assert all(verdicts(judge, [3 + 0.02 * each for each in NOISE[16:116]]))
    before = float(judge.window.bands[0, 0, 1])
    few = [3.0] * 14 + [3.2, 3.2]
    verdicts(judge, few)
    assert float(judge.window.bands[0, 0, 1]) < 2 * before
    judge.observe(len(wide))
    for each in wide:
        judge.window.distances(torch.tensor([[each, 1.0]], dtype=torch.float32))
        judge.window.add(torch.tensor([each, 1.0], dtype=torch.float32), torch.tensor(True), refresh=False)
    judge.window.refresh()
    assert float(judge.window.bands[0, 0, 1]) > 4 * before
