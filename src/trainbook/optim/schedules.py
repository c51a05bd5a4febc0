"""Learning-rate schedules as pure functions: the share of the peak rate at the k-th applied update.

Warm-up rises linearly and reaches the peak at update `warmup`; no update is spent at rate zero. What follows reaches
its end at update `total`, one past the last, as transformers counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trainbook.knobs.sections.schedule import ScheduleKnobs


@dataclass(frozen=True)
class SchedulePoint:
    """Where in the run an update stands."""

    update: int
    total: int
    warmup: int

    @property
    def progress(self) -> float:
        """0 at the end of warm-up, 1 at the end of the run."""
        return min(1.0, (self.update - self.warmup) / max(1, self.total - self.warmup))


def _constant(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    return 1.0


def _linear(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    return 1.0 - at.progress


def _cosine(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * at.progress))


def _cosine_with_restarts(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    if at.progress >= 1.0:
        return 0.0
    return 0.5 * (1.0 + math.cos(math.pi * ((schedule.num_cycles * at.progress) % 1.0)))


def _polynomial(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    return (1.0 - at.progress) ** schedule.power


def _inverse_sqrt(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    timescale = at.warmup or 10_000
    return math.sqrt(timescale / (at.update + timescale - at.warmup))


def _warmup_stable_decay(schedule: ScheduleKnobs, at: SchedulePoint) -> float:
    decay = max(1, min(round(schedule.decay_ratio * at.total), at.total - at.warmup))
    share = min(1.0, max(0.0, (at.update - (at.total - decay)) / decay))
    return {
        "linear": 1.0 - share,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * share)),
        "sqrt": 1.0 - math.sqrt(share),
    }[schedule.decay_shape]


SHAPES: dict[str, Callable[[ScheduleKnobs, SchedulePoint], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
}


def share_of_peak(schedule: ScheduleKnobs, update: int, total: int, warmup: int) -> float:
    if update < warmup:
        return (update + 1) / (warmup + 1)
    shape = SHAPES[schedule.type](schedule, SchedulePoint(update, total, warmup))
    return schedule.floor + (1.0 - schedule.floor) * shape


def shares(schedule: ScheduleKnobs, total: int, warmup: int) -> list[float]:
    """The whole schedule, one value an update."""
    return [share_of_peak(schedule, update, total, warmup) for update in range(total)]
