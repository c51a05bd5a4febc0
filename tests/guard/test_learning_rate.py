from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import slow
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from trainbook import Guard
from trainbook.errors import Diverged
from trainbook.guard import JudgeReading, Ladder, Observe, Policy, RollBack, Suspicion
from trainbook.guard.learning_rate import PROOF, RateHistory

FIRST, BEST = 4.0, 0.5


def seen(*rates: float) -> RateHistory:
    """One rate at every tenth step."""
    history = RateHistory()
    for number, rate in enumerate(rates, start=1):
        history.see(10 * number, rate)
    return history


def test_a_learning_rate_that_was_raised_is_told_with_the_last_good_one():
    assert seen(1e-3, 1e-3, 1.0, 1.0).in_words == "; the learning rate rose from 0.001 at step 20 to 1"
    growing = seen(*(1e-3 * 1.1**number for number in range(30)))
    assert growing.in_words == "; the learning rate rose from 0.001 at step 20 to 0.0159"


@pytest.mark.parametrize("rates", [(), (1e-3, 1e-3), (1e-3, 5e-4, 1e-4), (1e-3, 1e-3, 1.0, 1e-3)])
def test_a_learning_rate_that_stays_falls_or_is_back_is_not_told(rates: tuple[float, ...]):
    assert not seen(*rates).was_raised and seen(*rates).in_words == ""


def test_a_learning_rate_with_which_the_model_trains_well_is_as_good_as_the_one_before():
    history = seen(1e-5, 1e-3)
    history.see_best_loss(20 + PROOF - 1)
    assert history.was_raised, "too early: the loss may fall for what was learned before"
    history.see_best_loss(20 + PROOF)
    assert not history.was_raised and history.good == 1e-3


def test_a_best_loss_soon_after_a_rollback_proves_nothing():
    history = seen(1e-3, 1.0)
    history.see_rollback(200)
    history.see_best_loss(200 + PROOF - 1)
    assert history.was_raised


def test_a_saved_ladder_knows_of_the_learning_rate():
    ladder = Ladder(Policy(), rates=seen(1e-3, 1.0))
    loaded = Ladder(Policy())
    loaded.load_state_dict(ladder.state_dict())
    assert loaded == ladder == Ladder(Policy(), **ladder.state_dict())
    old = {name: value for name, value in ladder.state_dict().items() if name != "rates"}  # an older version has none
    loaded = Ladder(Policy())
    loaded.load_state_dict(old)
    assert loaded.rates == RateHistory()


