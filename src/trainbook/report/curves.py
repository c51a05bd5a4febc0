"""A run's metric along steps, tokens, time or epochs, and several of them where all have a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from trainbook.errors import UserError
from trainbook.report.run_row import last_saved_step
from trainbook.runs.columns import are_numbers
from trainbook.runs.run_record import RunRecord

By = Literal["steps", "tokens", "time", "epochs"]
FIELD: dict[By, str] = {"steps": "step", "tokens": "tokens", "epochs": "epoch"}
WINDOW = 0.1  # of the way: over so much of it a training metric is averaged, so that no single batch decides
NEAR = 0.02  # of a place: tokens, seconds and epochs that differ by no more are taken for the same


@dataclass(frozen=True)
class Curve:
    """Places and values in rising order of places; `is_noisy` for training metrics, which are of single batches."""

    places: np.ndarray
    values: np.ndarray
    is_noisy: bool
    is_lost: bool = False  # the newest values are NaN or infinite, and not among these

    @property
    def start(self) -> float:
        return self.places[0].item()

    @property
    def end(self) -> float:
        return self.places[-1].item()

    def at(self, place: float) -> float:
        """At one of its places: an evaluation as it was measured; of training, the mean of the tenth before it."""
        at = int(np.searchsorted(self.places, place))
        assert at < len(self.places) and self.places[at] == place
        if not self.is_noisy:
            return float(self.values[at])
        start = place - WINDOW * (place - self.start)
        first, last = np.searchsorted(self.places, start, "left"), np.searchsorted(self.places, place, "right")
        return fmean(self.values[first:last].tolist())


def where_all_have_values(curves: Sequence[Curve], by: By) -> list[Curve]:
    """The curves with the places alone that all of them have; none where there is no such place. Nothing is read
    between two values: a straight line lies above a curve that bends upwards, so the run that was evaluated more
    rarely would look worse."""
    fewest = min(curves, key=lambda curve: len(curve.places))
    shared = np.unique(fewest.places)
    near = 0.0 if by == "steps" else NEAR
    for curve in curves:
        found = curve.places[_nearest(curve.places, shared)]
        shared = shared[np.abs(found - shared) <= near * np.abs(shared)]
    if not len(shared):
        return []
    return [replace(curve, places=shared, values=curve.values[_nearest(curve.places, shared)]) for curve in curves]


def _nearest(places: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The number of the place that is nearest to each."""
    right = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(places[left] - wanted) < np.abs(places[right] - wanted), left, right)


def curve_of(record: RunRecord, metric: str, split: str, by: By) -> Curve | None:
    """None where the run has no such metric."""
    names = ("step", metric, FIELD.get(by, "step"))
    steps, values, places = record.rows(split).columns(*names, need=names[:2])
    logged = are_numbers(values)
    kept = logged & np.isfinite(values)
    if not kept.any():
        return None
    is_lost = not np.isfinite(values[logged][-1])
    steps, values = steps[kept], values[kept]
    places = _at_time(record, steps) if by == "time" else places[kept]
    known = np.isfinite(places) & (places >= 0)
    if not known.any():
        has = [name for name in get_args(By) if _has(record, split, metric, name)]
        raise UserError(f"--by {by}: run '{record.name}' did not log it; it has {', '.join(has)}.")
    places, values = places[known], values[known]
    if by in ("steps", "tokens"):
        places = places.astype(np.int64)
    order = np.lexsort((values, places))
    return Curve(places[order], values[order], is_noisy=split == "train", is_lost=is_lost)


def seconds_of(record: RunRecord) -> float | None:
    """Time spent training."""
    clock = _clock(record)
    return float(clock[1][-1]) if clock is not None else record.facts.get("train_seconds")


def speed_of(record: RunRecord) -> float | None:
    """All tokens by all of the time spent training, as both are shown; where they are not known, those of a median
    step."""
    tokens, seconds = tokens_of(record), seconds_of(record)
    if tokens and seconds:
        return tokens / seconds
    (logged,) = record.rows("train").columns("tokens_per_second")
    logged = logged[np.isfinite(logged)]
    return float(np.median(logged)) if len(logged) else None


def tokens_of(record: RunRecord) -> int | None:
    rows = record.rows("train").having("tokens")
    return next((row["tokens"] for row in reversed(rows) if _is_number(row["tokens"])), None)


def steps_of(record: RunRecord) -> int:
    """That were made, as the list and the page of the run count them: the last row may be of an earlier one."""
    saved = last_saved_step([event for event in record.events if {"kind", "step"} <= event.keys()])
    return max(record.rows("train").last_step, record.rows("eval").last_step, saved)


def _has(record: RunRecord, split: str, metric: str, by: By) -> bool:
    if by == "time":
        return _clock(record) is not None
    values, places = record.rows(split).columns(metric, FIELD[by])
    return bool((np.isfinite(values) & np.isfinite(places)).any())


def _at_time(record: RunRecord, steps: np.ndarray) -> np.ndarray:
    clock = _clock(record)
    if clock is None:
        return np.full(len(steps), np.nan)
    return np.interp(steps, np.append(0.0, clock[0]), np.append(0.0, clock[1]))


def _clock(record: RunRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """Seconds of training until each step: the steps' own where they are known, so that pauses between a stop and a
    resume don't count; else by the clock, from when the first row was logged."""
    timed, seconds = _finite(record, "step_seconds")
    if len(timed):
        return timed, np.cumsum(seconds * np.diff(timed, prepend=0))
    logged, times = _finite(record, "time")
    if len(logged) < 2:
        return None
    is_elapsed = times[0] < 1e8  # seconds since the beginning, not since 1970
    return logged, times - (0.0 if is_elapsed else times[0])


def _finite(record: RunRecord, name: str) -> tuple[np.ndarray, np.ndarray]:
    steps, values = record.rows("train").columns("step", name)
    kept = are_numbers(values) & np.isfinite(values)
    return steps[kept], values[kept]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
