"""The ladder: what to do when keeping single updates out is not enough.

    1. an update is kept out; nothing else happens
    2. so many in a row: back to before the trouble, without its data
    3. again from the same place, or a loss that gives back what was learned, for which no data is to blame: back, and
       on with a lower rate that is warmed up anew, if that is allowed
    4. still, or not allowed, or nothing was ever learned, or nothing more at the lower rate: stop, and say why

It decides from what it is told at readings, and from nothing else: a run that is resumed takes the same steps again.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from trainbook.guard.judge import Reading, Rejection
from trainbook.guard.window import MAD_TO_SIGMA

LEAD = 8  # updates before the first rejection that may have caused it: spikes follow their cause by a few
SMOOTHED = 32  # accepted losses that a smoothed one is the median of
LEAST_RISE = 0.05  # of the first loss: less is no divergence
LEAST_LEARNED = 0.01  # of the first loss; a model that was trained before learns little more
NOISE = 3.0  # standard deviations of the loss that a smoothed loss must rise by
LEAST_GAIN = 0.1  # of what was learned: what a lower rate must add to it early in training, where that is easy


@dataclass(frozen=True)
class Policy:
    max_consecutive_skips: int = 10
    max_rollbacks: int = 6  # from one place
    drift_share: float | None = 0.25  # of what was learned, given back: a divergence; None: do not look
    rate_factor: float | None = 0.5  # the remedy; None: not allowed
    same_place: int = 128  # trouble so many steps after the last one is the same trouble


@dataclass(frozen=True)
class Trouble:
    """What was noticed, and where it began."""

    kind: str  # "rejections", "drift", or "stuck"
    first_step: int
    last_step: int
    reason: str
    is_of_the_model: bool = True  # its loss went up; False: what is not finite may come from the data alone

    @property
    def healthy_before(self) -> int:
        """The last step whose state is taken to be good."""
        return max(0, self.first_step - 1 - LEAD) if self.kind == "rejections" else self.first_step


@dataclass(frozen=True)
class RollBack:
    trouble: Trouble
    attempt: int  # 1: the first from this place
    rate_factor: float | None  # put on the rate from here on; None: the rate stays


@dataclass(frozen=True)
class Stop:
    trouble: Trouble
    attempts: int
    verdict: str


@dataclass
class Ladder:
    policy: Policy
    first_loss: float | None = None
    best_loss: float | None = None  # smoothed
    best_step: int = 0
    lowest_loss: float | None = None  # smoothed, of all that was ever reached
    rising: int = 0  # readings in a row at which the smoothed loss was far above its best
    attempts: int = 0  # rollbacks from the place of the last trouble
    rollbacks: int = 0  # in all
    last_trouble: int | None = None  # the step at which it was noticed
    last_target: int | None = None  # the step that was gone back to
    remedies: list[float] = field(default_factory=list)
    to_reach: float | None = None  # the smoothed loss that the remedy must lead to
    to_reach_by: int = 0  # the step
    must_gain: bool = False  # and not only be back where it was

    def decide(self, step: int, reading: Reading) -> RollBack | Stop | None:
        trouble = self._rejections(step, reading) or self._drift(step, reading)
        if trouble is None:
            return None
        if trouble.kind == "stuck":
            return Stop(trouble, self.attempts, self._verdict(trouble, self.attempts))
        is_same = self.last_trouble is not None and (
            step <= self.last_trouble + self.policy.same_place
            or (self.last_target is not None and trouble.healthy_before <= self.last_target)
            or (self.to_reach is not None and step <= self.to_reach_by)
        )
        self.attempts = self.attempts + 1 if is_same else 1
        self.last_trouble = max(step, self.last_trouble or 0) if is_same else step
        # Without other data, the same steps would lead to the same place.
        needs_remedy = self.attempts > 1 or trouble.kind == "drift"
        remedy = self.policy.rate_factor if needs_remedy else None
        is_over = self.attempts > self.policy.max_rollbacks or (needs_remedy and remedy is None)
        if is_over or (needs_remedy and not self.has_learned):
            return Stop(trouble, self.attempts - 1, self._verdict(trouble, self.attempts - 1))
        self.rollbacks += 1
        if remedy is not None:
            self.remedies.append(remedy)
            self._ask_for_gain(trouble)
        return RollBack(trouble, self.attempts, remedy)

    def went_back(self, target: int) -> None:
        """To the state of this step: what was seen since is forgotten, what was tried is not."""
        self.last_target = target
        self.rising = 0
        self.to_reach_by = target + self.policy.same_place + SMOOTHED
        if self.best_step > target:  # it belongs to a past that was given up
            self.best_loss, self.best_step = self.first_loss, target

    def _rejections(self, step: int, reading: Reading) -> Trouble | None:
        count = reading.troubled_in_a_row  # up to now: a row that has ended was a bad stretch of data, and is over
        if count < self.policy.max_consecutive_skips:
            return None
        row = [rejection for rejection in reading.rejections if not rejection.is_overflow][-count:]
        first = row[0].step if len(row) == count else step - count + 1
        is_finite = all(math.isfinite(rejection.loss) for rejection in row)
        return Trouble("rejections", first, step, f"{count} updates in a row were rejected{_last(row)}", is_finite)

    def _drift(self, step: int, reading: Reading) -> Trouble | None:
        """A loss that rises slowly takes its window along: no single value is far from the ones before it."""
        losses = reading.recent_losses
        if self.first_loss is None and losses:
            self.first_loss = self.best_loss = losses[0]
        if self.policy.drift_share is None or self.first_loss is None or len(losses) < SMOOTHED:
            return None
        newest = losses[-SMOOTHED:]
        smoothed = statistics.median(newest)
        if self.best_loss is None or smoothed < self.best_loss:
            self.best_loss, self.best_step, self.rising = smoothed, step, 0
            self.lowest_loss = smoothed if self.lowest_loss is None else min(smoothed, self.lowest_loss)
        noise = MAD_TO_SIGMA * statistics.median(abs(loss - smoothed) for loss in newest)
        if self.to_reach is not None and (smoothed <= self.to_reach or step >= self.to_reach_by):
            wanted, self.to_reach = self.to_reach, None
            # To be back where it was, noise is allowed for; but it is no excuse for a model that should still learn.
            if smoothed > wanted + (0.0 if self.must_gain else noise):
                reason = f"at the lower rate the loss did not come down to {wanted:.4g}: it is {smoothed:.4g}"
                return Trouble("stuck", self.last_target or 0, step, reason)
        if self.best_step == step:
            return None
        learned = self.first_loss - self.best_loss
        rise = smoothed - self.best_loss
        bound = max(self.policy.drift_share * learned, NOISE * noise, LEAST_RISE * abs(self.first_loss))
        bound = min(bound, abs(self.first_loss))  # noise may be as large as the loss, but not healthy then
        self.rising = self.rising + 1 if rise > bound else 0
        if self.rising < 2:
            return None
        reason = (
            f"the loss rose from {self.best_loss:.4g} at step {self.best_step} to {smoothed:.4g}, "
            f"having begun at {self.first_loss:.4g}"
        )
        return Trouble("drift", self.best_step, step, reason)

    def _ask_for_gain(self, trouble: Trouble) -> None:
        """Of a model that was brought back to its best state: to be as good again at the lower rate. Early in training,
        unless its data may be to blame, to be better."""
        if self.first_loss is None or self.lowest_loss is None or (self.to_reach is not None and self.must_gain):
            return
        self.must_gain = trouble.healthy_before <= self.policy.same_place and trouble.is_of_the_model
        self.to_reach = self.lowest_loss - LEAST_GAIN * (self.first_loss - self.lowest_loss) * self.must_gain

    @property
    def has_learned(self) -> bool:
        """A run that has not is not healed by halves of its rate: nothing tells how far it is from a good one."""
        if self.first_loss is None or self.lowest_loss is None:
            return False
        return self.first_loss - self.lowest_loss > LEAST_LEARNED * abs(self.first_loss)

    def _verdict(self, trouble: Trouble, again: int) -> str:
        tried = f"going back to before the trouble {again} time{'s' if again != 1 else ''}" if again else "nothing"
        if self.remedies:
            tried += f", down to {math.prod(self.remedies):.3g} of the rate"
        why = ""
        if not self.has_learned:
            why = " Nothing was learned before it: the rate is far too high, or the data is broken."
        elif trouble.kind == "stuck":
            why = " The rate is far too high, or the data has changed."
        return f"step {trouble.last_step}: {trouble.reason}.{why} Tried: {tried}."

    def state_dict(self) -> dict[str, Any]:
        state = asdict(self)
        del state["policy"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)


def _last(rejections: list[Rejection]) -> str:
    return f"; at step {rejections[-1].step} {rejections[-1].reason}" if rejections else ""
