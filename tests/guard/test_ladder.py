from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from trainbook.guard import Adopt, JudgeReading, Ladder, Observe, Policy, Rejection, RollBack, Stop, Suspicion
from trainbook.guard.decisions import LEAD

Floats = Sequence[float] | np.ndarray


def rejections(row: int, last: int, in_all: int | None = None) -> JudgeReading:
    """A reading right after the last of so many rejections in a row."""
    found = [Rejection(step, math.nan, 1.0, math.nan, 0.0, False) for step in range(last - row + 1, last + 1)]
    return JudgeReading(in_all or row, row, found, [3.0] * 20, found)


def decided(ladder: Ladder, step: int, reading: JudgeReading) -> object:
    """Where every suspicion turns out to be right, and nothing recovers by itself."""
    decision = ladder.decide(step, reading)
    return ladder.back(decision.trouble) if isinstance(decision, Suspicion) else decision


def experienced(**policy: Any) -> Ladder:
    """One of a run that has learned something."""
    return Ladder(Policy(**policy), first_loss=4.0, best_loss=2.0, best_step=100, lowest_loss=2.0)


def losses(values: Floats) -> JudgeReading:
    return JudgeReading(0, 0, [], list(values)[-128:])


def decisions(curve: Floats, policy: Policy | None = None, every: int = 10) -> list[tuple[int, RollBack]]:
    """Of a run without rejections, read as often as usual."""
    ladder, found = Ladder(policy or Policy()), []
    for step in range(every, len(curve) + 1, every):
        decision = decided(ladder, step, losses(curve[:step]))
        if isinstance(decision, RollBack):
            found.append((step, decision))
    return found


def declining(num_steps: int = 600, noise: float = 0.15, seed: int = 0) -> np.ndarray:
    """From 4 down to 2, as losses go."""
    steps = np.arange(num_steps)
    return 2 + 2 * np.exp(-steps / 120) + noise * np.random.default_rng(seed).standard_normal(num_steps)


def test_few_rejections_are_no_trouble():
    assert decided(Ladder(Policy(max_consecutive_skips=10)), 200, rejections(9, 200)) is None


def test_many_in_a_row_lead_back_to_before_their_cause():
    decision = decided(Ladder(Policy(max_consecutive_skips=10)), 200, rejections(10, 200))
    assert isinstance(decision, RollBack)
    assert (decision.trouble.first_step, decision.trouble.last_step) == (191, 200)
    assert decision.trouble.healthy_before == 190 - LEAD
    assert "10 updates in a row were rejected (the last one: the loss is NaN)" in decision.trouble.reason


def test_trouble_at_the_very_beginning_leads_to_the_beginning():
    decision = decided(Ladder(Policy(max_consecutive_skips=3)), 3, rejections(3, 3))
    assert isinstance(decision, RollBack) and decision.trouble.healthy_before == 0


def test_overflows_of_fp16_do_not_shift_the_beginning_of_the_trouble():
    overflow = Rejection(150, 3.0, math.inf, 0.0, math.inf, True)
    reading = rejections(10, 200)
    decision = decided(Ladder(Policy()), 200, reading._replace(rejections=[overflow, *reading.rejections]))
    assert isinstance(decision, RollBack) and decision.trouble.first_step == 191


def test_the_rungs_are_back_then_back_with_a_lower_rate_then_the_end():
    ladder = experienced(max_rollbacks=3, rate_factor=0.5)
    *rollbacks, end = [decided(ladder, step, rejections(10, step)) for step in (200, 220, 240, 260)]
    found = [(each.attempt, each.rate_factor) for each in rollbacks if isinstance(each, RollBack)]
    assert found == [(1, None), (2, 0.5), (3, 0.5)]
    assert isinstance(end, Stop) and end.attempts == 3
    assert "Tried: 3 rollbacks, learning rate × 0.25." in end.verdict
    assert ladder.rollbacks == 3


