"""The learning-rate range test (arXiv 1506.01186): one short run whose rate grows from tiny to too large, and where
the loss falls and breaks.

It brackets the rate in a few hundred steps, where a search takes several runs. It is not a search: the rate at which
the loss still falls after a few steps is not the one that is best at the end of a long run, and with warm-up higher
rates can be held than without. So it gives the range to search in, not the value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch

from trainbook.data import build as build_data
from trainbook.doctor.statistics import median_and_spread
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.loop.build import request_of
from trainbook.loop.device import choose_device
from trainbook.study.rehearsal import for_rehearsal, lasting, rehearsal

LOW, HIGH, STEPS = 1e-7, 1.0, 200
AROUND = 1 / 40  # of all steps, on either side of a step: its loss is averaged over these
BROKEN = 0.3  # of what the loss had fallen: risen by so much from its lowest, it breaks
RISEN = 0.1  # of what the loss had fallen: risen by so much, what it reaches later at higher rates does not count
LEAST_FALL = 0.01  # of the first loss: less is no fall
CLEAR_FALL, CLEAR_ERRORS = 0.02, 3  # of what the loss had fallen, and standard errors: less is a ripple
MOST_SKIPPED = 50  # updates, until it is no longer the loss scale that is looked for
BELOW = 10  # times below the steepest fall: what is lower still only takes longer


@dataclass(frozen=True)
class RateRange:
    rates: list[float]
    losses: list[float]  # as they were
    smooth: list[float]
    steepest: float | None  # where the loss falls fastest; None: it never fell
    stops_falling: float | None  # beyond it, the smoothed loss is not clearly lower
    lowest: float | None  # where the smoothed loss is lowest: perhaps by a ripple
    breaks_at: float | None  # None: not even the highest one was too high

    @property
    def search(self) -> tuple[float, float] | None:
        """A range in which the best rate can be expected."""
        if self.steepest is None or self.stops_falling is None:
            return None
        return self.steepest / BELOW, self.stops_falling


def range_test(config: Config, low: float = LOW, high: float = HIGH, steps: int = STEPS) -> RateRange:
    """Train `steps` steps from the configuration's own start, the rate growing by the same factor with each."""
    if not 0 < low < high or not math.isfinite(high):
        raise UserError(
            f"a learning-rate range test goes from a learning rate > 0 to a higher one, but got {low:g} to {high:g}."
        )
    if steps < 10:
        raise UserError(f"a learning-rate range test needs at least 10 steps, but got {steps}.")
    rates = [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]
    config = _unguarded(for_rehearsal(lasting(config, steps)))
    device = choose_device(config.training.device)
    data = build_data(config.data, config.training.seed, request_of(config))
    losses: list[float] = []
    skipped = 0
    with rehearsal(config, data, device) as training:
        table = training.state.rates
        table.scheduled = rates
        table.apply(())
        with closing(training.reports):
            for report in training.reports:
                loss = float(torch.stack(list(report.losses.values())).sum())
                training.after_step(report)
                if math.isfinite(loss) and not bool(report.applied) and skipped < MOST_SKIPPED:
                    skipped += 1  # fp16 leaves its first updates out until the loss scale fits: the rate has not grown
                    continue
                losses.append(loss)
                if not math.isfinite(losses[-1]) or losses[-1] > 4 * losses[0]:
                    break  # nothing comes after it
    return read_curve(rates[: len(losses)], losses)


def read_curve(rates: Sequence[float], losses: Sequence[float]) -> RateRange:
    """What a curve of losses by growing rates says."""
    smooth = _smoothed(losses)
    finite = [place for place, value in enumerate(smooth) if math.isfinite(value)]
    if not finite:
        return RateRange(list(rates), list(losses), smooth, None, None, None, rates[0] if rates else None)
    lowest = min(finite, key=lambda place: smooth[place])
    fallen = smooth[0] - smooth[lowest]
    slopes = {place: smooth[place + 1] - smooth[place - 1] for place in range(1, lowest)}
    steepest = min(slopes, key=lambda place: slopes[place], default=None)
    if steepest is None or fallen < LEAST_FALL * abs(smooth[0]) or slopes[steepest] >= 0:
        return RateRange(list(rates), list(losses), smooth, None, None, None, None)
    error = _spread(losses[steepest:]) / math.sqrt(2 * _reach(losses) + 1)
    end = _last_clear_fall(smooth, steepest, fallen, error)
    broken = (p for p in range(end + 1, len(smooth)) if not smooth[p] <= smooth[end] + BROKEN * fallen)
    breaks_at = next(broken, None)
    return RateRange(
        list(rates),
        list(losses),
        smooth,
        rates[steepest],
        rates[end],
        rates[lowest],
        None if breaks_at is None else rates[breaks_at],
    )


def _last_clear_fall(smooth: Sequence[float], steepest: int, fallen: float, error: float) -> int:
    """The first place from the steepest fall on after which the loss is nowhere clearly lower. What comes after a clear
    rise does not count: steps at a rate that is too high train as well, and may make up for the rise."""
    clear = CLEAR_ERRORS * math.sqrt(2) * error  # of a difference of two averages
    lowest = steepest
    for place in range(steepest, len(smooth)):
        if not smooth[place] <= smooth[lowest] + max(RISEN * fallen, clear):
            break
        lowest = min(lowest, place, key=lambda each: smooth[each])
    enough = smooth[lowest] + max(CLEAR_FALL * fallen, clear)
    return next(place for place in range(steepest, lowest + 1) if smooth[place] <= enough)


def _spread(losses: Sequence[float]) -> float:
    """The standard deviation of a loss, by how far each is from the line between its neighbours."""
    around = zip(losses, losses[1:], losses[2:], strict=False)
    bends = [value for before, loss, after in around if math.isfinite(value := before - 2 * loss + after)]
    if not bends:
        return 0.0
    _, spread = median_and_spread(np.array(bends))
    return spread / math.sqrt(6)  # a bend has 1 + 4 + 1 times the variance of a loss


def _smoothed(losses: Sequence[float]) -> list[float]:
    """The average over the steps around each step, before it and after it: it does not lag behind."""
    found, reach = [], _reach(losses)
    for place, loss in enumerate(losses):
        around = [each for each in losses[max(0, place - reach) : place + reach + 1] if math.isfinite(each)]
        found.append(statistics.fmean(around) if math.isfinite(loss) else math.nan)
    return found


def _reach(losses: Sequence[float]) -> int:
    return round(AROUND * len(losses))


def _unguarded(config: Config) -> Config:
    """A guard would skip what the test is for; and there is no warm-up on the way up. Whatever trains the model, the
    test is one process."""
    changes = {
        "guard": {"enabled": False},
        "schedule": {"warmup_steps": 0, "warmup_ratio": None},
        "distributed": {"strategy": "single"},
    }
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=knobs) for name, knobs in changes.items()}
    )
