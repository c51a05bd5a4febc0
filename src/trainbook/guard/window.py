"""How far a value lies from what the recent ones lead to expect: robustly, on the device, without asking the host.

What is judged is the surprise: the distance of a value from a short average of the accepted ones before it. A loss that
falls quickly is then as predictable as one that stands still. The band in which surprises are usual has a median and a
spread, of accepted values only: an outlier that entered would hide the next one. The spread is the larger of what the
middle says (median absolute deviation) and what the edge says (the 97.5th percentile, on the side in question), both
scaled to be the standard deviation of a Gaussian: noise with heavy tails earns itself a wider band. And all is done
twice, with the values and with their logarithms, and the milder answer counts: losses and norms are positive and
skewed, and while they fall towards zero only ratios mean anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MAD_TO_SIGMA = 1.4826
EDGE = 0.975
BEYOND_EDGE = 3  # values at least that lie further out than the edge: a few odd ones must not say what is usual
TINY = 1e-12
AVERAGED = 4  # values that the level is about the average of: few, so that a sudden good turn is soon the usual
REFRESH = 8  # values between two looks at the window: sorting it each time would cost more than it tells


class RobustWindow:
    """The last `size` accepted values of several signals, and the band in which the next ones are expected."""

    def __init__(self, least_spreads: Sequence[float], size: int, device: torch.device, *, enough: int = 32) -> None:
        """`least_spreads`: of each signal, as a share of its level. A curve that hardly moves must not make every
        breath an alarm."""
        num_signals = len(least_spreads)
        rows = 2 * num_signals  # of the values as they are, then of their logarithms
        # Infinite where nothing was written yet: sorting puts that behind all values.
        self.values = torch.full((num_signals, size), math.inf, device=device)
        self.surprises = torch.full((rows, size), math.inf, device=device)
        self.level = torch.zeros(rows, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)  # of accepted values so far
        # Median, and what one standard deviation is above and below it; infinite: nothing is far away yet.
        self.band = torch.tensor([0.0, math.inf, math.inf], device=device).repeat(rows, 1)
        self.least_spreads = torch.tensor([*least_spreads, *least_spreads], device=device)
        self.num_signals, self.size, self.enough = num_signals, size, min(enough, size)

    def deviations(self, now: Tensor) -> Tensor:
        """Of each signal, in robust standard deviations, positive above the usual; 0 while there are too few values to
        tell. What is not finite gives what is not finite."""
        distance = _with_logarithms(now) - self.level - self.band[:, 0]
        plain, logarithmic = (distance / torch.where(distance > 0, self.band[:, 1], self.band[:, 2])).chunk(2)
        return torch.where(logarithmic.abs() < plain.abs(), logarithmic, plain)

    def add(self, now: Tensor, accepted: Tensor, *, refresh: bool) -> None:
        place = self.count % self.size
        surprise = torch.where(self.count > 0, _with_logarithms(now) - self.level, 0.0)
        _put(self.values, place, now, accepted)
        _put(self.surprises, place, surprise, accepted)
        nearer = torch.where(self.count > 0, surprise / (self.count + 1).clamp(max=AVERAGED), _with_logarithms(now))
        self.level.copy_(torch.where(accepted, self.level + nearer, self.level))
        self.count += accepted
        if refresh:
            self.refresh()

    def refresh(self) -> None:
        known = self.count.clamp(max=self.size)
        edge, edge_in_sigmas = _edge(known)
        median, high, low = _places(self.surprises.sort(-1).values, known, edge)
        deviation = _places((self.surprises - median).abs().sort(-1).values, known, edge)[0]
        level = torch.cat([self.level[: self.num_signals].abs(), torch.ones_like(self.level[self.num_signals :])])
        least = torch.maximum(deviation * MAD_TO_SIGMA, (level * self.least_spreads)[:, None] + TINY)
        above, below = (torch.maximum(least, far / edge_in_sigmas) for far in (high - median, median - low))
        fresh = torch.cat([median, above, below], dim=1)
        # A loss that was not positive has no logarithm: a band without width never gives the milder answer.
        has_logarithm = (self.values.amin(-1) > TINY).repeat(2)
        has_logarithm[: self.num_signals] = True
        fresh[:, 1:] *= has_logarithm[:, None]
        self.band.copy_(torch.where(known >= self.enough, fresh, self.band))

    def state_dict(self) -> dict[str, Tensor]:
        names = ("values", "surprises", "level", "count", "band")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in self.state_dict().items():
            saved = state[name]
            if saved.shape == value.shape:
                value.copy_(saved)
                continue
            # The window has another size now: as many of the newest as fit.
            newest = in_order(saved, int(state["count"]))[:, -self.size :]
            value.fill_(math.inf)
            value[:, : newest.shape[1]] = newest.to(value)
        if state["values"].shape != self.values.shape:
            self.count.fill_(int(self.values[0].isfinite().sum()))


def in_order(values: Tensor, count: int) -> Tensor:
    """The values of a window, oldest first."""
    size = values.shape[1]
    return values[:, :count] if count <= size else values.roll(-(count % size), dims=1)


def _put(rows: Tensor, place: Tensor, column: Tensor, accepted: Tensor) -> None:
    """Selected, never multiplied: what is not accepted may be NaN."""
    rows.index_copy_(1, place, torch.where(accepted, column[:, None], rows.index_select(1, place)))


def _with_logarithms(values: Tensor) -> Tensor:
    return torch.cat([values, values.clamp(min=TINY).log()])


def _edge(known: Tensor) -> tuple[Tensor, Tensor]:
    """Which of `known` sorted numbers is the edge, and where a Gaussian has it, in standard deviations (Blom)."""
    last = (known - 1).clamp(min=0)
    edge = torch.minimum((last * EDGE).ceil().long(), last - BEYOND_EDGE).clamp(min=0)
    return edge, torch.special.ndtri((edge + 0.625) / (known + 0.25))


def _places(rows: Tensor, known: Tensor, edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Median, upper and lower edge of the first `known` numbers of sorted rows, as columns."""
    last = (known - 1).clamp(min=0)
    places = torch.cat([last // 2, (last + 1) // 2, edge, last - edge])
    lower, upper, high, low = rows.index_select(1, places).split(1, dim=1)
    return (lower + upper) / 2, high, low
