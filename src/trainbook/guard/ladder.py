"""The ladder: how the guard escalates when skipping single updates is not enough.

    1. Skip the update.
    2. After a few rejections in a row at losses below the initial one: the data has changed; take them for usual. The
       longer the loss was at one level, the more it takes, here and in 3.
    3. After several at higher losses, or if the loss drifts up: test whether the model is worse than it was. The caller
       does that. If it is not, the data has changed.
    4. If it is worse: give it some updates to recover by itself. A model that has learned nothing yet has more of them,
       and as many as it takes while its loss falls: it has nothing to lose.
    5. If it has not: roll back to a state from before the trouble, and exclude its data. If trouble returns from the
       same state, or after a drift (which no single batch explains): also give up fp8 products where there are any;
       the next time, or where there are none, lower the learning rate and warm it up again, if the policy allows it.
    6. If that does not help or is not allowed, or if the model never learned anything: stop, and report why.

Values that are not finite are never taken for usual. After several in a row the same test is made: a model that is
worse goes back at once; if it is the data, updates are skipped for long before the run stops.

Decisions depend on the readings alone, so a resumed run takes the same actions again.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainbook.guard.decisions import Adopt, Observe, Policy, RollBack, Stop, Suspicion, Trouble
from trainbook.guard.judge import JudgeReading, Rejection, is_repeated
from trainbook.guard.learning_rate import SAME_RATE, RateHistory
from trainbook.guard.window import MAD_TO_SIGMA, TINY

SMOOTHED = 32  # accepted losses that a smoothed one is the median of
BEGINNING = 8  # accepted losses whose median a run began with
LEAST_RISE = 0.05  # of the first loss: less is no divergence
LEAST_LEARNED = 0.01  # of the first loss; a model that was trained before learns little more
NOISE = 3.0  # standard deviations of the loss that a smoothed loss must rise by
MOST_EXPONENT = 100.0  # a ratio beyond that of any two losses
SURE = 0.9  # of all pairs of a loss of now and one of the best, in which the one of now is higher
MUCH = (
    0.5  # of the first loss: a run that has learned less gives little back; its loss must double, as counted from there
)
RECOVERED = 0.5  # of what the loss rose by, that must be gone then
UNLEARNED = (
    4  # times as many updates to recover for a model that has learned nothing: some losses rise before they fall
)
LONGEST_STRETCH = 6  # times max_consecutive_skips that shuffled data is skipped before it is taken to have changed
WAITS = 1000  # updates at one level for each that a stretch at another one is skipped, where data may come in any order
MOST_BAD_DATA = 50  # times max_consecutive_skips that data which gives no finite values is skipped before the run stops
LEAST_GAIN = 0.1  # of what was learned: what a lower rate must add to it early in training, where that is easy


@dataclass
class Ladder:
    policy: Policy
    first_loss: float | None = None
    best_loss: float | None = None  # smoothed
    best_step: int = 0
    best_rate: float | None = None  # the learning rate at that step
    best_losses: list[float] = field(default_factory=list)  # sorted: those that the best one is the median of
    lowest_loss: float | None = None  # smoothed, of all that was ever reached
    settles_at: int = (
        0  # the step up to which smoothed losses are of two levels: one that was left, and the present one
    )
    changed_at: int = 0  # the step at which it was left
    dismissed: int = 0  # suspicions of a slow rise that were wrong: each doubles what the next one needs
    rising: int = 0  # readings in a row at which the smoothed loss was far above its best
    attempts: int = 0  # rollbacks from the place of the last trouble
    rollbacks: int = 0  # in all
    last_trouble: int | None = None  # the step at which it was noticed
    last_target: int | None = None  # the step that was gone back to
    remedies: list[float] = field(default_factory=list)
    was_widened: bool = False  # fp8 was given up
    to_reach: float | None = None  # the smoothed loss that the remedy must lead to
    to_reach_by: int = 0  # the step
    must_gain: bool = False  # and not only be back where it was
    tested_row: int = 0  # the first step of the rejections in a row at which the model was found to be as good as ever
    tested_count: int = 0  # updates in a row that were not finite when it was last found that the data is to blame
    pending: Trouble | None = None  # from which the model may yet recover by itself
    recovers_by: int = 0  # the step
    rates: RateHistory = field(default_factory=RateHistory)

    def __post_init__(self) -> None:
        if isinstance(self.rates, dict):  # as `state_dict` gives it
            self.rates = RateHistory(**self.rates)

    def decide(
        self, step: int, reading: JudgeReading, rate: float | None = None
    ) -> Adopt | Suspicion | RollBack | Stop | None:
        """`rate`: the present learning rate, where it is known."""
        self.rates.see(step, rate)
        found = self._rejections(step, reading) or self._drift(step, reading, rate)
        if not isinstance(found, Trouble):
            return found
        if found.kind == "stuck":
            return Stop(found, self.attempts, self._verdict(found, self.attempts))
        if found is self.pending:
            return self.back(found)
        if not found.is_of_the_model and not reading.recent_losses:
            return self._before_any_update(found)
        return Suspicion(found, reading.row if found.kind == "rejections" else ())

    def confirm(self, suspicion: Suspicion) -> Observe | RollBack | Stop:
        """The model is worse than it was. The first time, it may recover by itself."""
        trouble = suspicion.trouble
        if self.pending is not None or not trouble.is_of_the_model or self._is_same(trouble):
            return self.back(trouble)
        updates = self.policy.probation * (1 if self.has_learned else UNLEARNED)
        self.pending, self.recovers_by = trouble, trouble.last_step + updates
        self.settles_at, self.rising = self.recovers_by, 0
        reason = f"{trouble.reason}; the model is worse: it has {updates} updates to recover by itself"
        return Observe(trouble, updates, reason, suspicion.row)

    def back(self, trouble: Trouble) -> RollBack | Stop:
        """To a state from before the trouble, or no further."""
        step = trouble.last_step
        self.pending = None
        self.rates.see_rollback(step)
        is_same = self._is_same(trouble)
        self.attempts = self.attempts + 1 if is_same else 1
        self.last_trouble = max(step, self.last_trouble or 0) if is_same else step
        # Without other data, the same steps would lead to the same place.
        needs_remedy = self.attempts > 1 or trouble.kind == "drift"
        widens = needs_remedy and self.policy.has_fp8 and not self.was_widened
        remedy = self.policy.rate_factor if needs_remedy and not widens else None
        is_over = self.attempts > self.policy.max_rollbacks or (self.attempts > 1 and remedy is None and not widens)
        # Unlike a lower rate, wider products may be what a model needs to learn anything.
        if is_over or (needs_remedy and not widens and not self.has_learned):
            return Stop(trouble, self.attempts - 1, self._verdict(trouble, self.attempts - 1))
        self.rollbacks += 1
        self.was_widened |= widens
        if remedy is not None:
            self.remedies.append(remedy)
            self._ask_for_gain(trouble)
        return RollBack(trouble, self.attempts, remedy, widens)

    def _before_any_update(self, trouble: Trouble) -> RollBack | Stop:
        """There is no better state to compare with, and no learning rate to blame."""
        decision = self.back(trouble)
        if isinstance(decision, RollBack):
            return decision
        why = (
            "The model had its initial weights there, so it is not the learning rate: the data, the loss function or "
            "these weights give values that are not finite."
        )
        verdict = f"step {trouble.last_step}: {trouble.reason}. {why} Tried: {self._tried(decision.attempts)}."
        return replace(decision, trouble=replace(trouble, kind="start"), verdict=verdict)

    def _is_same(self, trouble: Trouble) -> bool:
        """As the last one, from which the run went back."""
        return self.last_trouble is not None and (
            trouble.last_step <= self.last_trouble + self.policy.same_place
            or (self.last_target is not None and trouble.healthy_before <= self.last_target)
            or (self.to_reach is not None and trouble.last_step <= self.to_reach_by)
        )

    def dismiss(self, suspicion: Suspicion, rate: float | None = None) -> Adopt | Stop | None:
        """The model is as good as it was: the loss is what the data costs now."""
        trouble = suspicion.trouble
        if not trouble.is_of_the_model:
            return self._skip_on(trouble)
        if trouble.kind == "rejections":
            if self._is_short(suspicion.row, trouble.first_step, trouble.last_step):
                self.tested_row = trouble.first_step  # rejected updates do not change the model: once is enough
                return None
            self._settle(trouble.last_step)
            return Adopt(suspicion.row, f"{trouble.reason}; the model is as good as before, so the data has changed")
        self.best_loss, self.best_step, self.best_rate, self.rising = trouble.now, trouble.last_step, rate, 0
        self.best_losses = []
        self.dismissed += 1
        return None

    @property
    def _is_no_change_of_data(self) -> bool:
        """Whether a loss far above the initial one comes from the model: batches are drawn at random, or the learning
        rate was raised."""
        return self.policy.longest is not None or self.rates.was_raised

    def may_be_ill(self, suspicion: Suspicion, cost: float, most: float, *, is_worse: bool) -> bool:
        """Whether the earlier state of a trial may be ill itself, as after a slow rise: it costs more than the run
        began with, or, of shuffled data, than the `most` that a healthy state costs. Where nothing but the loss says so
        and nothing would follow, no older state is asked: those know less, and may do better on bad data."""
        trouble = suspicion.trouble
        if self.first_loss is None or self.policy.in_order:
            return False
        if self.rates.was_raised:
            return not cost <= self.first_loss  # also what is not finite
        is_long = trouble.kind == "drift" or not self._is_short(suspicion.row, trouble.first_step, trouble.last_step)
        is_needed = trouble.is_of_the_model and (is_worse or is_long)
        return self.policy.longest is not None and is_needed and cost >= min(most, self.first_loss)

    def follow(self, suspicion: Suspicion, rate: float | None, reason: str) -> Adopt:
        """The loss function has changed: the same state costs more on the same data. Nothing is to be waited for."""
        trouble = suspicion.trouble
        rise = trouble.now - trouble.usual
        self._settle(trouble.last_step)
        self.first_loss = None if self.first_loss is None else self.first_loss + rise
        self.lowest_loss = None if self.lowest_loss is None else self.lowest_loss + rise
        self.best_rate = rate
        return Adopt(suspicion.row, reason, rise)

    def _skip_on(self, trouble: Trouble) -> Stop | None:
        """A model that is fine waits for better data, which a run that is stopped never meets."""
        self.tested_count, self.tested_row = trouble.count, trouble.first_step
        if trouble.count < MOST_BAD_DATA * self.policy.max_consecutive_skips:
            return None
        why = f"The training data is broken from step {trouble.first_step} on."
        return Stop(replace(trouble, kind="data"), self.attempts, f"step {trouble.last_step}: {trouble.reason}. {why}")

    def _is_short(self, row: Sequence[Rejection], first: int, last: int) -> bool:
        """Whether a rejected stretch may yet be one of bad data, and is skipped: the longer all data was at one level,
        the longer. One batch over and over is skipped in vain. Losses that fall are not waited out on shuffled data,
        either: a model that remembers its data finds it easier from the first batch of another epoch on."""
        is_low = bool(row) and all(each.loss_deviation < 0 for each in row)
        longest = None if is_low else self.policy.longest
        if longest is None:
            most = LONGEST_STRETCH * self.policy.max_consecutive_skips
            longest = 0 if is_repeated(row) else min((first - self.changed_at) // WAITS, most)
        return last - first + 1 < longest

    def _settle(self, step: int) -> None:
        """The loss has another level from here on: what was the best at the old one says nothing of the new one."""
        self.changed_at, self.settles_at, self.rising = step, step + SMOOTHED, 0
        self.best_loss, self.best_losses, self.to_reach = None, [], None

    def went_back(self, target: int, step: int | None = None) -> None:
        """The run is back at this step: forget the losses seen since, but not the remedies tried. `step`: the present
        one, where steps go on being counted from it."""
        self.last_target, self.pending = target, None
        self.rising = 0
        self.to_reach_by = (target if step is None else step) + self.policy.same_place + SMOOTHED
        self.settles_at = min(self.settles_at, target)
        if self.best_step > target:  # it belongs to a past that was given up
            self.best_loss, self.best_step, self.best_losses = self.first_loss, target, []

    def _rejections(self, step: int, reading: JudgeReading) -> Trouble | Adopt | None:
        count = reading.troubled_in_a_row  # up to now: a row that has ended was a bad stretch of data, and is over
        row = reading.row
        if count < self.tested_count:
            self.tested_count = 0  # that row is over
        is_finite = all(math.isfinite(each.loss) and math.isfinite(each.grad_norm) for each in row)
        is_mild = is_finite and all(each.loss <= reading.beginning for each in row)
        first = row[0].step if row and len(row) == count else step - count + 1
        is_short = self._is_short(row, first, step)
        if row and is_mild and not is_short and count >= min(self.policy.patience, self.policy.max_consecutive_skips):
            self._settle(step)
            return Adopt(row, f"{count} updates in a row were rejected, but no loss was above the initial one")
        enough = self.policy.suspicious if is_finite else self.policy.max_consecutive_skips
        if is_finite and is_repeated(row):
            enough = count  # it will not change while the model does not
        if count < min(enough, self.policy.max_consecutive_skips):
            return None
        if is_finite and first == self.tested_row and is_short:
            return None
        if not is_finite and count < min(2 * self.tested_count, MOST_BAD_DATA * self.policy.max_consecutive_skips):
            return None  # tested, and tested again when the row is twice as long
        if not is_finite and self.tested_count:
            first = self.tested_row
        usual = statistics.median(reading.recent_losses) if reading.recent_losses else math.nan
        now = statistics.median(each.loss for each in row) if is_finite and row else math.nan
        reason = f"{count} updates in a row were rejected{_last(row)}{self.rates.in_words}"
        return Trouble("rejections", first, step, reason, is_finite, usual, now, count)

    def _drift(self, step: int, reading: JudgeReading, rate: float | None) -> Trouble | None:
        """Finds a slow rise of the loss: the window follows it, so no single value is far from the previous ones."""
        losses = reading.recent_losses
        if self.pending is not None and step >= self.recovers_by:
            pending, some = self.pending, max(1, self.policy.probation // 2)
            if statistics.median(losses[-some:]) <= pending.usual + self._rise_of_recovered(pending):
                self.pending = None
            elif self.has_learned or not _is_higher(losses[-3 * some : -2 * some], sorted(losses[-some:])):
                return pending
            else:  # it falls, from wherever it rose to
                self.recovers_by = self.settles_at = step + self.policy.probation
        if self.first_loss is None and len(losses) >= min(BEGINNING, self.policy.max_consecutive_skips):
            self.first_loss = self.best_loss = statistics.median(losses[:BEGINNING])
            self.best_rate = rate
        if self.first_loss is None or len(losses) < SMOOTHED or step < self.settles_at:
            return None
        newest = losses[-SMOOTHED:]
        smoothed = statistics.median(newest)
        if self.best_loss is None or smoothed < self.best_loss:
            self.best_loss, self.best_step, self.best_rate, self.rising = smoothed, step, rate, 0
            self.best_losses = sorted(newest)
            self.rates.see_best_loss(step)
            self.lowest_loss = smoothed if self.lowest_loss is None else min(smoothed, self.lowest_loss)
        # A loss that begins below zero has no level of an untrained model to come back to: as a policy's or a critic's
        # does, it may rise for good reasons, and its size says nothing of what there was to learn.
        looked_for = self.policy.drift_share is not None and self.first_loss > 0
        if looked_for and self.to_reach is not None and (smoothed <= self.to_reach or step >= self.to_reach_by):
            wanted, self.to_reach = self.to_reach, None
            if smoothed > wanted + self._allowed_miss(wanted, newest):
                reason = f"at the lower learning rate the loss did not fall to {wanted:.4g}: it is {smoothed:.4g}"
                return Trouble("stuck", self.last_target or 0, step, reason)
        if self.best_step == step or not looked_for:
            return None
        rise = smoothed - self.best_loss
        bound = max(self._allowed_rise(rate), self._rise_by_noise(newest), LEAST_RISE * abs(self.first_loss))
        bound *= 2**self.dismissed
        self.rising = self.rising + 1 if rise > bound and self._is_sure(newest) else 0
        if self.rising < 2:
            return None
        before = f"{self.best_loss:.4g} at step {self.best_step}" if self.best_step else f"{self.first_loss:.4g}"
        initial = "" if self.best_step else ", the median of the first updates"
        reason = (
            f"the loss rose from {before} to {smoothed:.4g} (initial loss {self.first_loss:.4g}{initial})"
            f"{self.rates.in_words}"
        )
        return Trouble("drift", self.best_step, step, reason, usual=self.best_loss, now=smoothed)

    def _allowed_rise(self, rate: float | None) -> float:
        """A share of what was learned; all of it where the learning rate was raised, since that costs by itself."""
        assert self.first_loss is not None and self.best_loss is not None and self.policy.drift_share is not None
        learned = self.first_loss - self.best_loss
        if self.policy.in_order or learned < self.policy.much * abs(self.first_loss):
            return learned + abs(self.first_loss)
        was_raised = rate is not None and self.best_rate is not None and rate > SAME_RATE * self.best_rate
        return (1.0 if was_raised else self.policy.drift_share) * learned

    def _rise_by_noise(self, newest: Sequence[float]) -> float:
        """What the loss may have risen by because it scatters. The loss of a model that diverges scatters all the more
        the higher it is: where it is twice the initial one, ratios are held against the scatter of ratios."""
        assert self.first_loss is not None and self.best_loss is not None
        best = self.best_losses or [self.best_loss]
        by_noise = NOISE * max(_noise(newest), _noise(best))
        if not self._is_no_change_of_data or min(*newest, *best) < 0 or self.best_loss <= TINY:
            return by_noise
        noise = max(_noise([math.log(max(loss, TINY)) for loss in losses]) for losses in (newest, best))
        by_ratio = self.best_loss * math.expm1(min(NOISE * noise, MOST_EXPONENT))
        to_twice = max(self.first_loss - self.best_loss, 0.0) + abs(self.first_loss)
        return min(by_noise, max(by_ratio, to_twice, NOISE * _noise(best)))

    def _rise_of_recovered(self, trouble: Trouble) -> float:
        """What the loss of a model that has recovered is above the usual one at most: half of what it rose by, but not
        all of what was learned, however high it was in between."""
        rise = RECOVERED * (trouble.now - trouble.usual)
        if self.first_loss is None or not self._is_no_change_of_data:
            return rise
        learned = self.first_loss - trouble.usual
        has_little = self.policy.in_order or learned < MUCH * abs(self.first_loss)
        return min(rise, max(learned, 0.0) + abs(self.first_loss) * has_little)

    def _is_sure(self, newest: Sequence[float]) -> bool:
        return not self.best_losses or _is_higher(newest, self.best_losses)

    def _allowed_miss(self, wanted: float, newest: Sequence[float]) -> float:
        """What a lower rate need not bring back: noise, or the cost of a learning rate that is still raised. It is no
        excuse for a model that should still learn, or that is no better than an untrained one."""
        assert self.first_loss is not None
        learned = max(self.first_loss - wanted, 0.0)
        return 0.0 if self.must_gain else learned if self.rates.was_raised else min(_noise(newest), learned)

    def _ask_for_gain(self, trouble: Trouble) -> None:
        """Sets the loss that the rolled-back model must reach at the lower learning rate: its earlier best. Early in
        training, unless the data may be to blame, it must be better than that."""
        if self.first_loss is None or self.lowest_loss is None or (self.to_reach is not None and self.must_gain):
            return
        self.must_gain = trouble.healthy_before <= self.policy.same_place and trouble.is_of_the_model
        self.to_reach = self.lowest_loss - LEAST_GAIN * (self.first_loss - self.lowest_loss) * self.must_gain

    @property
    def has_learned(self) -> bool:
        """Whether the loss ever fell. If not, halving the learning rate is no remedy: it may be far too high."""
        if self.first_loss is None or self.lowest_loss is None:
            return False
        return self.first_loss - self.lowest_loss > LEAST_LEARNED * abs(self.first_loss)

    def _tried(self, again: int) -> str:
        tried = f"{again} rollback{'s' if again != 1 else ''}" if again else "nothing"
        tried += ", products in bf16 instead of fp8" if self.was_widened else ""
        return f"{tried}, learning rate × {math.prod(self.remedies):.3g}" if self.remedies else tried

    def _verdict(self, trouble: Trouble, again: int) -> str:
        why = ""
        if not self.has_learned:
            why = (
                " The model had learned nothing before that: the learning rate is far too high, or the data is broken."
            )
        elif trouble.kind == "stuck":
            why = " The learning rate is far too high, or the data has changed."
        return f"step {trouble.last_step}: {trouble.reason}.{why} Tried: {self._tried(again)}."

    def state_dict(self) -> dict[str, Any]:
        state = asdict(self)
        del state["policy"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)
        if state.get("pending") is not None:
            self.pending = Trouble(**state["pending"])
        if "rates" in state:
            self.rates = RateHistory(**state["rates"])


def _noise(losses: Sequence[float]) -> float:
    """One standard deviation of them, robustly."""
    level = statistics.median(losses)
    return MAD_TO_SIGMA * statistics.median(abs(loss - level) for loss in losses)


def _is_higher(losses: Sequence[float], others: Sequence[float]) -> bool:
    """Not by chance: of all pairs of one and one of the others (sorted), nearly all say the same (Mann and Whitney)."""
    higher = sum(bisect_left(others, loss) + bisect_right(others, loss) for loss in losses) / 2
    return higher > SURE * len(others) * len(losses)


def _last(rejections: Sequence[Rejection]) -> str:
    return f" (the last one: {rejections[-1].reason})" if rejections else ""
