"""The judge: says of each update whether it may be applied. All on the device: judging never waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainbook.guard.window import REFRESH, RobustWindow, in_order

SIGNALS = ("loss", "grad_norm")
# Of the level, what a standard deviation is at least. At the usual threshold of 10, a loss must rise by a tenth, and a
# norm to ten times itself: a smaller one is for clipping to bound.
LEAST_SPREADS = (0.01, math.log(10) / 10)
DEVIATIONS = "standard deviations"
TOGETHER = 1 / 3  # of the threshold is enough where loss and gradient norm are both that far above: not by chance
UNTRAINED = 0.5  # of the threshold is enough for a loss above the one that the run began with
BEGINNING = 4  # losses that the run began with
LEDGER_ROWS = 64  # rejections that are remembered between two readings


@dataclass(frozen=True)
class Rejection:
    """One update that was kept out, and why."""

    step: int
    loss: float
    grad_norm: float
    loss_deviation: float  # in robust standard deviations of the recent accepted values
    grad_norm_deviation: float
    is_overflow: bool  # of fp16: the loss scale is still coming down
    beginning: float = math.inf  # the loss that the run began with

    @property
    def reason(self) -> str:
        if self.is_overflow:
            return "fp16 overflow: the loss scale is halved"
        for name, value in (("loss", self.loss), ("gradient norm", self.grad_norm)):
            if not math.isfinite(value):
                return f"the {name} is {'NaN' if math.isnan(value) else 'infinite'}"
        if min(self.loss_deviation, self.grad_norm_deviation) > TOGETHER * max(abs(self.loss_deviation), 1.0):
            both = f"the loss of {self.loss:.4g} and the gradient norm of {self.grad_norm:.4g}"
            by = f"{self.loss_deviation:.1f} and {self.grad_norm_deviation:.1f} {DEVIATIONS}"
            return f"{both} are {by} above the recent ones"
        name, value, deviation = (
            ("loss", self.loss, self.loss_deviation)
            if abs(self.loss_deviation) >= self.grad_norm_deviation
            else ("gradient norm", self.grad_norm, self.grad_norm_deviation)
        )
        side = "above" if deviation > 0 else "below"
        found = f"the {name} of {value:.4g} is {abs(deviation):.1f} {DEVIATIONS} {side} the recent ones"
        if name == "loss" and self.loss > self.beginning:
            found += f", and above the {self.beginning:.4g} that training began with"
        return found


class Reading(NamedTuple):
    """What the judge has seen, as the host knows it."""

    rejected: int  # updates, in all
    troubled_in_a_row: int  # rejected in a row up to now, overflows of fp16 left out
    rejections: list[Rejection]  # since the last reading; only the newest LEDGER_ROWS are remembered
    recent_losses: list[float]  # accepted ones, oldest first


class Judge:
    """Rejects what is not finite, always, and what lies too far from the recent accepted values, on either side for the
    loss: one that is suddenly too low means broken data as well. Less is enough where both signals say so at once, or
    where the model would be better off knowing nothing."""

    def __init__(
        self,
        device: torch.device,
        *,
        enabled: bool = True,
        threshold: float | None = 10.0,
        window: int = 128,
        agree: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`threshold` None: only what is not finite. `agree` makes the signals the same on all ranks; it is not needed
        where they are already means and norms over the global batch."""
        self.enabled, self.agree = enabled, agree
        self.window = RobustWindow(LEAST_SPREADS, window, device)
        self.judged = 0  # updates so far, which is also the number of the step
        self.told = 0  # rejections that the host has been told of
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # rejected, troubled in a row
        self.deviations = torch.zeros(len(SIGNALS), device=device)  # of the last update judged
        self.beginning = torch.zeros(len(SIGNALS), device=device)  # the mean of the first signals accepted
        self.ledger = torch.zeros(LEDGER_ROWS, 6, dtype=torch.float64, device=device)
        far = math.inf if threshold is None else threshold
        self._highest = torch.full((len(SIGNALS),), far, device=device)
        self._lowest = torch.tensor([-far, -math.inf], device=device)  # a small gradient harms nobody
        self._highest_together, self._highest_untrained = TOGETHER * far, UNTRAINED * far

    @property
    def rejected(self) -> Tensor:
        return self.counts[0]

    @torch.no_grad()
    def judge(self, loss: Tensor, grad_norm: Tensor, excused: Tensor | None = None) -> Tensor:
        """True where the update may be applied. `excused`: a gradient that is not finite is part of fp16's loss scaling
        and no sign of trouble, as long as the scale can still be lowered."""
        signals = torch.stack([loss.float(), grad_norm.float()])
        if self.agree is not None:
            signals = self.agree(signals)
        self.judged += 1
        finite = signals.isfinite()
        self.deviations.copy_(self.window.deviations(signals))
        usual = (self.deviations <= self._highest) & (self.deviations >= self._lowest) & finite
        together = self.deviations.min() > self._highest_together
        accepted = usual.all() & ~together & ~self._is_worse_than_untrained(signals[0])
        overflow = torch.zeros_like(accepted) if excused is None else excused & finite[0] & ~finite[1]
        share = accepted * (self.window.count < BEGINNING) / (self.window.count + 1)
        self.beginning += share * torch.where(accepted, signals - self.beginning, 0.0)
        self.window.add(signals, accepted, refresh=self.judged % REFRESH == 0)
        if not self.enabled:
            return torch.ones_like(accepted)
        self._write_down(signals, ~accepted, overflow)
        return accepted

    def _is_worse_than_untrained(self, loss: Tensor) -> Tensor:
        """Above the loss of the beginning, which is itself far from the usual by now."""
        learnt = self.window.deviations(self.beginning)[0]
        return (loss > self.beginning[0]) & (learnt > self._highest_untrained)

    def _write_down(self, signals: Tensor, rejected: Tensor, overflow: Tensor) -> None:
        place = self.counts[:1] % LEDGER_ROWS
        step = torch.full((1,), self.judged, dtype=torch.float64, device=signals.device)  # a fill, not a copy
        numbers = torch.cat([step, signals, self.deviations, overflow.view(1)])
        self.ledger.index_copy_(0, place, torch.where(rejected, numbers, self.ledger.index_select(0, place)))
        in_all, in_a_row = self.counts.unbind()
        # An overflow neither lengthens a row of trouble nor ends it.
        in_a_row = torch.where(rejected, in_a_row + (~overflow).long(), 0)
        self.counts.copy_(torch.stack([in_all + rejected, in_a_row]))

    def read(self) -> Reading:
        """What happened since the last reading. The host waits here, for one small copy."""
        parts = (self.counts, self.window.count, self.beginning[:1], self.ledger.flatten(), self.window.values[0])
        everything = torch.cat([part.double() for part in parts]).cpu()
        rejected, in_a_row, count = (int(number) for number in everything[:3])
        beginning, ledger, losses = everything[3:].split([1, self.ledger.numel(), self.window.size])
        rows = ledger.view_as(self.ledger).tolist()
        new = range(max(self.told, rejected - LEDGER_ROWS), rejected)
        known = float(beginning) or math.inf  # nothing was accepted yet, or an older version has not kept it
        found = [
            Rejection(int(row[0]), *row[1:5], is_overflow=bool(row[5]), beginning=known)
            for row in (rows[n % LEDGER_ROWS] for n in new)
        ]
        self.told = rejected
        return Reading(rejected, in_a_row, found, in_order(losses[None], count)[0].tolist())

    def go_back(self, state: dict[str, Any], *, judged: int | None = None) -> None:
        """What is usual is again as it was in an earlier `state`; what was rejected since stays counted."""
        self.window.load_state_dict(state["window"])
        self.judged = self.judged if judged is None else judged
        self.counts[1:] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "told": self.told,
            "counts": self.counts,
            "ledger": self.ledger,
            "beginning": self.beginning,
            "window": self.window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.judged, self.told = state["judged"], state["told"]
        self.counts.copy_(state["counts"])
        self.ledger.copy_(state["ledger"])
        self.beginning.copy_(state.get("beginning", self.beginning))  # what an older version saved has none
        self.window.load_state_dict(state["window"])