def test_without_a_remedy_the_second_trouble_is_the_end():
    ladder = Ladder(Policy(rate_factor=None))
    assert isinstance(decided(ladder, 200, rejections(10, 200)), RollBack)
    end = decided(ladder, 220, rejections(10, 220))
    assert isinstance(end, Stop) and "Tried: 1 rollback." in end.verdict


def test_fp8_products_are_given_up_before_the_learning_rate_is_lowered():
    ladder = experienced(max_rollbacks=3, rate_factor=0.5, has_fp8=True)
    *rollbacks, end = [decided(ladder, step, rejections(10, step)) for step in (200, 220, 240, 260)]
    found = [(each.rate_factor, each.widens_products) for each in rollbacks if isinstance(each, RollBack)]
    assert found == [(None, False), (None, True), (0.5, False)]
    assert isinstance(end, Stop) and "Tried: 3 rollbacks, products in bf16 instead of fp8, learning" in end.verdict


def test_fp8_products_are_given_up_once():
    ladder = experienced(rate_factor=0.5, has_fp8=True)
    for step in (200, 220):
        decided(ladder, step, rejections(10, step))
    resumed = experienced(rate_factor=0.5, has_fp8=True)
    resumed.load_state_dict(json.loads(json.dumps(ladder.state_dict())))
    decision = decided(resumed, 240, rejections(10, 240))
    assert isinstance(decision, RollBack) and decision.rate_factor == 0.5 and not decision.widens_products


def test_a_model_that_never_learned_may_have_been_kept_from_it_by_fp8():
    first, second, third = (
        decided(ladder, step, rejections(10, step))
        for ladder in [Ladder(Policy(has_fp8=True))]
        for step in (20, 40, 60)
    )
    assert isinstance(first, RollBack) and not first.widens_products
    assert isinstance(second, RollBack) and second.widens_products
    assert isinstance(third, Stop)


def test_no_rollback_at_all_can_be_asked_for():
    end = decided(Ladder(Policy(max_rollbacks=0)), 200, rejections(10, 200))
    assert isinstance(end, Stop) and "Tried: nothing." in end.verdict


def test_trouble_in_another_place_starts_anew():
    ladder = Ladder(Policy(same_place=128, rate_factor=None))
    for step in (200, 329, 458):
        decision = decided(ladder, step, rejections(10, step))
        assert isinstance(decision, RollBack) and decision.attempt == 1
        ladder.went_back(step - 40)
    assert isinstance(decided(ladder, 500, rejections(10, 500)), Stop)


def test_trouble_that_leads_to_the_same_state_is_the_same_however_late_it_is_noticed():
    ladder = Ladder(Policy(same_place=5, rate_factor=None))
    decided(ladder, 200, rejections(10, 200))
    ladder.went_back(195)
    assert isinstance(decided(ladder, 206, rejections(10, 206)), Stop), "it began before step 195"


def test_a_remedy_stays_when_a_new_place_is_in_trouble():
    ladder = experienced(rate_factor=0.5)
    for step in (200, 220, 900, 920):
        decided(ladder, step, rejections(10, step))
        ladder.went_back(step - 50)
    assert ladder.remedies == [0.5, 0.5]


def test_a_run_that_has_learned_nothing_is_not_healed_by_lower_rates():
    ladder = Ladder(Policy(rate_factor=0.5), first_loss=4.0, best_loss=3.9)
    assert isinstance(decided(ladder, 200, rejections(10, 200)), RollBack)
    end = decided(ladder, 220, rejections(10, 220))
    assert isinstance(end, Stop) and "had learned nothing before that" in end.verdict
    assert ladder.remedies == []


def learning(ladder: Ladder, values: list[float], first: int = 10) -> object:
    """Readings every 10 steps, until one leads to something."""
    for step in range(first, len(values) + 1, 10):
        decision = decided(ladder, step, losses(values[:step]))
        if decision is not None:
            return decision
    return None


