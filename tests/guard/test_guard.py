from __future__ import annotations

import copy
import io
import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import slow
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, lr_scheduler

from trainbook import Guard
from trainbook.errors import ConfigError, Diverged, UserError

NAN, INF = math.nan, math.inf


class Loop:
    """Somebody's training: a small regression, with whatever the test puts in."""

    def __init__(self, *, scaler: torch.amp.GradScaler | None = None, norm: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        hidden = [nn.BatchNorm1d(8)] if norm else []
        self.model = nn.Sequential(nn.Linear(4, 8), *hidden, nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, 500)
        self.scaler = scaler
        objects = (self.model, self.optimizer, self.scheduler, *([scaler] if scaler else []))
        self.guard = Guard(*objects, **options)

    def update(self, number: int, poison: float = 1.0, micro_batches: int = 1) -> bool:
        """One update on the batch of this number; its last micro-batch is multiplied by the poison."""
        total = torch.zeros(())
        for micro_batch in range(micro_batches):
            inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(number * 100 + micro_batch))
            if micro_batch == micro_batches - 1:
                inputs = inputs * poison
            loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean() / micro_batches
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total += loss.detach()
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        accepted = self.guard.accepts(total, clip_grad_norm_(self.model.parameters(), 1.0))
        if accepted:
            self.scaler.step(self.optimizer) if self.scaler else self.optimizer.step()
            self.scheduler.step()
        if self.scaler:
            self.scaler.update()
        self.optimizer.zero_grad()
        return accepted

    def broken(self) -> None:
        """The weights are ruined, and updates go on until the guard has brought them back."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(NAN)
        rollbacks = self.guard.rollbacks
        while self.guard.rollbacks == rollbacks:
            self.update(0)

    def state(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})

    def must_equal(self, other: Loop | dict[str, Any]) -> None:
        expected = other if isinstance(other, dict) else other.state()
        torch.testing.assert_close(self.state(), expected, rtol=0, atol=0)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.guard.events]


def healthy(number: int) -> Tensor:
    """A loss that nobody would object to: it falls, and has some noise."""
    return torch.tensor(2 + 2 * math.exp(-number / 30) + 0.05 * math.sin(number * 7.3))


@pytest.mark.parametrize(
    ("poison", "micro_batches"), [(NAN, 1), slow(NAN, 3), slow(INF, 1), slow(INF, 3), slow(1e3, 1), (1e3, 3)]
)
def test_a_rejected_update_never_happened(poison: float, micro_batches: int):
    loop, twin = Loop(), Loop()
    for number in range(60):
        assert loop.update(number, micro_batches=micro_batches)
        twin.update(number, micro_batches=micro_batches)
        if number >= 40 or not math.isfinite(poison):  # what is usual is known after a while
            assert not loop.update(1000, poison, micro_batches)
            loop.must_equal(twin)
    assert set(loop.kinds()) == {"skip"}


@pytest.mark.parametrize("poison", [NAN, INF])
def test_without_the_guard_one_such_batch_is_the_end(poison: float):
    loop = Loop()
    loop.guard.accepts = lambda *_: True  # pyright: ignore[reportAttributeAccessIssue]
    for number in range(5):
        loop.update(number, poison if number == 2 else 1.0)
    assert all(parameter.isnan().any() for parameter in loop.model.parameters())


def test_what_the_forward_pass_did_to_batch_norms_is_undone():
    loop, twin = Loop(norm=True), Loop(norm=True)
    for number in range(6):
        loop.update(number)
        twin.update(number)
        assert not loop.update(number, NAN)
        loop.must_equal(twin)


def test_after_a_rollback_it_is_the_restored_averages_that_a_rejection_brings_back():
    loop = Loop(norm=True, max_consecutive_skips=3, snapshot_steps=10)
    for number in range(30):
        loop.update(number)
    loop.broken()
    restored = loop.state()
    assert loop.kinds()[-1] == "rollback" and not loop.update(0, NAN)
    loop.must_equal(restored)


def test_moving_the_model_after_the_guard_was_made_is_no_trouble():
    loop = Loop(norm=True)
    loop.model.double().float()  # as .to() does, this replaces the averages of batch norms by others
    before = loop.state()["model"]
    assert not loop.update(0, NAN)
    torch.testing.assert_close(loop.state()["model"], before, rtol=0, atol=0)


def test_a_model_that_gives_nothing_finite_any_more_goes_back_to_a_snapshot():
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10)
    for number in range(35):
        if number == 20:
            expected = loop.state()
        assert loop.update(number)
    loop.broken()
    assert loop.kinds() == ["skip"] * 7 + ["trial", "rollback"], "three of them in turn with the earlier state"
    trial, event = loop.guard.events[-2:]
    assert trial["worse"] and "the state of step 20 is fine" in trial["reason"]
    assert (event["to"], event["step"], event["attempt"]) == (20, 46, 1)
    assert "4 updates in a row were rejected" in event["reason"] and "step 20" in event["reason"]
    loop.must_equal(expected)
    assert loop.guard.step == 46 and loop.guard.rollbacks == 1 and loop.guard.rejected == 11
    assert loop.guard.state_dict()["ladder"]["last_target"] == 20
    assert loop.update(50)


def test_a_snapshot_can_be_gone_back_to_again():
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10, lower_rate=lambda factor: None)
    for number in range(35):
        if number == 30:
            expected = loop.state()
        loop.update(number)
    for _ in range(3):
        for number in range(3):
            assert loop.update(number)
        loop.broken()
        loop.must_equal(expected)
    assert [event["to"] for event in loop.guard.events if event["kind"] == "rollback"] == [30] * 3


@pytest.mark.parametrize("of_gradient_alone", [False, True])
def test_data_that_gives_nothing_finite_is_skipped_to_its_end_and_harms_nothing(of_gradient_alone: bool):
    loop, twin = (Loop(max_consecutive_skips=4, snapshot_steps=10) for _ in range(2))
    for number in range(80):
        if number == 40:
            for _ in range(60):
                if of_gradient_alone:
                    assert not loop.guard.accepts(1.0, NAN)
                else:
                    assert not loop.update(0, NAN)
            loop.must_equal(twin)
        assert loop.update(number) and twin.update(number)
    loop.must_equal(twin)
    trials = [event for event in loop.guard.events if event["kind"] == "trial"]
    assert len(trials) == 4, "after 4, 8, 16 and 32"
    assert not any(event["worse"] for event in trials) and "the data is bad" in trials[0]["reason"]
    assert set(loop.kinds()) == {"skip", "trial"} and loop.guard.rejected == 60


def test_bad_data_that_ends_just_before_the_trial_is_not_held_against_the_model():
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10)
    for number in range(40):
        loop.update(number)
    for _ in range(4):
        loop.update(0, NAN)
    accepted = [loop.update(number) for number in range(40, 60)]
    assert not accepted[0] and all(accepted[1:]), "one batch is the earlier state's"
    assert loop.kinds() == ["skip"] * 4 + ["trial"]


def test_data_that_never_becomes_finite_again_is_the_end_and_named_as_the_cause():
    loop = Loop(max_consecutive_skips=2)
    for number in range(20):
        loop.update(number)
    before = loop.state()
    with pytest.raises(
        Diverged, match=r"step 12.: 100 updates in a row .* The training data is broken from step 21 on"
    ):
        for _ in range(200):
            loop.update(0, NAN)
    loop.must_equal(before)
    assert loop.guard.rollbacks == 0


class Patient:
    """A model whose harm one can see: it is part of its state, and of its loss."""

    def __init__(self) -> None:
        self.harm = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"harm": self.harm}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.harm = state_dict["harm"]


def test_a_model_that_gives_back_what_was_learned_is_brought_back_to_its_best():
    patient = Patient()
    guard = Guard(patient, snapshot_steps=20, lower_rate=lambda factor: None)
    for number in range(600):
        accepted = guard.accepts(healthy(number) + patient.harm, 1.0)
        patient.harm += 0.01 * (number > 300 and accepted)
        if guard.rollbacks:
            break
    kinds = [event["kind"] for event in guard.events]
    assert kinds == ["trial", "observe", "rollback", "remedy"]
    trial, _, event, _ = guard.events
    assert trial["worse"] and "the loss rose from" in event["reason"]
    assert 100 < event["to"] <= 320 < event["step"] < 500
    assert patient.harm < 0.3


def test_data_that_becomes_harder_bit_by_bit_is_not_held_against_the_model():
    patient = Patient()
    guard = Guard(patient, snapshot_steps=20, lower_rate=lambda factor: None)
    accepted = [guard.accepts(healthy(number) + max(0, number - 300) / 100, 1.0) for number in range(480)]
    assert guard.rollbacks == 0 and not any(event.get("worse") for event in guard.events)
    assert guard.rejected == accepted.count(False) < 16


@pytest.mark.parametrize("jump", [slow(1.0), 20.0, slow(-1.5)])
def test_a_loss_that_is_another_for_good_is_skipped_for_a_while_and_then_usual(jump: float):
    patient = Patient()
    guard = Guard(patient)
    accepted = [guard.accepts(healthy(number) + jump * (number >= 150), 1.0) for number in range(300)]
    assert all(accepted[:150]) and not accepted[150] and all(accepted[154:])
    assert "adapt" in [event["kind"] for event in guard.events] and guard.rollbacks == 0
    assert all(guard.accepts(healthy(number), 1.0) for number in range(300, 320)), "what was usual is still"


def test_shuffled_data_that_a_model_remembers_is_not_skipped_from_epoch_to_epoch():
    """The loss falls with the first batch of an epoch, to less than half, and stays there."""
    guard = Guard(Patient(), shuffled=True)
    accepted = [guard.accepts(healthy(number) / 3 ** (number // 100), 1.0) for number in range(400)]
    assert accepted.count(False) <= 3 * 2


@pytest.mark.parametrize("jump", [slow(1.0), 20.0])
def test_a_stretch_of_shuffled_data_that_is_different_is_skipped_to_its_end(jump: float):
    """Also where it costs less than at the beginning; and the healthy updates after it count."""
    guard = Guard(Patient(), shuffled=True)
    accepted = [guard.accepts(healthy(number) + jump * (150 <= number < 200), 1.0) for number in range(350)]
    assert all(accepted[:150]) and not any(accepted[150:200]) and all(accepted[200:])
    assert [event["kind"] for event in guard.events].count("trial") == 1 and guard.rollbacks == 0
    accepted = [guard.accepts(healthy(number) + jump, 1.0) for number in range(350, 450)]
    assert all(accepted[70:]), "in the end it is the data"


def test_a_few_bad_batches_that_are_over_when_the_trial_comes_are_not_taken_for_usual():
    guard = Guard(Patient())
    bad = {150, 151, 152, 250, 251, 252}
    accepted = [guard.accepts(healthy(number) + 20.0 * (number in bad), 1.0) for number in range(300)]
    rejected = [number for number, flag in enumerate(accepted) if not flag]
    assert rejected == [150, 151, 152, 153, 250, 251, 252, 253], "one batch after each stretch is the earlier state's"
    assert "adapt" not in [event["kind"] for event in guard.events] and guard.rollbacks == 0


class Descent:
    """All data in each step: the loss is one of the place alone, and a rejected update repeats it to the last bit."""

    def __init__(self) -> None:
        self.place = 0

    @property
    def loss(self) -> float:
        return 0.2 + 2 * 0.98**self.place + 6 * 0.5 ** (self.place - 100) * (self.place >= 100)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.place = state_dict["place"]


def test_a_spike_of_a_run_that_repeats_its_batch_is_skipped_no_longer_than_it_takes_to_see_that():
    descent = Descent()
    guard = Guard(descent, snapshot_steps=20)
    for _ in range(250):
        if guard.accepts(descent.loss, 1.0):
            descent.place += 1
    assert [event["kind"] for event in guard.events] == ["skip", "skip", "trial", "observe"]
    assert guard.rejected == 3 and guard.rollbacks == 0


def test_a_jump_of_the_models_own_making_leads_back():
    patient = Patient()
    guard = Guard(patient, snapshot_steps=20)
    for number in range(250):
        if number == 150:
            patient.harm = 20.0
        guard.accepts(healthy(number) + patient.harm, 1.0)
    assert guard.rollbacks == 1 and patient.harm == 0.0


def test_a_drift_is_not_looked_for_if_one_says_so():
    patient = Patient()
    guard = Guard(patient, drift=False)
    for number in range(480):
        patient.harm += 0.01 * (number > 300)
        assert guard.accepts(healthy(number) + patient.harm, 1.0)
    assert guard.events == []


def test_a_checkpoint_in_the_middle_of_a_trial_has_the_present_state():
    patient = Patient()
    guard = Guard(patient, snapshot_steps=20)
    for number in range(250):
        if number == 150:
            patient.harm = 20.0
        guard.accepts(healthy(number) + patient.harm, 1.0)
        if number > 150 and patient.harm == 0.0:
            break
    guard.state_dict()
    assert patient.harm == 20.0


def test_the_end_of_the_ladder_is_an_error_that_says_what_was_tried():
    loop = Loop(max_consecutive_skips=4, max_rollbacks=2, snapshot_steps=10, lower_rate=True)
    for number in range(60):
        loop.update(number)
    with pytest.raises(Diverged, match=r"2 rollbacks, learning rate × 0\.5"):
        for _ in range(3):
            loop.broken()
    assert loop.kinds().count("rollback") == 2


def test_without_leave_to_lower_the_rate_the_second_trouble_is_the_end():
    loop = Loop(max_consecutive_skips=4)
    with pytest.raises(Diverged, match=r"Tried: 1 rollback\."):
        for _ in range(30):
            loop.update(0, NAN)


def test_without_objects_updates_are_only_kept_out():
    guard = Guard(max_consecutive_skips=3)
    assert guard.accepts(3.0, 1.0) and not guard.accepts(NAN, 1.0)
    with pytest.raises(Diverged, match=r"Or the model is: .* pass it and the optimizer to Guard"):
        for _ in range(3 * 50):
            guard.accepts(NAN, 1.0)
    assert guard.rejected == 150


def test_only_as_many_snapshots_as_asked_for_are_kept():
    loop = Loop(snapshot_steps=5, num_snapshots=2)
    for number in range(23):
        loop.update(number)
    assert loop.guard._ring.steps in ([0, 15, 20], [15, 20])  # and one more, from before the best loss


# Lower rates


def trouble(loop: Loop, times: int) -> None:
    for _ in range(times):
        loop.broken()


def test_the_rate_is_halved_by_each_rollback_after_the_first():
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10, lower_rate=True)
    for number in range(60):
        loop.update(number)
    rates = []
    for factor in (1.0, 0.5, 0.25):
        trouble(loop, 1)
        rates.append(loop.optimizer.param_groups[0]["lr"])
        assert loop.guard.rate_factor == factor
    assert rates == [rates[0], rates[0] / 2, rates[0] / 4]
    assert [event["factor"] for event in loop.guard.events if event["kind"] == "remedy"] == [0.5, 0.25]


def test_a_rate_stays_lowered_when_a_later_rollback_restores_a_state_from_before():
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10, window=32, lower_rate=True)
    for number in range(60):
        loop.update(number)
    full = loop.optimizer.param_groups[0]["lr"]
    trouble(loop, 2)
    loop.guard.snapshot_steps = 1000  # none from after the remedy
    for number in range(80):  # until trouble is trouble in another place
        loop.update(number)
    trouble(loop, 1)
    assert loop.guard.events[-2]["attempt"] == 1
    assert loop.guard.rate_factor == 0.5
    assert loop.optimizer.param_groups[0]["lr"] < 0.51 * full


def test_ones_own_way_to_lower_the_rate_is_given_the_factor_on_the_restored_one():
    seen: list[float] = []
    loop = Loop(max_consecutive_skips=4, snapshot_steps=10, lower_rate=seen.append)
    for number in range(60):
        loop.update(number)
    trouble(loop, 3)
    assert seen == [0.5, 0.25], "both from one snapshot, which is from before"
    for number in range(45):
        loop.update(number)
    trouble(loop, 1)
    assert seen == [0.5, 0.25, 0.5], "from one that has a quarter already"
    assert loop.guard.rate_factor == 0.125


def schedulers() -> dict[str, Callable[[Any], Any]]:
    def sequence(optimizer: Any) -> Any:
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 90)], [10])

    return {
        "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 100),
        "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 100),
        "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 7, 0.5),
        "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 100),
        "sequence": sequence,
        "none": lambda optimizer: None,
    }


@pytest.mark.parametrize("name", schedulers())
def test_a_lowered_rate_stays_lowered_whatever_the_schedule(name: str):
    rates: list[list[float]] = []
    for is_lowered in (False, True):
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler = schedulers()[name](optimizer)
        patient = Patient()
        objects = [patient, optimizer] if scheduler is None else [patient, optimizer, scheduler]
        guard = Guard(*objects, max_consecutive_skips=2, snapshot_steps=10, lower_rate=True)
        for number in range(60):
            guard.accepts(healthy(number), 1.0)
        while guard.rollbacks < 2 * is_lowered:
            if guard._trial is None:
                patient.harm = NAN
            guard.accepts(healthy(60) + patient.harm, 1.0)
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
        found = []
        for _ in range(50):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        rates.append(found)
    assert rates[1] == pytest.approx([rate / 2 for rate in rates[0]], rel=1e-6, abs=1e-8)


# Loss scales


def test_overflows_of_a_loss_scale_that_is_coming_down_are_no_trouble():
    loop = Loop(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**32), max_consecutive_skips=4)
    for parameter in loop.model.parameters():
        parameter.register_hook(lambda gradient: gradient.half().float())
    accepted = [loop.update(number) for number in range(60)]
    assert not any(accepted[:8]) and all(accepted[30:])
    assert all("loss scale" in event["reason"] for event in loop.guard.events)
    assert set(loop.kinds()) == {"skip"}


def test_overflows_at_the_lowest_loss_scale_are_trouble():
    loop = Loop(scaler=torch.amp.GradScaler("cpu", init_scale=8.0), max_consecutive_skips=4)
    for number in range(20):
        loop.update(number)
    for parameter in loop.model.parameters():
        parameter.register_hook(lambda gradient: gradient * INF)
    for number in range(8):
        loop.update(number)
    assert loop.kinds() == ["skip"] * 7 + ["trial"], "three of 8, 4 and 2, and four of 1"


def test_a_skipped_update_with_a_loss_scale_never_happened():
    loop, twin = (Loop(scaler=torch.amp.GradScaler("cpu", init_scale=8.0)) for _ in range(2))
    for number in range(10):
        loop.update(number)
        loop.update(number, NAN)
        twin.update(number)
        loop.must_equal(twin)


# Saving


def test_a_saved_guard_goes_on_as_if_nothing_had_happened():
    losses = [float(healthy(number)) for number in range(150)]
    for bad in (60, 61, 90, 120, 121, 122):
        losses[bad] = NAN
    losses[100] = 30.0

    def run(saved_at: int | None) -> list[dict[str, Any]]:
        loop = Loop(max_consecutive_skips=3, window=32)
        events = []
        for number, loss in enumerate(losses):
            if number == saved_at:
                stream = io.BytesIO()
                torch.save(loop.guard.state_dict(), stream)
                events, loop = loop.guard.events, Loop(max_consecutive_skips=3, window=32)
                stream.seek(0)
                loop.guard.load_state_dict(torch.load(stream, weights_only=True))
                assert loop.guard.step == number
                assert loop.guard.rejected == sum(event["kind"] == "skip" for event in events)
            loop.guard.accepts(loss, 1.0)
        return events + loop.guard.events

    whole = [{name: str(value) for name, value in event.items()} for event in run(None)]
    assert len(whole) == 8
    for saved_at in (1, 61, 99, 100, 121):
        again = [{name: str(value) for name, value in event.items()} for event in run(saved_at)]
        for event in (*whole, *again):
            if event["kind"] == "rollback":
                event.pop("to", None)  # snapshots are not saved: the oldest since then is what there is to go back to
                event["reason"] = event["reason"].partition(";")[0]
        assert again == whole


def test_a_guard_that_has_judged_nothing_can_be_saved_and_loaded():
    guard, other = Guard(), Guard()
    other.load_state_dict(guard.state_dict())
    assert other.step == other.rejected == 0
    assert other.accepts(3.0, 1.0)


def test_after_loading_there_is_a_snapshot_of_where_it_goes_on():
    loop = Loop(max_consecutive_skips=3)
    for number in range(7):
        loop.update(number)
    other = Loop(max_consecutive_skips=3)
    for name in ("model", "optimizer", "scheduler", "guard"):
        getattr(other, name).load_state_dict(copy.deepcopy(getattr(loop, name).state_dict()))
    other.update(7)
    other.broken()
    assert other.guard.events[-1]["to"] == 7
    other.must_equal(loop)


def test_loading_into_a_guard_at_work_replaces_what_it_knew():
    loop = Loop()
    for number in range(5):
        loop.update(number)
    state = loop.guard.state_dict()
    for number in range(5):
        loop.update(number, NAN)
    loop.guard.load_state_dict(state)
    assert (loop.guard.step, loop.guard.rejected) == (5, 0)


# What it tells, and what it takes


def test_many_rejections_in_a_row_are_logged_a_few_times_and_all_are_listed(caplog: pytest.LogCaptureFixture):
    guard = Guard()
    guard.accepts(3.0, 1.0)
    with caplog.at_level(logging.WARNING, "trainbook.guard"):
        for _ in range(200):
            guard.accepts(NAN, 1.0)
        assert len(caplog.records) <= 12 and "the loss is NaN (128 updates in a row)" in caplog.text
        guard.accepts(3.0, 1.0)
        guard.accepts(NAN, 1.0)
    assert caplog.messages[-1].endswith("skip: the loss is NaN")
    assert len([event for event in guard.events if event["kind"] == "skip"]) == 201


def test_events_are_listed_handed_on_and_logged(caplog: pytest.LogCaptureFixture):
    seen: list[dict[str, Any]] = []
    guard = Guard(on_event=seen.append)
    guard.accepts(3.0, 1.0, ids=[1, 2])
    with caplog.at_level(logging.WARNING, "trainbook.guard"):
        guard.accepts(INF, 2.0, ids=torch.tensor([3, 4]))
    assert seen == guard.events
    evidence = {"cause": "not_finite", "loss": INF, "grad_norm": 2.0, "ids": [3, 4]}
    assert seen == [{"kind": "skip", "step": 2, "reason": "the loss is infinite", **evidence}]
    assert "step 2: skip: the loss is infinite" in caplog.text
    assert (guard.step, guard.rejected) == (2, 1)


@pytest.mark.parametrize("loss", [3.0, torch.tensor(3.0), torch.tensor([3.0], dtype=torch.bfloat16), 3])
def test_one_number_is_one_number_in_whatever_form(loss: Any):
    guard = Guard()
    assert guard.accepts(loss, loss)
    assert not guard.accepts(torch.tensor(2.0, requires_grad=True) * NAN, loss)


def test_more_than_one_number_is_refused():
    with pytest.raises(UserError, match=r"loss must be one number, but got a tensor of shape \(3,\)"):
        Guard().accepts(torch.ones(3), 1.0)


@pytest.mark.parametrize("value", ["1", b"1", None, [1.0]])
def test_what_is_not_a_number_is_refused(value: Any):
    with pytest.raises(UserError, match=r"guard\.accepts: loss must be a number or a tensor, but got "):
        Guard().accepts(value, 1.0)
    with pytest.raises(UserError, match=r"guard\.accepts: grad_norm must be a number or a tensor, but got "):
        Guard().accepts(1.0, value)
    assert Guard().accepts(np.float32(1.0), 1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ({"threshold": 0}, "threshold: must be > 0 or None, but got 0"),
        ({"threshold": -1.0}, "threshold: must be > 0 or None, but got -1.0"),
        ({"window": 16}, "window: must be a whole number >= 32, but got 16"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips: must be a whole number >= 1, but got 0"),
        ({"max_rollbacks": -1}, "max_rollbacks: must be a whole number >= 0, but got -1"),
        ({"snapshot_steps": 2.5}, "snapshot_steps: must be a whole number >= 1, but got 2.5"),
        ({"num_snapshots": 0}, "num_snapshots: must be a whole number >= 1, but got 0"),
        ({"lower_rate": True}, "lower_rate: True needs an optimizer among the objects, but got none"),
    ],
)
def test_what_cannot_be_is_refused_with_the_law(options: dict[str, Any], law: str):
    with pytest.raises(ConfigError, match=law):
        Guard(nn.Linear(1, 1), **options)


@pytest.mark.parametrize(
    ("name", "hint"), [("thresold", r"Did you mean threshold\?"), ("colour", "Its keywords: threshold, window, ")]
)
def test_an_unknown_keyword_is_named_with_the_nearest(name: str, hint: str):
    options: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError, match=rf"^{name}: is not a keyword of Guard\. {hint}"):
        Guard(nn.Linear(1, 1), **options)


def test_all_mistakes_are_told_at_once():
    model: Any = nn.Linear(1, 1)
    with pytest.raises(ConfigError) as told:
        Guard(model.parameters(), window=1, num_snapshots=0)
    assert [problem.name for problem in told.value.problems] == ["objects", "window", "num_snapshots"]
    assert "but got generator Did you mean the model itself?" in str(told.value)


def test_snapshots_can_be_kept_elsewhere():
    loop = Loop(device="cpu", max_consecutive_skips=3)
    before = loop.state()
    for number in range(3):
        loop.update(number)
    for _ in range(3):
        loop.update(0, NAN)
    loop.must_equal(before)


@pytest.mark.parametrize(("size", "steps", "place"), [(20, 50, None), (30, 500, torch.device("cpu"))])
def test_copies_that_would_fill_a_tenth_of_a_gpu_are_kept_on_the_host(
    size: int, steps: int, place: torch.device | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1000))
    guard = Guard()
    guard._choose_place(size, torch.device("cuda"))
    assert (guard.snapshot_steps, guard._ring.device) == (steps, place)
