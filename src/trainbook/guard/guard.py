"""The guard for anybody's loop.

    guard = Guard(model, optimizer)
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 1.0)  # the norm from before clipping
        if guard.accepts(loss, norm):
            optimizer.step()
        optimizer.zero_grad()

It judges tensors that it is given, and keeps copies of state dicts that it is handed: it knows no model, no optimizer
and no folder.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainbook.errors import ConfigError, Diverged, Problem, UserError
from trainbook.guard.judge import Judge, Reading
from trainbook.guard.ladder import SMOOTHED, Ladder, Policy, RollBack, Stop
from trainbook.guard.objects import Averages, HasState, has_rates, lower_rates
from trainbook.guard.snapshots import SnapshotRing, copied, size_of

SHARE_OF_DEVICE = 0.1  # of its memory, that snapshots may take
FROM_DEVICE_TO_HOST = 10  # copies to the host take long: so many times rarer

logger = logging.getLogger("trainbook.guard")


class Guard:
    """Says of each update whether to apply it, and brings the objects back to a good state if that is not enough."""

    def __init__(
        self,
        *objects: HasState,
        threshold: float | None = 10.0,
        window: int = 128,
        max_consecutive_skips: int = 10,
        max_rollbacks: int = 6,
        snapshot_steps: int = 50,
        num_snapshots: int = 3,
        lower_rate: bool | Callable[[float], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """`objects` (a model, an optimizer, a scheduler, a GradScaler, …) are what a rollback restores; without any,
        updates are only kept out.

        `threshold`: how many robust standard deviations of the last `window` accepted updates a loss or gradient norm
        may lie away; None: only what is not finite is rejected. So many rejections in a row as `max_consecutive_skips`
        lead to a rollback, and at most `max_rollbacks` of these are tried from one place.

        `lower_rate` is for a second rollback from one place, and for a loss that slowly gave back what was learned;
        without it the guard gives up there. True: the optimizers and schedulers among the objects go on with half of
        their rate; a loop that sets rates itself multiplies them by `guard.rate_factor`. A function: it is called with
        a factor to put on the rate that the restored objects have.

        A copy of the objects' states is taken every `snapshot_steps`; at most `num_snapshots` and one more are kept, on
        `device`. None: each beside its original, or, where they would fill a tenth of a GPU's memory, on the host and
        ten times rarer.
        """
        whole_numbers = {
            "window": (window, SMOOTHED),  # fewer losses tell neither a drift nor what was learned
            "max_consecutive_skips": (max_consecutive_skips, 1),
            "max_rollbacks": (max_rollbacks, 0),
            "snapshot_steps": (snapshot_steps, 1),
            "num_snapshots": (num_snapshots, 1),
        }
        _check(objects, threshold, lower_rate, whole_numbers)
        self.objects = objects
        self.snapshot_steps = snapshot_steps
        self.events: list[dict[str, Any]] = []
        self._on_event = on_event
        self._lower_rate = self._lower_own_rates if lower_rate is True else (lower_rate or None)
        self._threshold, self._window = threshold, window
        self._judge: Judge | None = None  # made where the first loss lies
        self._to_restore: dict[str, Any] | None = None  # into that judge
        rate_factor = 0.5 if self._lower_rate else None
        self._ladder = Ladder(Policy(max_consecutive_skips, max_rollbacks, rate_factor=rate_factor, same_place=window))
        self._ring = SnapshotRing(num_snapshots, torch.device(device) if device is not None else None)
        self._place_is_chosen = device is not None
        self._averages = Averages(objects)
        self._scalers = [each for each in objects if isinstance(each, torch.amp.GradScaler) and each.is_enabled()]

    @property
    def step(self) -> int:
        """Updates judged so far; after a rollback it goes on counting."""
        if self._judge is not None:
            return self._judge.judged
        return self._to_restore["judged"] if self._to_restore else 0

    @property
    def rejected(self) -> int:
        """Updates kept out so far."""
        if self._judge is not None:
            return int(self._judge.rejected)
        return int(self._to_restore["counts"][0]) if self._to_restore else 0

    @property
    def rollbacks(self) -> int:
        return self._ladder.rollbacks

    @property
    def rate_factor(self) -> float:
        """What all remedies so far have made of the rate: 1, ½, ¼, …"""
        return math.prod(self._ladder.remedies)

    def accepts(self, loss: Tensor | float, grad_norm: Tensor | float, ids: Any = None) -> bool:
        """Whether to apply the update. One flag is read from the device. After many rejections in a row, or a loss that
        gave back what was learned, the objects are loaded with a state from before the trouble, and the answer is no.

        All processes of a distributed run must ask, each with its own loss: they get the same answer. `ids`, of the
        batch's samples, are only written down.
        """
        loss = _scalar("loss", loss)
        grad_norm = _scalar("grad_norm", grad_norm).to(loss.device)
        judge = self._ready(loss.device)
        if self.objects and (judge.judged % self.snapshot_steps == 0 or not self._ring.steps):
            self._take_snapshot(judge)
        verdict = judge.judge(loss, grad_norm, self._may_overflow(loss.device))
        self._averages.settle(verdict)
        accepted = bool(verdict)
        if accepted and self.step % self._ladder.policy.max_consecutive_skips != 0:
            return True
        reading = judge.read()
        self._tell_of(reading, ids)
        decision = self._ladder.decide(self.step, reading)
        if decision is None:
            return accepted
        if isinstance(decision, Stop):
            raise Diverged(f"{decision.verdict} The model is as the last accepted update left it.")
        self._go_back(judge, decision)
        return False

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: what is usual, what was rejected and what was tried. Snapshots are not part of it."""
        judge = self._judge.state_dict() if self._judge is not None else self._to_restore
        return {"judge": copied(judge), "ladder": copied(self._ladder.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._ladder.load_state_dict(state_dict["ladder"])
        self._to_restore = copied(state_dict["judge"])
        if self._judge is not None and self._to_restore is not None:
            self._judge.load_state_dict(self._to_restore)
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
        """A gradient that is not finite is a matter of the loss scale, as long as that can still come down."""
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
        memory = torch.cuda.get_device_properties(device).total_memory
        if size * (self._ring.size + 1) > SHARE_OF_DEVICE * memory:
            self._ring.device = torch.device("cpu")
            self.snapshot_steps *= FROM_DEVICE_TO_HOST
            logger.warning("guard: states are large: copies are kept on the host, every %d steps", self.snapshot_steps)

    def _go_back(self, judge: Judge, decision: RollBack) -> None:
        reason = decision.trouble.reason
        found = self._ring.newest(decision.trouble.healthy_before)
        if found is None and self._ring.steps:
            found = self._ring.newest(self._ring.steps[0])
        if found is None:
            raise Diverged(f"{reason}. There is no earlier state to go back to: give the guard objects to keep.")
        target, state = found
        for number, each in enumerate(self.objects):
            # A copy: optimizers go on to work in the very tensors that they are given.
            each.load_state_dict(copied(state["objects"][str(number)]))
        self._averages.keep()
        self._ring.forget_after(target)
        self._ladder.went_back(target)
        judge.go_back(state["judge"])
        self._tell(
            "rollback", self.step, f"{reason}; back to the state of step {target}", to=target, attempt=decision.attempt
        )
        factor = self.rate_factor / state["rate_factor"]  # the state may be from before an earlier remedy
        if factor != 1 and self._lower_rate is not None:
            self._lower_rate(factor)
            self._tell(
                "remedy", self.step, f"the rate is {self.rate_factor:.3g} of what it was", factor=self.rate_factor
            )

    def _lower_own_rates(self, factor: float) -> None:
        lower_rates(self.objects, factor)

    def _tell_of(self, reading: Reading, ids: Any) -> None:
        for rejection in reading.rejections:
            evidence: dict[str, Any] = {"loss": rejection.loss, "grad_norm": rejection.grad_norm}
            if ids is not None:
                evidence["ids"] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
            self._tell("skip", rejection.step, rejection.reason, **evidence)

    def _tell(self, kind: str, step: int, reason: str, **evidence: Any) -> None:
        event = {"kind": kind, "step": step, "reason": reason, **evidence}
        self.events.append(event)
        if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
            logger.warning("guard: step %d: %s: %s", step, kind, reason)
        if self._on_event is not None:
            self._on_event(event)


def mean_over_ranks(signals: Tensor) -> Tensor:
    """What is not a number on one rank is none on all: they reject together."""
    total = signals.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _scalar(name: str, value: Tensor | float) -> Tensor:
    number: Any = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
    if hasattr(number, "full_tensor"):  # the norm of sharded gradients is a DTensor
        number = number.full_tensor()
    if number.numel() != 1:
        raise UserError(f"guard.accepts: {name} must be one number, but got a tensor of shape {tuple(number.shape)}.")
    return number.reshape(())


def _check(
    objects: tuple[Any, ...], threshold: float | None, lower_rate: Any, whole_numbers: dict[str, tuple[Any, int]]
) -> None:
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
        problems.append(Problem("Guard", "lower_rate", "True needs an optimizer among the objects, but there is none"))
    if problems:
        raise ConfigError(problems)