@pytest.mark.parametrize("falls", [False, True])
def test_a_lower_rate_that_does_not_learn_ends_a_run_that_was_learning(falls: bool):
    """To stand still at the loss of before the trouble is not enough while the model has much to learn."""
    ladder = Ladder(Policy(rate_factor=0.5, much=0.0))
    start = [5.4 - 0.02 * step for step in range(100)]
    gone = learning(ladder, [*start, *[9.0] * 60])
    assert isinstance(gone, RollBack) and gone.rate_factor == 0.5
    ladder.went_back(100)
    after = [3.7 - (0.003 * step if falls else 0.0) for step in range(300)]
    end = learning(ladder, [*start, *after], first=110)
    if falls:
        assert end is None
    else:
        assert isinstance(end, Stop) and end.trouble.last_step == 100 + 128 + 32
        assert "The learning rate is far too high" in end.verdict and "learning rate × 0.5" in end.verdict


def test_a_lower_rate_may_stand_still_late_in_training():
    ladder = Ladder(Policy(rate_factor=0.5))
    start = [2.0 + 3.4 * 0.98**step for step in range(600)]
    assert isinstance(learning(ladder, [*start, *[4.0] * 60]), RollBack)
    ladder.went_back(600)
    assert learning(ladder, [*start, *[2.0] * 400], first=610) is None


def test_what_a_remedy_must_lead_to_is_part_of_the_state():
    ladder = Ladder(Policy(rate_factor=0.5, much=0.0))
    start = [5.4 - 0.02 * step for step in range(100)]
    learning(ladder, [*start, *[9.0] * 60])
    ladder.went_back(100)
    other = Ladder(Policy(rate_factor=0.5, much=0.0))
    other.load_state_dict(json.loads(json.dumps(ladder.state_dict())))
    assert other == ladder
    after = [3.7] * 300
    assert learning(other, [*start, *after], first=110) == learning(ladder, [*start, *after], first=110)


def test_what_was_learned_is_known_even_after_going_back_to_the_beginning():
    ladder = Ladder(Policy(rate_factor=0.5))
    for step in range(10, 101, 10):
        decided(ladder, step, losses(declining(100, noise=0.01)[:step]))
    assert isinstance(decided(ladder, 110, rejections(10, 110)), RollBack)
    ladder.went_back(0)
    second = decided(ladder, 120, rejections(10, 120))
    assert isinstance(second, RollBack) and second.rate_factor == 0.5


def test_a_row_that_has_ended_is_over():
    reading = rejections(12, 200)._replace(troubled_in_a_row=0)
    assert decided(Ladder(Policy(max_consecutive_skips=10)), 210, reading) is None


DIVERGING = np.concatenate([2 + 2 * np.exp(-np.arange(400) / 120), 2.1 + np.linspace(0, 1.9, 200)])


def test_a_loss_that_gives_back_what_was_learned_is_noticed_and_needs_a_lower_rate():
    (step, decision), *_ = decisions(DIVERGING, Policy(much=0.0))
    assert decision.trouble.kind == "drift" and decision.rate_factor == 0.5
    assert 400 < step < 580
    assert decision.trouble.healthy_before == decision.trouble.first_step <= 420
    assert "the loss rose from" in decision.trouble.reason and "initial loss" in decision.trouble.reason


def test_a_second_drift_is_the_end_where_the_rate_must_not_be_lowered():
    ladder = Ladder(Policy(rate_factor=None, much=0.0))
    found = []
    for step in range(10, 600, 10):
        found.append(decided(ladder, step, losses(DIVERGING[:step])))
        if isinstance(found[-1], Stop):
            break
    assert [type(each) for each in found if each is not None] == [RollBack, Stop]


def test_a_drift_can_be_left_alone():
    assert decisions(DIVERGING, Policy(drift_share=None)) == []


def test_a_loss_that_begins_below_zero_may_rise():
    assert decisions(DIVERGING - 3.9, Policy(much=0.0)) != []
    assert decisions(DIVERGING - 5, Policy(much=0.0)) == []


def test_data_in_a_fixed_order_may_be_forgotten_part_by_part_but_not_without_bound():
    assert decisions(DIVERGING, Policy(much=0.0, in_order=True)) == []
    further = np.concatenate([DIVERGING, 4 + np.linspace(0, 6, 200)])
    (step, decision), *_ = decisions(further, Policy(much=0.0, in_order=True))
    assert step > 600 and decision.trouble.kind == "drift"


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_noisy_decline_is_not_taken_for_a_divergence(noise: float, seed: int):
    assert decisions(declining(1500, noise, seed)) == []


