"""The judge: decides for each update whether to apply it, on the device and without a host sync."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trainbook.guard.window import GOES_ON, REFRESH, RobustWindow, in_order

SIGNALS = ("loss", "grad_norm")
# Of the level, what a standard deviation is at least. At the usual threshold of 10, a loss must rise by a tenth, and a
# norm to ten times itself: a smaller one is for clipping to bound.
LEAST_SPREADS = (0.01, math.log(10) / 10)
# The same for what is below: a loss must fall to half. Less is how learning looks where it stood still before.
LEAST_BELOW = (0.05, math.log(10) / 10)
# The same where losses are often exactly zero, as a share of the first ones: a loss must rise to that of an untrained
# model, and a norm to ten times that.
SPREADS_AT_ZERO = (0.1, 1.0)
DEVIATIONS = "standard deviations"
USUAL_THRESHOLD = 10.0
# Of the threshold, what is enough where loss and gradient norm are both that far above: 3.3 standard deviations where
# they vary independently, 4.4 where they rise and fall together. If they always did, and had exponential tails, one
# update in a thousand would be beyond that. How it is in this run is seen from its recent updates.
TOGETHER = (0.33, 0.44)
CONCORDANT = (0.2, 0.5)  # of RobustWindow.concordance, from independent to together
DOUBTFUL = 1 / 3  # of the threshold, from which on both together say nothing of what is usual, though they are accepted
UNTRAINED = 0.5  # of the threshold is enough for a loss above the one that the run began with
# Of a model that has learned little, a loss up to so many times the initial one, with a gradient norm within so many
# standard deviations of the usual, is a first prediction that was wrong.
LITTLE, FIRST_MISTAKES, USUAL_NORM = 0.75, 1.5, 2.0
BEGINNING = 4  # losses that the run began with
FIRST, MEDIAN, MEAN = "of the first update", "the median of the first updates", "the mean of the first updates"
LINGER = 0.4  # of its limit, from which on an update is suspicious if it is too high: several in a row add up
MOST_SUSPICION = 2.0
ALONE = 2  # rejections in a row, at most, that came and went
OFTEN = 0.125  # of recent updates, that came and went like that: so many are no minority of bad ones, but the data
RECENT = 256  # updates
NO_TAIL = 1.01 * GOES_ON
LEDGER_ROWS = 64  # rejections that are remembered between two readings
Cause = Literal["overflow", "not_finite", "outlier"]


@dataclass(frozen=True)
class Rejection:
    """One rejected update, and why."""

    step: int
    loss: float
    grad_norm: float
    loss_deviation: float  # in robust standard deviations of the recent accepted values
    grad_norm_deviation: float
    is_overflow: bool  # of fp16: the loss scale is still coming down
    beginning: float = math.inf  # the loss that the run began with
    initial: tuple[float, str] | None = None  # for people: the lowest figure of the first losses, and which it is
    threshold: float = 0.0  # standard deviations, from which on a value is rejected by itself

    @property
    def cause(self) -> Cause:
        """For programs; `reason` says the same in words."""
        if self.is_overflow:
            return "overflow"
        return "outlier" if math.isfinite(self.loss) and math.isfinite(self.grad_norm) else "not_finite"

    @property
    def reason(self) -> str:
        if self.is_overflow:
            return "fp16 overflow: the loss scale is halved"
        for name, value in (("loss", self.loss), ("gradient norm", self.grad_norm)):
            if not math.isfinite(value):
                return f"the {name} is {'NaN' if math.isnan(value) else 'infinite'}"
        if min(self.loss_deviation, self.grad_norm_deviation) > TOGETHER[0] * max(abs(self.loss_deviation), 1.0):
            both = f"the loss ({self.loss:.4g}) and the gradient norm ({self.grad_norm:.4g})"
            by = f"{self.loss_deviation:.1f} and {self.grad_norm_deviation:.1f} {DEVIATIONS}"
            return f"{both} are {by} above recent values"
        name, value, deviation = (
            ("loss", self.loss, self.loss_deviation)
            if abs(self.loss_deviation) >= self.grad_norm_deviation
            else ("gradient norm", self.grad_norm, self.grad_norm_deviation)
        )
        side = "above" if deviation > 0 else "below"
        found = f"the {name} ({value:.4g}) is {abs(deviation):.1f} {DEVIATIONS} {side} recent values"
        if name == "loss" and self.loss > self.beginning:
            initial, which = self.initial or (self.beginning, MEAN)
            found += f", and above the initial loss ({initial:.4g}, {which})"
        elif abs(deviation) < self.threshold:
            found += f"; the limit is {self.threshold:g}, but several such updates in a row add up"
        return found


class JudgeReading(NamedTuple):
    """What the judge has seen so far, copied to the host."""

    rejected: int  # updates, in all
    troubled_in_a_row: int  # rejected in a row up to now, overflows of fp16 left out
    rejections: list[Rejection]  # since the last reading; only the newest LEDGER_ROWS are remembered
    recent_losses: list[float]  # accepted ones, oldest first
    row: Sequence[Rejection] = ()  # those in a row up to now
    beginning: float = math.inf  # the loss that the run began with


class JudgeState(NamedTuple):
    """What a judge held before the last update that it rejected: all that this changes, and no copies."""

    judged: int
    counts: Tensor
    evidence: Tensor
    deviations: Tensor
    bands: Tensor
    tails: Tensor
    concordance: Tensor


class Judge:
    """Rejects values that are not finite, and values too far from the recent accepted ones: above them, and for the
    loss also below, since a drop to less than half at once means broken data as well. A smaller distance is enough if
    loss and gradient norm are both too high, if the loss is above the initial one, or if several updates in a row are
    suspiciously high. Several that are low do not add up: that is how learning looks."""

    def __init__(
        self,
        device: torch.device,
        *,
        enabled: bool = True,
        threshold: float | None = USUAL_THRESHOLD,
        window: int = 128,
        agree: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """With `threshold` None, only values that are not finite are rejected. `agree` makes the signals the same on
        all ranks; it is not needed if they are already means and norms over the global batch."""
        self.enabled, self.agree = enabled, agree
        self.window = RobustWindow(
            LEAST_SPREADS, window, device, least_below=LEAST_BELOW, spreads_at_zero=SPREADS_AT_ZERO
        )
        self.judged = 0  # updates so far, which is also the number of the step
        self.observes_until = 0  # up to this update, only what is not finite is rejected, and nothing counts as usual
        self.told = 0  # rejections that the host has been told of
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # rejected, troubled in a row
        self.deviations = torch.zeros(len(SIGNALS), device=device)  # of the last update judged
        self.beginning = torch.zeros(len(SIGNALS), device=device)  # the mean of the first signals accepted
        self.first_losses: list[float] = []  # that were accepted; to be told, and not to judge by
        self.ledger = torch.zeros(LEDGER_ROWS, 6, dtype=torch.float64, device=device)
        # Suspicion of the last updates; the excess of those in a row; the share that was rejected and came alone.
        self.evidence = torch.zeros(3, device=device)
        self._none = torch.zeros((), dtype=torch.bool, device=device)
        self._together_by: tuple[Tensor | None, Tensor | None] = (None, None)  # what it was computed from, and it
        self.overflow: Tensor | None = None  # whether the last update was excused; None: it could not be
        self._before: JudgeState | None = None
        self._threshold = math.inf if threshold is None else threshold

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
        # The tensors of these are replaced and never written to, so that they can be taken back.
        window = self.window
        self._before = JudgeState(
            self.judged, self.counts, self.evidence, self.deviations, window.bands, window.tails, window.concordance
        )
        self.judged += 1
        finite = signals.abs() < math.inf  # also false of NaN; `isfinite` is twice as many kernels
        distances = self.window.distances(torch.stack([signals, self.beginning]))
        self.deviations = distances.deviations[0]
        # Above the loss of the beginning, which is itself far from the usual by now: worse than an untrained model.
        above, far = signals[0] > self.beginning[0], UNTRAINED * self._threshold
        is_worse = above & (distances.above_level[1, 0] > far)
        high = self._excess(above & (distances.deviations[1, 0] > far))
        beyond = torch.where(is_worse, distances.beyond_tail[0, 0], window.zero)
        high = torch.maximum(high, beyond / self._threshold).clamp(min=0.0)
        high = torch.where(self._is_first_mistake(signals), high.clamp(max=LINGER), high)
        excess = torch.maximum(high, self.deviations[0] / -self._threshold)
        suspicion, furthest, often = self.evidence.unbind()
        # What is beyond the limit speaks for itself, and says nothing of its neighbours.
        added = torch.where(excess <= 1, high - LINGER, window.zero)
        suspicion = (suspicion + added).clamp(0.0, MOST_SUSPICION)
        accepted = is_finite = finite.all()
        observes = self.judged <= self.observes_until
        if not observes:
            accepted = is_finite & (excess <= 1) & ((suspicion <= 1) | (high <= LINGER))
        overflow = self._none if excused is None else excused & finite[0] & ~finite[1]
        self.overflow = None if excused is None else overflow
        share = accepted * (self.window.count < BEGINNING) / (self.window.count + 1)
        self.beginning += share * torch.where(accepted, signals - self.beginning, window.zero)
        came_alone = accepted & (self.counts[1] > 0) & (self.counts[1] <= ALONE)
        often = often + (came_alone.float() - often) / RECENT
        self.window.widen(torch.where(came_alone, furthest, window.zero), often > OFTEN)
        is_doubtful = self.deviations.amin() > DOUBTFUL * self._threshold
        self.window.add(
            signals,
            accepted if observes else accepted & ~is_doubtful,
            refresh=self.judged % REFRESH == 0,
            learn=not observes,
            ceiling=self.beginning,
        )
        # What is worse than an untrained model is no tail to be followed.
        excess = torch.where(is_worse, excess.clamp(min=NO_TAIL), excess)
        furthest = torch.maximum(furthest, torch.where(is_finite, excess, window.zero)).masked_fill(accepted, 0.0)
        self.evidence = torch.stack([suspicion, furthest, often])
        if not self.enabled:
            return torch.ones_like(accepted)
        self._write_down(signals, ~accepted, overflow)
        return accepted

    def _is_first_mistake(self, signals: Tensor) -> Tensor:
        """Before a model learns, it says the same of every sample, and the losses of batches are nearly equal. When it
        begins to tell samples apart, they scatter, and the band of the time before says nothing of that. Such a loss
        harms nobody while it is about the initial one and the gradient norm is as usual."""
        loss, beginning = signals[0], self.beginning[0]
        knows_little = self.window.levels[0, 0] > LITTLE * beginning
        return knows_little & (loss < FIRST_MISTAKES * beginning) & (self.deviations[1] < USUAL_NORM)

    def _excess(self, is_worse_than_untrained: Tensor) -> Tensor:
        """How close loss and gradient norm are to a rejection for being too high; 1 is the limit."""
        loss, norm = self.deviations.unbind()
        untrained = is_worse_than_untrained
        distances = torch.stack(
            # A small gradient harms nobody.
            [loss, norm, torch.minimum(loss, norm) / self._together(), torch.where(untrained, loss / UNTRAINED, loss)]
        )
        return distances.amax() / self._threshold

    def _together(self) -> Tensor:
        """Of the threshold, what is enough for loss and norm together: it changes only when the window does."""
        concordance, known = self._together_by
        if known is None or concordance is not self.window.concordance:
            (least, most), (low, high) = TOGETHER, CONCORDANT
            share = ((self.window.concordance - low) / (high - low)).clamp(0.0, 1.0)
            known = least + (most - least) * share
            self._together_by = (self.window.concordance, known)
        return known

    def _write_down(self, signals: Tensor, rejected: Tensor, overflow: Tensor) -> None:
        place = self.counts[:1] % LEDGER_ROWS
        step = torch.full((1,), self.judged, dtype=torch.float64, device=signals.device)  # a fill, not a copy
        numbers = torch.cat([step, signals, self.deviations, overflow.view(1)])
        self.ledger.index_copy_(0, place, torch.where(rejected, numbers, self.ledger.index_select(0, place)))
        in_all, in_a_row = self.counts.unbind()
        # An overflow neither lengthens a row of trouble nor ends it.
        in_a_row = (in_a_row + ~overflow) * rejected
        self.counts = torch.stack([in_all + rejected, in_a_row])

    def take_back(self) -> None:
        """Forget the last update, which was rejected: it is computed and judged again."""
        assert self._before is not None
        before = self._before
        self.judged, self.counts, self.evidence, self.deviations = before[:4]
        self.window.bands, self.window.tails, self.window.concordance = before[4:]
        self.ledger.index_fill_(0, self.counts[:1] % LEDGER_ROWS, 0.0)

    def read(self) -> JudgeReading:
        """What happened since the last reading. The host waits here for one small copy."""
        parts = (self.counts, self.window.count, self.beginning[:1], self.ledger.flatten(), self.window.values[0])
        everything = torch.cat([part.double() for part in parts]).cpu()
        rejected, in_a_row, count = (int(number) for number in everything[:3])
        beginning, ledger, losses = everything[3:].split([1, self.ledger.numel(), self.window.size])
        rows = ledger.view_as(self.ledger).tolist()
        known = float(beginning) or math.inf  # nothing was accepted yet, or an older version has not kept it
        if len(self.first_losses) < BEGINNING and count <= self.window.size:
            self.first_losses = in_order(losses[None], count)[0].tolist()[:BEGINNING]
        told = {"beginning": known, "initial": _initial(self.first_losses, known), "threshold": self._threshold}
        remembered = [
            Rejection(int(row[0]), *row[1:5], is_overflow=bool(row[5]), **told)
            for row in (rows[n % LEDGER_ROWS] for n in range(max(0, rejected - LEDGER_ROWS), rejected))
        ]
        new = remembered[max(0, len(remembered) - (rejected - self.told)) :]
        in_row = [each for each in remembered if not each.is_overflow][-in_a_row:] if in_a_row else []
        self.told = rejected
        recent = in_order(losses[None], count)[0].tolist()
        return JudgeReading(rejected, in_a_row, new, recent, in_row, known)

    def observe(self, updates: int, row: Sequence[Rejection] = ()) -> None:
        """What is not finite is rejected, and nothing else, for so many updates. `row`: what was rejected before."""
        self.window.relax(fully=is_repeated(row))
        self.observes_until = self.judged + updates
        self.counts[1:] = 0
        self.evidence[:2] = 0

    def adopt(self, row: Sequence[Rejection], *, rise: float = 0.0) -> None:
        """What was rejected in a row is usual from here on: the level has changed for good. `rise`: so has the loss of
        the beginning, by this."""
        self.beginning[0] += rise
        self.first_losses = [loss + rise for loss in self.first_losses]
        if not row:
            return
        means = [
            statistics.fmean(values) for values in zip(*((each.loss, each.grad_norm) for each in row), strict=True)
        ]
        self.window.adopt(torch.tensor(means, device=self.deviations.device))
        self.window.relax(fully=is_repeated(row))
        self.counts[1:] = 0
        self.evidence[:2] = 0

    def go_back(self, state: dict[str, Any], *, judged: int | None = None) -> None:
        """Restore the window of an earlier `state`; rejections since then stay counted."""
        self._load_window(state)
        self.judged = self.judged if judged is None else judged
        self.observes_until = 0
        self.counts[1:] = 0
        self.evidence[:2] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "observes_until": self.observes_until,
            "told": self.told,
            "counts": self.counts,
            "ledger": self.ledger,
            "beginning": self.beginning,
            "first_losses": list(self.first_losses),
            "evidence": self.evidence,
            "window": self.window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.judged, self.told = state["judged"], state["told"]
        self.observes_until = state.get("observes_until", 0)
        self.counts.copy_(state["counts"])
        self.ledger.copy_(state["ledger"])
        self.beginning.copy_(state.get("beginning", self.beginning))  # what an older version saved has none
        self.first_losses = list(state.get("first_losses", ()))
        saved = state.get("evidence", self.evidence[:0])  # an older version knew less
        self.evidence[: len(saved)] = saved.to(self.evidence)
        self._load_window(state)

    def _load_window(self, state: dict[str, Any]) -> None:
        self.window.load_state_dict(state["window"])
        self._together_by = (None, None)  # its tensors are the same ones, with other values


def _initial(first_losses: Sequence[float], mean: float) -> tuple[float, str]:
    """The figure of the first losses that diverging ones among them raise least, and its name."""
    if not first_losses:
        return mean, MEAN
    return min((first_losses[0], FIRST), (statistics.median(first_losses), MEDIAN), (mean, MEAN))


def is_repeated(row: Sequence[Rejection]) -> bool:
    """The same batch over and over, as where all data is in each of them: one loss, to the last bit."""
    return len(row) > 1 and len({each.loss for each in row}) == 1
