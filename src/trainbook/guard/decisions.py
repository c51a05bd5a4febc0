"""What the ladder may do, what it goes by, and the trouble that it decides about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainbook.guard.judge import Judge, Rejection

LEAD = 8  # updates before the first rejection that may have caused it: spikes follow their cause by a few


@dataclass(frozen=True)
class Policy:
    max_consecutive_skips: int = 10
    max_rollbacks: int = 6  # from one place
    drift_share: float | None = 0.25  # of what was learned, given back: a divergence; None: do not look
    rate_factor: float | None = 0.5  # the remedy; None: not allowed
    same_place: int = 128  # trouble so many steps after the last one is the same trouble
    patience: int = 2  # rejections in a row, at losses of a model that knows something, until they are taken for usual
    # Of the first loss: a run that has learned less gives little back. Its loss must rise by all of the first one, as
    # there are losses that rise by design: those of two networks that play against each other.
    much: float = 0.3
    probation: int = 32  # updates that a model which is worse has to recover by itself
    suspicious: int = 3  # rejections in a row, at whatever loss, until it is asked whether the model is worse
    # Where batches are drawn at random, no healthy stretch of them is so different: updates that a rejected stretch
    # must be long to be taken for usual. None: batches may come in any order, and one update in a thousand is spent.
    longest: int | None = None
    # Data comes in a fixed order: a model forgets one part while it learns another, and its loss rises by that.
    in_order: bool = False
    has_fp8: bool = False  # some products are in fp8, and may be widened: a remedy to try before a lower rate


@dataclass(frozen=True)
class Trouble:
    """What the ladder noticed, and the step at which it began."""

    kind: str  # "rejections", "drift", "stuck", "data", or "start": not finite before any update
    first_step: int
    last_step: int
    reason: str
    is_of_the_model: bool = True  # its loss went up; False: what is not finite may come from the data alone
    usual: float = math.nan  # the loss from before it
    now: float = math.nan  # and since
    count: int = 0  # updates that were rejected in a row
    healthy_at: int | None = None  # a step whose state was found to be good, where a later one was not

    @property
    def healthy_before(self) -> int:
        """The last step whose state is assumed to be good."""
        if self.healthy_at is not None:
            return self.healthy_at
        return max(0, self.first_step - 1 - LEAD) if self.kind == "rejections" else self.first_step


@dataclass(frozen=True)
class Adopt:
    """What was rejected in a row belongs to the data: it is usual from here on."""

    row: Sequence[Rejection]
    reason: str
    rise: float = 0.0  # of the loss function itself, which another part was added to: the initial loss rises with it
    kind = "adapt"  # of the event

    def tell(self, judge: Judge) -> None:
        judge.adopt(self.row, rise=self.rise)


@dataclass(frozen=True)
class Observe:
    """The model is worse, but may recover by itself: for so many updates only what is not finite is rejected."""

    trouble: Trouble
    updates: int
    reason: str
    row: Sequence[Rejection] = ()  # what was rejected before
    kind = "observe"  # of the event

    def tell(self, judge: Judge) -> None:
        judge.observe(self.updates, self.row)


@dataclass(frozen=True)
class Suspicion:
    """To be tested: is the model worse than before? Then `Ladder.confirm` or `Ladder.dismiss` it."""

    trouble: Trouble
    row: Sequence[Rejection] = ()  # what was rejected; a slow rise has none


@dataclass(frozen=True)
class RollBack:
    trouble: Trouble
    attempt: int  # 1: the first from this place
    rate_factor: float | None  # put on the rate from here on; None: the rate stays
    widens_products: bool = False  # fp8 is given up from here on


@dataclass(frozen=True)
class Stop:
    trouble: Trouble
    attempts: int
    verdict: str