def test_a_hump_early_in_training_is_not_taken_for_a_divergence():
    steps = np.arange(400)
    hump = 4 - 2 * steps / 400 + 0.35 * np.exp(-(((steps - 120) / 40) ** 2))
    assert decisions(hump) == []


def test_a_loss_that_stands_still_is_not_taken_for_a_divergence():
    noise = np.random.default_rng(0).standard_normal(2000)
    assert decisions(2 + 0.1 * noise) == []


def test_what_was_best_in_a_past_that_was_given_up_counts_no_more():
    ladder = Ladder(Policy())
    curve = declining(400, noise=0.01)
    for step in range(10, 401, 10):
        decided(ladder, step, losses(curve[:step]))
    assert ladder.best_step == 400 and ladder.best_loss == pytest.approx(2.1, abs=0.1)
    ladder.went_back(300)
    assert (ladder.best_step, ladder.best_loss) == (300, ladder.first_loss)
    ladder.went_back(350)
    assert ladder.best_step == 300


def test_a_loss_that_rises_by_design_must_double_before_it_is_suspicious():
    rises = np.concatenate([np.full(100, 0.7), np.linspace(0.7, 2.0, 650)])
    ladder = Ladder(Policy())
    found = [ladder.decide(step, losses(rises[:step])) for step in range(10, 751, 10)]
    suspicion = next(each for each in found if each is not None)
    assert isinstance(suspicion, Suspicion) and 1.4 < suspicion.trouble.now < 1.5


def test_a_model_that_is_worse_may_recover_by_itself():
    for recovers in (True, False):
        ladder = Ladder(Policy(much=0.0))
        curve = [*(4 - 0.02 * np.arange(100)), *([9.0] * 60)]
        suspicion = next(
            each
            for step in range(10, 161, 10)
            if isinstance(each := ladder.decide(step, losses(curve[:step])), Suspicion)
        )
        watched = ladder.confirm(suspicion)
        assert isinstance(watched, Observe) and "32 updates to recover" in watched.reason
        curve = [*curve[: suspicion.trouble.last_step], *([2.2 if recovers else 9.0] * 100)]
        later = [
            ladder.decide(step, losses(curve[:step]))
            for step in range(suspicion.trouble.last_step + 10, suspicion.trouble.last_step + 50, 10)
        ]
        assert [type(each) for each in later if each is not None] == ([] if recovers else [RollBack])


@pytest.mark.parametrize(
    ("falls_by", "stops"),
    [(0.0, True), (0.02, False), (0.005, False)],
    ids=["stays at its peak", "falls again", "falls slowly"],
)
def test_a_loss_that_rises_before_anything_is_learned_stops_a_run_only_if_it_does_not_fall_again(
    falls_by: float, stops: bool
):
    """As in an autoencoder with a codebook, whose commitment grows while its codes spread out."""
    rng = np.random.default_rng(0)
    rise = np.minimum(np.arange(800) / 80, 1.0)
    fall = np.exp(-falls_by * np.maximum(np.arange(800) - 80, 0))
    curve = (2.4 + 17 * rise * fall) * (1 + 0.05 * rng.standard_normal(800))
    ladder, noticed, end = Ladder(Policy()), None, None
    for step in range(10, 801, 10):
        decision = ladder.decide(step, losses(curve[:step]))
        if isinstance(decision, Suspicion):
            noticed = step
            decision = ladder.confirm(decision)
        if isinstance(decision, RollBack | Stop):
            end = decision
            break
    assert noticed is not None
    if stops:
        assert isinstance(end, Stop) and "had learned nothing" in end.verdict
        assert 128 <= step - noticed < 138
    else:
        assert end is None


