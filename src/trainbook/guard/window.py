"""How far a value lies from what the recent ones lead to expect: robustly, on the device, without asking the host.

What is judged is the surprise: the distance of a value from a short average of the accepted ones before it. A loss that
falls quickly is then as predictable as one that stands still. The band in which surprises are usual has a median and a
spread, of accepted values only: an outlier that entered would hide the next one. The spread is the larger of what the
middle says (median absolute deviation) and what the edge says (the 97.5th percentile, on the side in question), both
scaled to be the standard deviation of a Gaussian: noise with heavy tails earns itself a wider band. And all is done
twice, with the values and with their logarithms, and the milder answer counts: losses and norms are positive and
skewed, and while they fall towards zero only ratios mean anything.

A logarithm forgives much: where losses differ by factors from batch to batch, ten deviations of it are no bound. What
is worse than an untrained model is held against the tail of the values themselves (`beyond_tail`): from how the largest
eighth of them thin out, it is extrapolated which value one in a thousand would exceed (Hill 1975,
https://doi.org/10.1214/aos/1176343247).

Three things keep a healthy run from being taken for a sick one. A run whose losses scatter widely (a batch of one
sample, a rare class, a loss around zero) may have tails that no window of this size knows: values that came alone,
little beyond the limit or many of them, widen the band to include their like (`widen`). And a loss may change its level
for good, as data changes: the bands of the last levels are kept (`adopt`), and what was usual at any of them is usual
still.

A loss that is exactly zero on many batches (a margin that most samples keep) has no spread to judge the others by: its
scale is that of the values which training began with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAD_TO_SIGMA = 1.4826
EDGE = 0.975
FEW = 8  # values: a spread that is known from so many is taken twice as wide
BEYOND_EDGE = 3  # values at least that lie further out than the edge: a few odd ones must not say what is usual
TINY = 1e-12
AVERAGED = 4  # values that the level is about the average of: few, so that a sudden good turn is soon the usual
NEWEST = 16  # values that say what the spread is now: a model that begins to learn leaves its first one behind
WIDER = 2.0  # times as wide as all values are the newest ones, beyond chance
REFRESH = 8  # values between two looks at the window: sorting it each time would cost more than it tells
MOST_PULL = 1.0  # standard deviations by which one value can pull the level: a few bad ones must not carry it off
LEVELS = (
    5  # the present one, three that the run has left, and a slow one that a stretch of bad values cannot drag along
)
SLOW = 64  # values that the slow level is about the average of
WIDE = 0.25  # of the level, what a standard deviation is where single samples show: an average of many is narrower
GOES_ON = 1.6  # times the limit, within which a tail is followed
MOST_WIDENED = 3.0  # times the limit: what lies beyond is no tail of anything
MOST_RELAXED = 16.0  # times as wide as usual
ROOM = 1.5  # times a value that came alone: the next one like it may be a little further away
TOP = 8  # the largest value of so many belongs to the tail
TAIL = 1e-3  # of healthy values lie beyond what counts as ten standard deviations of the tail
TAIL_SIGMAS = 10.0
OFTEN_ZERO = 0.125  # of the values, that are exactly zero
FORGET = 0.9995  # of what was widened, kept at each accepted value


class Distances(NamedTuple):
    """How far signals lie from their usual level, in robust standard deviations, positive above it; one row of signals
    for each row asked about. 0 while there are too few values to tell; not finite where the signal is not."""

    deviations: Tensor  # from the nearest level, the milder of the two answers
    beyond_tail: Tensor  # above the usual alone, of values and of their tail
    above_level: Tensor  # from the present level, of values alone


class RobustWindow:
    """The last `size` accepted values of several signals, and the bands in which the next ones are expected."""

    def __init__(
        self,
        least_spreads: Sequence[float],
        size: int,
        device: torch.device,
        *,
        least_below: Sequence[float] | None = None,
        spreads_at_zero: Sequence[float] | None = None,
        enough: int = 32,
    ) -> None:
        """`least_spreads`: of each signal, as a share of its level. A curve that hardly moves must not make every
        breath an alarm. `least_below`: the same for values below the usual, where that is another share.
        `spreads_at_zero`: the same where values are often exactly zero, as a share of the values of the beginning."""
        num_signals = len(least_spreads)
        rows = 2 * num_signals  # of the values as they are, then of their logarithms
        # Infinite where nothing was written yet: sorting puts that behind all values.
        self.values = torch.full((num_signals, size), math.inf, device=device)
        self.surprises = torch.full((rows, size), math.inf, device=device)
        self.levels = torch.zeros(LEVELS, rows, device=device)  # the present one first
        self.count = torch.zeros(1, dtype=torch.int64, device=device)  # of accepted values so far
        # Median, and what one standard deviation is above and below it; infinite: nothing is far away yet; 0: there is
        # no such level, and everything is.
        self.bands = torch.zeros(LEVELS, rows, 3, device=device)
        self.bands[0, :, 1:] = math.inf
        self.tails = torch.zeros(LEVELS, num_signals, device=device)  # what one standard deviation of the tail is
        self.tails[0] = math.inf
        # Of the first two signals: how often both rose or both fell from one value to the next, less how often they
        # went opposite ways, as a share. They are taken to move together until enough has been seen.
        self.concordance = torch.ones((), device=device)
        self.width = torch.ones(num_signals, device=device)  # of the bands, in standard deviations
        below = least_spreads if least_below is None else least_below
        self.least_spreads = torch.tensor([[*least_spreads] * 2, [*below] * 2], device=device)  # above, below
        self.spreads_at_zero = torch.tensor([*(spreads_at_zero or [0.0] * num_signals)], device=device)
        self.num_signals, self.size, self.enough = num_signals, size, min(enough, size)
        self.zero = torch.zeros((), device=device)  # kept: to choose between a tensor and a number fills a tensor first
        self._ages = torch.arange(min(NEWEST, size), device=device)
        self._nearest = torch.zeros(1, rows, dtype=torch.int64, device=device)

    def distances(self, now: Tensor) -> Distances:
        """Of rows of signals. `add` is to be given the first of them."""
        distance = _with_logarithms(now)[:, None] - self.levels - self.bands[..., 0]
        views = distance / torch.where(distance > 0, self.bands[..., 1], self.bands[..., 2])
        either = views.view(len(now), 2 * LEVELS, self.num_signals)
        sizes = either.abs()
        mildest = sizes.nan_to_num(math.inf, posinf=math.inf).argmin(1, keepdim=True)
        self._nearest = (mildest[0] // 2).repeat(1, 2)
        plain, logarithmic = views.view(len(now), LEVELS, 2, self.num_signals).unbind(2)
        above = now[:, None] - self.levels[:, : self.num_signals]
        beyond = torch.minimum(plain, torch.maximum(logarithmic, above / self.tails))
        beyond = torch.where(above > 0, beyond.nan_to_num(math.inf, posinf=math.inf), self.zero).amin(1)
        return Distances(either.gather(1, mildest)[:, 0] / self.width, beyond / self.width, plain[:, 0])

    def add(
        self, now: Tensor, accepted: Tensor, *, refresh: bool, learn: bool = True, ceiling: Tensor | None = None
    ) -> None:
        """Of what `distances` was asked last: it knows which level is the nearest. Without `learn`, the value is
        written down, but what is usual stays as it is. `ceiling`: the values that training began with; those above
        say nothing of the tail."""
        place, has_begun, following = self.count % self.size, self.count > 0, self.count + 1
        level, band = self.levels.gather(0, self._nearest)[0], self.bands[0]
        both = _with_logarithms(now)
        surprise = torch.where(has_begun, both - level, self.zero)
        _put(self.values, place, now, accepted)
        if not learn:
            self.count += accepted
            return
        _put(self.surprises, place, surprise, accepted)
        lowest, highest = band[:, 0].sub(band[:, 2], alpha=MOST_PULL), band[:, 0].add(band[:, 1], alpha=MOST_PULL)
        pull = surprise.clamp(lowest, highest)
        nearer = torch.where(has_begun, pull / following.clamp(max=AVERAGED), both)
        self.levels.scatter_(0, self._nearest, torch.where(accepted, level + nearer, level)[None])
        slow = self.levels[-1]
        torch.where(accepted, slow + (both - slow) / following.clamp(max=SLOW), slow, out=slow)
        torch.where(accepted, 1 + (self.width - 1) * FORGET, self.width, out=self.width)
        self.count += accepted
        if refresh:
            self.refresh(ceiling)

    def widen(self, factor: Tensor, are_many: Tensor) -> None:
        """Where values scatter widely: the band includes values that were so many times too far away, and forgets it
        slowly. A tail that goes on a little beyond the limit is followed up to a bound; what lies further out, with
        nothing in between, must be many (`are_many`): a few bad values must not say what is usual."""
        spread, level = self.bands[0, : self.num_signals, 1], self.levels[0, : self.num_signals].abs()
        # The first surprise is none, and a band that is not known yet is infinite.
        scatters = (spread > WIDE * level) & (spread < math.inf) & (factor > 1)
        near = torch.where(factor <= GOES_ON, (self.width * factor).clamp(max=GOES_ON), self.width)
        far = torch.where(are_many & (factor <= MOST_WIDENED), self.width * ROOM * factor, self.width)
        torch.where(scatters, torch.maximum(self.width, torch.maximum(near, far)), self.width, out=self.width)

    def relax(self, *, fully: bool = False) -> None:
        """After an alarm that was none: this run's values jump by nature. Forgotten as slowly as what was widened.
        `fully`: they have no noise, and so no spread to judge by."""
        self.width.copy_((self.width * (MOST_RELAXED if fully else 2)).clamp(max=MOST_RELAXED))

    def adopt(self, level: Tensor) -> None:
        """Values around `level` are usual from here on, and so is what was usual before."""
        for kept in (self.levels, self.bands, self.tails):
            kept[:-1] = kept[:-1].roll(1, dims=0)
        old, new = self.levels[1], _with_logarithms(level)
        ratio = (new / old).abs().clamp(min=1.0).nan_to_num(1.0, posinf=1.0)
        ratio[self.num_signals :] = 1.0  # of logarithms, a spread is a ratio already
        self.bands[0] = self.bands[1]
        self.bands[0, :, 1:] *= ratio[:, None]
        self.tails[0] = self.tails[1] * ratio[: self.num_signals]
        self.levels[0] = new

    def refresh(self, ceiling: Tensor | None = None) -> None:
        known = self.surprises[:1].isfinite().sum(-1)
        edge, edge_in_sigmas = _edge(known)
        median, high, low = _places(self.surprises.sort(-1).values, known, edge)
        deviation = _places((self.surprises - median).abs().sort(-1).values, known, edge)[0]
        newest = self._newest_deviation()
        deviation = torch.where(newest > WIDER * deviation, newest, deviation)
        level = self.levels[0].abs()
        level = torch.cat([level[: self.num_signals], torch.ones_like(level[self.num_signals :])])
        least = (level * self.least_spreads)[..., None] + TINY
        if ceiling is not None:
            is_often_zero = (self.values == 0).sum(-1) > OFTEN_ZERO * known
            of_zero = torch.where(is_often_zero, ceiling * self.spreads_at_zero, self.zero).repeat(2)
            least = torch.maximum(least, of_zero[:, None])
        least, least_below = torch.maximum(deviation * MAD_TO_SIGMA, least)
        above = torch.maximum(least, (high - median) / edge_in_sigmas)
        below = torch.maximum(least_below, (median - low) / edge_in_sigmas)
        unsure = 1 + FEW / known
        fresh = torch.cat([median, above * unsure, below * unsure], dim=1)
        # A loss that was not positive has no logarithm: a band without width never gives the milder answer.
        has_logarithm = (self.values.amin(-1) > TINY).repeat(2)
        has_logarithm[: self.num_signals] = True
        fresh[:, 1:] *= has_logarithm[:, None]
        bands = self.bands.clone()  # the old ones stay, should the value be taken back
        bands[0] = torch.where(known >= self.enough, fresh, bands[0])
        bands[-1] = torch.where(self.count >= SLOW, bands[0], bands[-1])
        self.bands = bands
        own = self.surprises[: self.num_signals]
        if ceiling is not None:
            own = own.masked_fill((self.values > ceiling[:, None]) & self.values.isfinite(), -math.inf)
        tail = _tail(own.sort(-1).values, known, least[: self.num_signals]) * unsure / TAIL_SIGMAS
        tails = self.tails.clone()
        tails[0] = torch.where(known >= self.enough, tail, tails[0])
        tails[-1] = torch.where(self.count >= SLOW, tails[0], tails[-1])
        self.tails = tails
        changes = self.values.diff(dim=-1)  # one of them from the newest to the oldest, which does not matter
        sides = torch.where(changes.isfinite(), changes, self.zero).sign()
        same = (sides[0] * sides[min(1, self.num_signals - 1)]).sum() / (known[0] - 1)
        self.concordance = torch.where(known[0] >= self.enough, same, self.concordance)

    def _newest_deviation(self) -> Tensor:
        """The median absolute deviation of the newest surprises, as a column: the middle half of them, so that a few
        bad values say nothing. 0 while there are too few."""
        newest = self.surprises.index_select(1, (self.count - 1 - self._ages) % self.size)
        middle = newest.median(-1, keepdim=True).values
        deviation = (newest - middle).abs().median(-1, keepdim=True).values
        return torch.where(self.count >= len(self._ages), deviation, self.zero)

    def state_dict(self) -> dict[str, Tensor]:
        names = ("values", "surprises", "levels", "count", "bands", "tails", "width", "concordance")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count.copy_(state["count"])
        for rows, saved in ((self.values, state["values"]), (self.surprises, state["surprises"])):
            newest = in_order(saved, int(state["count"]))[:, -self.size :]
            if saved.shape == rows.shape:
                rows.copy_(saved)
                continue
            # The window has another size now: as many of the newest as fit.
            rows.fill_(math.inf)
            rows[:, : newest.shape[1]] = newest.to(rows)
            self.count.fill_(newest.shape[1])
        if "bands" in state:
            for name in ("levels", "bands", "width"):
                getattr(self, name).copy_(state[name])
            for name in ("tails", "concordance"):  # not known to an older version: so until the next look
                getattr(self, name).copy_(state.get(name, getattr(self, name)))
        else:  # of a version that knew one level
            self.levels[0], self.bands[0] = state["level"].to(self.levels), state["band"].to(self.bands)


def in_order(values: Tensor, count: int) -> Tensor:
    """The values of a window, oldest first."""
    size = values.shape[1]
    return values[:, :count] if count <= size else values.roll(-(count % size), dims=1)


def _put(rows: Tensor, place: Tensor, column: Tensor, accepted: Tensor) -> None:
    """Selected, never multiplied: what is not accepted may be NaN."""
    rows.index_copy_(1, place, torch.where(accepted, column[:, None], rows.index_select(1, place)))


def _with_logarithms(values: Tensor) -> Tensor:
    return torch.cat([values, values.clamp(min=TINY).log()], dim=-1)


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


def _tail(rows: Tensor, known: Tensor, least: Tensor) -> Tensor:
    """Of the first `known` numbers of sorted rows: the one that a share of TAIL would exceed, extrapolated from the
    largest ones as if they followed a power law; where they thin out faster, it is further out than it need be."""
    count = (known // TOP).clamp(min=FEW)
    begins = rows.index_select(1, (known - count - 1).clamp(min=0))
    begins = torch.maximum(begins, least / 2)
    place = torch.arange(rows.shape[1], device=rows.device)
    is_of_tail = (place < known) & (place >= known - count)
    ratios = torch.where(is_of_tail, (rows / begins).clamp(min=1.0).log(), 0.0)
    return (begins * (count / (known * TAIL)) ** (ratios.sum(-1, keepdim=True) / count))[:, 0]
