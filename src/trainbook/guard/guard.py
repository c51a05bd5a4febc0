"""The guard for any training loop.

    guard = Guard(model, optimizer)
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 1.0)  # the norm from before clipping
        if guard.accepts(loss, norm):
            optimizer.step()
        optimizer.zero_grad()

It judges the loss and the gradient norm, and keeps copies of state dicts: it needs to know nothing else about the model
and the optimizer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, Never

import torch
import torch.distributed as dist
from torch import Tensor

from trainbook.errors import ConfigError, Diverged, Problem, UserError
from trainbook.guard.decisions import Adopt, Observe, Policy, RollBack, Stop, Suspicion
from trainbook.guard.judge import Judge, JudgeReading, Rejection
from trainbook.guard.ladder import LONGEST_STRETCH, SMOOTHED, Ladder
from trainbook.guard.snapshots import (
    BATCHES,
    FROM_DEVICE_TO_HOST,
    Averages,
    HasState,
    SnapshotRing,
    StateTrial,
    copied,
    fits_on_device,
    has_rates,
    highest_rate,
    lower_rates,
    size_of,
)
from trainbook.nearest import nearest

logger = logging.getLogger("trainbook.guard")

LOGGED_IN_A_ROW = 3  # rejections, each by itself; from then on only when there are twice as many


class Guard:
    """Decides for each update whether to apply it, and rolls the objects back to a good state if that is not enough."""

    def __init__(
        self,
        *objects: HasState,
        threshold: float | None = 10.0,
        window: int = 128,
        max_consecutive_skips: int = 10,
        max_rollbacks: int = 6,
        drift: bool = True,
        shuffled: bool | None = None,
        snapshot_steps: int = 50,
        num_snapshots: int = 3,
        lower_rate: bool | Callable[[float], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        device: torch.device | str | None = None,
        **unknown: Never,  # named in the error, with the keyword that was probably meant
    ) -> None:
        """`objects` (model, optimizer, scheduler, GradScaler, …) are what a rollback restores. Without any, the guard
        can only skip updates.

        `threshold`: how far a loss or gradient norm may be from the last `window` accepted ones, in robust standard
        deviations. None: only values that are not finite are rejected. After a few rejections in a row, or, with
        `drift`, after a slow rise of the loss, a trial decides whether the model or the data is the cause: the next
        batch, or a few more in turn with the current state, are given to an earlier one. If the earlier state is better
        and the current one does not recover by itself, the guard rolls back, and stops after `max_rollbacks` rollbacks
        to the same state. If not, the data has changed, and the guard adapts: at once, or, after thousands of updates
        at one level, one skipped update later for each thousand. `max_consecutive_skips` values in a row that are not
        finite lead to the same trial, and to a rollback at once if the earlier state is better. If not, the data is
        bad: it is skipped, and the guard stops after fifty times as many.

        `shuffled`: batches are drawn at random from the same data, so no healthy stretch of them has a loss far above
        the rest: instead of adapting after a few rejections in a row, the guard skips up to six times
        `max_consecutive_skips` updates, unless the trial says that the model is the cause. False: data comes in a
        fixed order, and a model that forgets one part of it while it learns another is no reason to stop: a slow rise
        must reach twice the initial loss. None: it may be either.

        `lower_rate` is the remedy if a rollback to the same state is needed again, or if the loss slowly rises; without
        it the guard stops then. True: halve the learning rate of the optimizers and schedulers among the objects; a
        loop that sets learning rates itself multiplies them by `guard.rate_factor`. A function: the guard calls it with
        the factor by which to multiply the learning rate of the restored objects.

        The objects' states are copied every `snapshot_steps` steps; at most `num_snapshots` + 1 copies are kept, on
        `device`. None: on the device of each tensor, or, if they would take more than a tenth of a GPU's memory, on the
        host and ten times less often.
        """
        whole_numbers = {
            "window": (window, SMOOTHED),  # fewer losses tell neither a drift nor what was learned
            "max_consecutive_skips": (max_consecutive_skips, 1),
            "max_rollbacks": (max_rollbacks, 0),
            "snapshot_steps": (snapshot_steps, 1),
            "num_snapshots": (num_snapshots, 1),
        }
        _check(objects, unknown, threshold, lower_rate, whole_numbers)
        self.objects = objects
        self.snapshot_steps = snapshot_steps
        self.events: list[dict[str, Any]] = []
        self._on_event = on_event
        self._lower_rate = self._lower_own_rates if lower_rate is True else (lower_rate or None)
        self._threshold, self._window = threshold, window
        self._judge: Judge | None = None  # made where the first loss lies
        self._to_restore: dict[str, Any] | None = None  # into that judge
        rate_factor = 0.5 if self._lower_rate else None
        drift_share = Policy.drift_share if drift else None
        longest = LONGEST_STRETCH * max_consecutive_skips if shuffled else None
        self._ladder = Ladder(
            Policy(
                max_consecutive_skips,
                max_rollbacks,
                drift_share,
                rate_factor,
                same_place=window,
                longest=longest,
                in_order=shuffled is False,
            )
        )
        self._trial: StateTrial | None = None
        self._kept_out_by_trials = 0
        self._skips_in_a_row = 0
        self._ring = SnapshotRing(num_snapshots, torch.device(device) if device is not None else None)
        self._place_is_chosen = device is not None
        self._averages = Averages(objects)
        self._scalers = [each for each in objects if isinstance(each, torch.amp.GradScaler) and each.is_enabled()]

    @property
    def step(self) -> int:
        """Updates judged so far; a rollback does not reset it."""
        if self._judge is not None:
            return self._judge.judged
        return self._to_restore["judged"] if self._to_restore else 0

    @property
    def rejected(self) -> int:
        """Updates rejected so far."""
        known = self._judge.rejected if self._judge is not None else (self._to_restore or {"counts": [0]})["counts"][0]
        return int(known) + self._kept_out_by_trials

    @property
    def rollbacks(self) -> int:
        return self._ladder.rollbacks

    @property
    def rate_factor(self) -> float:
        """What all remedies so far multiply the learning rate by: 1, ½, ¼, …"""
        return math.prod(self._ladder.remedies)

    def accepts(self, loss: Tensor | float, grad_norm: Tensor | float, ids: Any = None) -> bool:
        """Whether to apply the update. One flag is read from the device. After many rejections in a row, or a slow rise
        of the loss, the objects are rolled back to a state from before the trouble, and the answer is False.

        All processes of a distributed run must call it, each with its own loss; all get the same answer. `ids` are
        those of the batch's samples; they are only logged.
        """
        loss = _scalar("loss", loss)
        grad_norm = _scalar("grad_norm", grad_norm).to(loss.device)
        judge = self._ready(loss.device)
        if self._trial is not None and self._trial.is_earlier:
            self._end_turn_of_earlier(judge, self._trial, loss, grad_norm)
            return False
        if self.objects and (judge.judged % self.snapshot_steps == 0 or not self._ring.steps):
            self._take_snapshot(judge)
        verdict = judge.judge(loss, grad_norm, self._may_overflow(loss.device))
        self._averages.settle(verdict)
        accepted = bool(verdict)
        if accepted and self._trial is not None:
            self._tell(
                "trial", self.step, f"{self._trial.suspicion.trouble.reason}; this batch is as usual", worse=False
            )
            self._trial = None
        if accepted:
            self._skips_in_a_row = 0
        if accepted and self.step % self._ladder.policy.max_consecutive_skips != 0:
            return True
        reading = judge.read()
        self._tell_of(reading, ids)
        if self._trial is not None:
            self._end_turn_of_present(judge, self._trial, reading.row[-1])
            return False
        decision = self._ladder.decide(self.step, reading, highest_rate(self.objects))
        if isinstance(decision, Suspicion) and not self._begin_trial(decision, reading):
            decision = self._ladder.dismiss(decision, highest_rate(self.objects))
        if isinstance(decision, Suspicion):
            self._kept_out_by_trials += accepted
        self._act_on(judge, decision)
        # In a trial the next forward pass is of another state: this update belongs to the present one.
        return accepted and (decision is None or isinstance(decision, Adopt))

    def _act_on(self, judge: Judge, decision: Adopt | Observe | Suspicion | RollBack | Stop | None) -> None:
        if isinstance(decision, Stop):
            is_unsure = decision.trouble.kind == "data" and not self.objects
            unknown = " Or the model is: to have that tested, pass it and the optimizer to Guard(…)." * is_unsure
            raise Diverged(f"{decision.verdict}{unknown} The model has the weights of the last accepted update.")
        if isinstance(decision, Adopt | Observe):
            decision.tell(judge)
            self._tell(decision.kind, self.step, decision.reason)
        elif isinstance(decision, RollBack):
            self._go_back(judge, decision)

    def _begin_trial(self, suspicion: Suspicion, reading: JudgeReading) -> bool:
        """False: there is no earlier state to compare with."""
        found = self._ring.newest_or_oldest(suspicion.trouble.healthy_before)
        if found is None:
            return False
        target, earlier = found
        present = {str(number): copied(each.state_dict()) for number, each in enumerate(self.objects)}
        self._trial = StateTrial(present, earlier["objects"], target, suspicion)
        self._trial.of_present = [
            self._trial.cost(each.loss, each.grad_norm) for each in suspicion.row
        ] or reading.recent_losses[-2 * BATCHES :]
        self._load(earlier["objects"])
        return True

    def _end_turn_of_earlier(self, judge: Judge, trial: StateTrial, loss: Tensor, grad_norm: Tensor) -> None:
        signals = torch.stack([loss.float(), grad_norm.float()])
        if judge.agree is not None:
            signals = judge.agree(signals)
        judge.judged += 1
        self._kept_out_by_trials += 1
        trial.of_earlier.append(trial.cost(*signals.tolist()))
        is_worse = trial.is_worse
        if is_worse is not None and self._goes_on_with_older(trial, is_worse):
            self._load(trial.earlier)
        elif is_worse is not None:
            self._load(trial.present)
            self._conclude(judge, trial)
        elif trial.suspicion.row:
            trial.is_earlier = False
            self._load(trial.present)

    def _goes_on_with_older(self, trial: StateTrial, is_worse: bool) -> bool:
        """A trial of a state that may be ill itself is repeated with an older one, if there is one."""
        found, cost = self._ring.newest(trial.target - 1), max(trial.of_earlier)
        if found is None or not self._ladder.may_be_ill(trial.suspicion, cost, trial.most, is_worse=is_worse):
            return False
        trial.go_on_with(found[0], found[1]["objects"])
        return True

    def _end_turn_of_present(self, judge: Judge, trial: StateTrial, rejection: Rejection) -> None:
        """Its update was rejected like those that led to the trial, so the state is still the same."""
        trial.of_present.append(trial.cost(rejection.loss, rejection.grad_norm))
        is_worse = trial.is_worse
        if is_worse is not None and not self._goes_on_with_older(trial, is_worse):
            self._conclude(judge, trial)
            return
        trial.is_earlier = True
        self._load(trial.earlier)

    def _conclude(self, judge: Judge, trial: StateTrial) -> None:
        self._trial = None
        self._tell("trial", self.step, trial.outcome, worse=trial.is_worse)
        if trial.is_worse:
            self._act_on(judge, self._ladder.confirm(trial.suspicion))
        else:
            self._act_on(judge, self._ladder.dismiss(trial.suspicion, highest_rate(self.objects)))

    def end_trial(self) -> None:
        """Give the objects their present state back if a trial has lent them an earlier one: before they are saved or
        evaluated, and after the last update. What the trial was about will be noticed again."""
        if self._trial is not None:
            self._load(self._trial.present)
            self._trial = None

    def _load(self, states: dict[str, Any]) -> None:
        for number, each in enumerate(self.objects):
            # A copy: optimizers go on to work in the very tensors that they are given.
            each.load_state_dict(copied(states[str(number)]))
        self._averages.keep()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: recent values, rejections and remedies. Snapshots are not part of it."""
        self.end_trial()  # the objects are to be saved as they are
        judge = self._judge.state_dict() if self._judge is not None else self._to_restore
        return {"judge": copied(judge), "ladder": copied(self._ladder.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ladder.load_state_dict(state_dict["ladder"])
        self._to_restore = copied(state_dict["judge"])
        if self._judge is not None and self._to_restore is not None:
            self._judge.load_state_dict(self._to_restore)
        self._trial = None
        self._ring.forget_after(-1)  # they are of another past
        self._averages.keep()

    def _ready(self, device: torch.device) -> Judge:
        if self._judge is None:
            agree = mean_over_ranks if dist.is_available() and dist.is_initialized() else None
            self._judge = Judge(device, threshold=self._threshold, window=self._window, agree=agree)
            if self._to_restore is not None:
                self._judge.load_state_dict(self._to_restore)
        return self._judge

    def _may_overflow(self, device: torch.device) -> Tensor | None:
        """Whether a gradient that is not finite is an fp16 overflow: the loss scale can still be lowered."""
        if not self._scalers:
            return None
        return torch.full((), any(scaler.get_scale() > 1 for scaler in self._scalers), dtype=torch.bool, device=device)

    def _take_snapshot(self, judge: Judge) -> None:
        states = {str(number): each.state_dict() for number, each in enumerate(self.objects)}
        if not self._place_is_chosen:
            self._choose_place(size_of(states), judge.counts.device)
        state = {"objects": states, "judge": judge.state_dict(), "rate_factor": self.rate_factor}
        self._ring.take(self.step, state, spare=self._ladder.best_step)

    def _choose_place(self, size: int, device: torch.device) -> None:
        self._place_is_chosen = True
        if device.type != "cuda":
            return
        if not fits_on_device(size * (self._ring.size + 1), device):
            self._ring.device = torch.device("cpu")
            self.snapshot_steps *= FROM_DEVICE_TO_HOST
            logger.warning(
                "guard: large states: snapshots are kept in host memory and taken every %d steps", self.snapshot_steps
            )

    def _go_back(self, judge: Judge, decision: RollBack) -> None:
        reason = decision.trouble.reason
        found = self._ring.newest_or_oldest(decision.trouble.healthy_before)
        if found is None:
            raise Diverged(
                f"{reason}. There is no earlier state to roll back to: pass the model and the optimizer to Guard(…)."
            )
        target, state = found
        self._load(state["objects"])
        self._ring.forget_after(target)
        self._ladder.went_back(target, self.step)
        judge.go_back(state["judge"])
        self._tell(
            "rollback", self.step, f"{reason}; rolled back to step {target}", to=target, attempt=decision.attempt
        )
        factor = self.rate_factor / state["rate_factor"]  # the state may be from before an earlier remedy
        if factor != 1 and self._lower_rate is not None:
            self._lower_rate(factor)
            self._tell("remedy", self.step, f"learning rate × {self.rate_factor:.3g}", factor=self.rate_factor)

    def _lower_own_rates(self, factor: float) -> None:
        lower_rates(self.objects, factor)

    def _tell_of(self, reading: JudgeReading, ids: Any) -> None:
        for rejection in reading.rejections:
            evidence: dict[str, Any] = {
                "cause": rejection.cause,
                "loss": rejection.loss,
                "grad_norm": rejection.grad_norm,
            }
            if ids is not None:
                evidence["ids"] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
            self._tell("skip", rejection.step, rejection.reason, **evidence)

    def _tell(self, kind: str, step: int, reason: str, **evidence: Any) -> None:
        event = {"kind": kind, "step": step, "reason": reason, **evidence}
        self.events.append(event)
        told, count = reason, 0
        if kind == "skip":
            self._skips_in_a_row += 1
            count = self._skips_in_a_row
            told = f"{reason} ({count} updates in a row)" if count > LOGGED_IN_A_ROW else reason
        is_logged = count <= LOGGED_IN_A_ROW or count.bit_count() == 1
        if is_logged and (not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0):
            logger.warning("guard: step %d: %s: %s", step, kind, told)
        if self._on_event is not None:
            self._on_event(event)


def mean_over_ranks(signals: Tensor) -> Tensor:
    """The mean is NaN on all ranks if it is on one, so they reject together."""
    total = signals.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _scalar(name: str, value: Tensor | float) -> Tensor:
    if not isinstance(value, Tensor) and (isinstance(value, str | bytes) or not hasattr(value, "__float__")):
        raise UserError(f"guard.accepts: {name} must be a number or a tensor, but got {value!r:.60}.")
    number: Any = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
    if hasattr(number, "full_tensor"):  # the norm of sharded gradients is a DTensor
        number = number.full_tensor()
    if number.numel() != 1:
        raise UserError(f"guard.accepts: {name} must be one number, but got a tensor of shape {tuple(number.shape)}.")
    return number.reshape(())


def _check(
    objects: tuple[Any, ...],
    unknown: Iterable[str],
    threshold: float | None,
    lower_rate: Any,
    whole_numbers: dict[str, tuple[Any, int]],
) -> None:
    known = [name for name, each in signature(Guard).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for name in unknown:
        near = nearest(name, known)
        hint = f"Did you mean {near}?" if near else f"Its keywords: {', '.join(known)}."
        raise TypeError(f"{name}: is not a keyword of Guard. {hint}")
    problems = []
    for each in objects:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            message = f"must have state_dict and load_state_dict, but got {type(each).__name__}"
            hint = "Did you mean the model itself?" if hasattr(each, "__next__") else ""  # model.parameters()
            problems.append(Problem("Guard", "objects", message, hint))
    if threshold is not None and not threshold > 0:
        problems.append(Problem("Guard", "threshold", f"must be > 0 or None, but got {threshold}"))
    for name, (value, least) in whole_numbers.items():
        if not isinstance(value, int) or value < least:
            problems.append(Problem("Guard", name, f"must be a whole number >= {least}, but got {value}"))
    if lower_rate is True and not has_rates(objects):
        problems.append(Problem("Guard", "lower_rate", "True needs an optimizer among the objects, but got none"))
    if problems:
        raise ConfigError(problems)