def test_a_suspicion_that_was_wrong_makes_the_next_one_harder():
    ladder = Ladder(Policy(much=0.0))
    curve = np.concatenate([4 - 0.02 * np.arange(100), 2 + 0.01 * np.arange(1500)])
    steps = []
    for step in range(10, len(curve), 10):
        decision = ladder.decide(step, losses(curve[:step]))
        if isinstance(decision, Suspicion):
            steps.append(step)
            assert ladder.dismiss(decision) is None
    apart = np.diff(steps)
    assert 2 < len(steps) < 8 and all(apart[1:] > apart[:-1])


def test_a_few_rejections_at_the_loss_of_a_model_that_knows_something_are_taken_for_usual():
    found = [Rejection(step, 3.0 + step / 1e4, 1.0, 12.0, 0.0, False) for step in (199, 200)]
    reading = JudgeReading(2, 2, found, [1.0] * 40, found, beginning=4.0)
    assert isinstance(Ladder(Policy()).decide(200, reading), Adopt)
    assert Ladder(Policy()).decide(200, reading._replace(beginning=2.0)) is None, "worse than an untrained model"


@pytest.mark.parametrize("loss", [3.5, 9.0])
def test_a_rejected_stretch_of_shuffled_data_is_tested_once_and_not_taken_for_usual_before_it_is_long(loss: float):
    ladder, found = experienced(longest=40), {}
    for step in range(201, 261):
        in_row = [Rejection(at, loss, 1.0, 20.0, 0.0, False, beginning=4.0) for at in range(201, step + 1)]
        decision = ladder.decide(step, JudgeReading(step - 200, step - 200, in_row[-1:], [2.0] * 40, in_row, 4.0))
        if isinstance(decision, Suspicion):
            decision = (decision, ladder.dismiss(decision))
        if decision is not None:
            found[step - 200] = decision
            saved: dict[str, Any] = {**ladder.state_dict(), "pending": None}
            ladder = Ladder(ladder.policy, **saved)
        if isinstance(decision, Adopt) or (isinstance(decision, tuple) and decision[1]):
            break
    assert list(found) == [2, 40], "a test, and the end of patience"
    assert found[2][1] is None


@pytest.mark.parametrize(("updates", "waited"), [(600, 2), (20_000, 20), (200_000, 60)])
def test_data_that_was_at_one_level_for_long_is_not_taken_to_have_changed_at_once(updates: int, waited: int):
    """One update in a thousand is spent on waiting, up to the longest stretch; after a change it begins anew."""

    def adopted_after(ladder: Ladder, first: int) -> int:
        for step in range(first, first + 100):
            in_row = [Rejection(at, 3.0 + at % 7 / 100, 1.0, 20.0, 0.0, False) for at in range(first, step + 1)]
            count = len(in_row)
            decision = ladder.decide(step, JudgeReading(count, count, in_row[-1:], [2.0] * 40, in_row, 4.0))
            if isinstance(decision, Suspicion):
                decision = ladder.dismiss(decision)
            if isinstance(decision, Adopt):
                return count
        raise AssertionError("never")

    ladder = experienced()
    assert adopted_after(ladder, updates) == waited
    assert adopted_after(ladder, updates + 500) == 2


def test_a_saved_ladder_takes_the_same_steps():
    curve = np.concatenate([declining(400), 2.1 + np.linspace(0, 1.9, 300)])

    def steps_of(saved_at: int | None) -> list[object]:
        ladder, found = Ladder(Policy(max_rollbacks=2, much=0.0)), []
        for step in range(10, len(curve) + 1, 10):
            if step == saved_at:
                state = json.loads(json.dumps(ladder.state_dict()))
                ladder = Ladder(Policy(max_rollbacks=2, much=0.0))
                ladder.load_state_dict(state)
            reading = rejections(10, step) if step in (100, 120) else losses(curve[:step])
            decision = decided(ladder, step, reading)
            found.append(decision)
            if isinstance(decision, RollBack):
                ladder.went_back(decision.trouble.healthy_before)
        return found

    whole = steps_of(None)
    assert sum(isinstance(each, RollBack) for each in whole) > 2
    for saved_at in (50, 110, 120, 130, 470, 600):
        assert steps_of(saved_at) == whole