def diverging(noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """From step 300 on the loss grows by half in ten updates, and scatters in proportion to its height: its median is
    never far above its scatter."""
    steps = np.arange(500)
    level = BEST + (FIRST - BEST) * np.exp(-steps / 40)
    level *= 1.04 ** np.maximum(steps - 300, 0)
    return level * np.exp(noise * np.random.default_rng(seed).standard_normal(500))


def suspicions(ladder: Ladder, curve: np.ndarray, raised_to: float | None) -> list[Suspicion]:
    """Of a run whose learning rate was raised after 300 steps."""
    found = []
    for step in range(10, len(curve) + 1, 10):
        rate = None if raised_to is None else raised_to if step > 300 else 1e-3
        reading = JudgeReading(0, 0, [], list(curve[:step])[-128:])
        found.append(ladder.decide(step, reading, rate))
    return [each for each in found if isinstance(each, Suspicion)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("longest", "raised_to"), [(60, None), (None, 1.0)], ids=["shuffled", "raised"])
def test_a_loss_that_diverges_is_noticed_however_much_it_scatters(
    longest: int | None, raised_to: float | None, seed: int
):
    curve = diverging(noise=0.9, seed=seed)
    (first, *_) = suspicions(Ladder(Policy(longest=longest)), curve, raised_to)
    assert first.trouble.kind == "drift" and first.trouble.now > 2 * FIRST
    assert ("the learning rate rose from 0.001 at step 300 to 1" in first.trouble.reason) is (raised_to is not None)


def test_a_batch_that_costs_nothing_does_not_hide_a_divergence():
    """As in a classifier that is sure of everything: its loss is exactly zero where all of a batch is right."""
    curve = diverging(noise=0.9)
    curve[310::16] = 0.0
    assert suspicions(Ladder(Policy(longest=60)), curve, None)


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_of_single_samples_that_scatters_by_factors_is_no_divergence(seed: int):
    """Squares of Gaussian noise, as in a regression with batches of one sample."""
    curve = np.random.default_rng(seed).standard_normal(3000) ** 2
    curve[:8] = 0.1  # and a lucky beginning
    assert suspicions(Ladder(Policy(longest=60)), curve, None) == []


@pytest.mark.parametrize(("later", "recovers"), [(1.0, True), (30.0, False), (6.0, False)])
def test_a_model_that_was_very_bad_has_not_recovered_while_it_is_worse_than_an_untrained_one(
    later: float, recovers: bool
):
    ladder, curve = Ladder(Policy(longest=60)), [*(FIRST - 0.035 * np.arange(100)), *([200.0] * 100)]
    suspicion = suspicions(ladder, np.array(curve), None)[0]
    at = suspicion.trouble.last_step
    ladder = Ladder(Policy(longest=60))
    for step in range(10, at + 1, 10):
        ladder.decide(step, JudgeReading(0, 0, [], curve[:step]))
    assert isinstance(ladder.confirm(suspicion), Observe)
    curve = [*curve[:at], *([later] * 60)]
    found = [ladder.decide(step, JudgeReading(0, 0, [], curve[:step])) for step in range(at + 10, at + 50, 10)]
    assert [type(each) for each in found if each is not None] == ([] if recovers else [RollBack])


class Patient:
    """A model whose harm one can see, and a learning rate."""

    def __init__(self, rate: float | None = None) -> None:
        self.harm = 0.0
        self.param_groups = [] if rate is None else [{"lr": rate}]

    def state_dict(self) -> dict[str, float]:
        return {"harm": self.harm}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.harm = state_dict["harm"]


def treated(patient: Patient, guard: Guard, *, harms: bool) -> None:
    """Until step 300 all is well. What comes then is above the initial loss, but within what is tolerated, when the
    next snapshot is taken, and far beyond it soon after: of the model, if it `harms` it, otherwise of the data."""
    guard._judge = guard._ready(torch.device("cpu"))
    for number in range(500):
        extra = 0.0 if number < 345 else 3.5 if number < 362 else 9.0
        if number == 300 and patient.param_groups:
            patient.param_groups[0]["lr"] = 1.0
        if guard.rollbacks:
            return
        is_turn_of_earlier = guard._trial is not None and guard._trial.is_earlier
        if harms and not is_turn_of_earlier:
            patient.harm = extra
        loss = 0.4 + 3 * math.exp(-number / 40) + 0.02 * math.sin(number * 7.3)
        if 345 <= number < 362:
            guard._judge.observes_until = guard._judge.judged + 1  # tolerated
        guard.accepts(loss + (patient.harm if harms else extra), 1.0)


@pytest.mark.parametrize(("shuffled", "rate"), [(True, None), (None, 1e-3)], ids=["shuffled", "raised"])
def test_a_snapshot_that_is_ill_itself_is_not_what_a_model_is_compared_with(shuffled: bool | None, rate: float | None):
    patient = Patient(rate)
    guard = Guard(patient, shuffled=shuffled)
    treated(patient, guard, harms=True)
    assert guard.rollbacks == 1 and patient.harm == 0.0
    event = next(each for each in guard.events if each["kind"] == "rollback")
    assert event["to"] <= 300 and "adapt" not in [each["kind"] for each in guard.events]
    assert ("the learning rate rose from 0.001 at step 300 to 1" in event["reason"]) is (rate is not None)


@pytest.mark.parametrize(("shuffled", "rate"), [(True, None), (None, 1e-3), (None, None)])
def test_data_that_costs_all_states_the_same_is_not_held_against_the_model(shuffled: bool | None, rate: float | None):
    patient = Patient(rate)
    guard = Guard(patient, shuffled=shuffled)
    treated(patient, guard, harms=False)
    assert guard.rollbacks == 0 and not any(event.get("worse") for event in guard.events)


class Loop:
    """Somebody's training that raises its learning rate after 300 steps."""

    def __init__(
        self, optimizer: Callable[..., Optimizer], rate: float, batch: int, noise: float, **options: Any
    ) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(8, 1)
        keywords: dict[str, Any] = {"momentum": 0.9} if optimizer is SGD else {}
        self.optimizer = optimizer(self.model.parameters(), lr=rate, **keywords)
        self.guard = Guard(self.model, self.optimizer, **options)
        self.rate, self.batch, self.noise = rate, batch, noise
        self.weights = torch.randn(8, 1)

    def loss(self, batch: int) -> torch.Tensor:
        inputs = torch.randn(batch, 8)
        targets = inputs @ self.weights + self.noise * torch.randn(batch, 1)
        return (self.model(inputs) - targets).square().mean()

    def run(self, steps: int, factor: float) -> str:
        """Why it was stopped, if it was."""
        for number in range(steps):
            raised = factor if number >= 300 else 1.0
            self.optimizer.param_groups[0]["lr"] = self.rate * raised * self.guard.rate_factor
            self.optimizer.zero_grad()
            loss = self.loss(self.batch)
            loss.backward()
            norm = nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])
            try:
                if self.guard.accepts(loss, norm):
                    self.optimizer.step()
            except Diverged as stop:
                return str(stop)
        self.guard.end_trial()
        return ""


@pytest.mark.parametrize("shuffled", [True, slow(None)])
@pytest.mark.parametrize("factor", [100.0, slow(1000.0)])
def test_a_learning_rate_that_makes_the_loss_grow_by_and_by_is_lowered(shuffled: bool | None, factor: float):
    """At a hundredfold, no update is far from the ones before it: none was rejected, and the loss grew to millions."""
    loop = Loop(SGD, 1e-3, 4, 1.0, shuffled=shuffled, lower_rate=True)
    before = loop.loss(2000).item()
    assert loop.run(800, factor) == ""
    assert loop.loss(2000).item() < before and loop.guard.rollbacks and loop.guard.rate_factor < 1
    told = [event["reason"] for event in loop.guard.events if event["kind"] == "rollback"]
    assert f"the learning rate rose from 0.001 at step 300 to {factor / 1000:g}" in told[0]


@pytest.mark.parametrize("optimizer", [SGD, slow(Adam)])
def test_without_leave_to_lower_the_rate_the_end_says_that_it_rose(optimizer: type[Optimizer]):
    loop = Loop(optimizer, 1e-3 if optimizer is SGD else 3e-2, 4, 1.0, shuffled=True)
    assert "the learning rate rose from " in loop.run(1500, 1000.0)
