"""A run's metric along steps, tokens, time or epochs, and two of them at equal places."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal, get_args

from trainbook.errors import UserError
from trainbook.runs.record import Record

By = Literal["steps", "tokens", "time", "epochs"]
FIELD: dict[By, str] = {"steps": "step", "tokens": "tokens", "epochs": "epoch"}
WINDOW = 0.1  # of the way: over so much of it a training metric is averaged, so that no single batch decides


@dataclass(frozen=True)
class Curve:
    """Places and values in rising order of places; `is_noisy` for training metrics, which are of single batches."""

    places: list[float]
    values: list[float]
    is_noisy: bool

    @property
    def end(self) -> float:
        return self.places[-1]

    def at(self, place: float) -> float:
        """At a place: between two evaluations on the straight line; of training, the mean of the tenth before it."""
        if self.is_noisy:
            start = place - WINDOW * (place - self.places[0])
            inside = [value for at, value in zip(self.places, self.values, strict=True) if start <= at <= place]
            return fmean(inside) if inside else self._between(place)
        return self._between(place)

    def _between(self, place: float) -> float:
        right = bisect.bisect_left(self.places, place)
        if right == len(self.places):
            return self.values[-1]
        if right == 0 or self.places[right] == place:
            return self.values[right]
        x0, x1, y0, y1 = *self.places[right - 1 : right + 1], *self.values[right - 1 : right + 1]
        return y0 + (y1 - y0) * (place - x0) / (x1 - x0)


def curve_of(record: Record, metric: str, split: str, by: By) -> Curve | None:
    """None where the run has no such metric."""
    rows = record.train if split == "train" else record.evaluations
    rows = [row for row in rows if _is_number(row.get(metric))]
    if not rows:
        return None
    places = _places(record, rows, by)
    points = sorted(
        (place, row[metric]) for place, row in zip(places, rows, strict=True) if place is not None and place >= 0
    )
    if not points:
        has = ", ".join(name for name in get_args(By) if any(at is not None for at in _places(record, rows, name)))
        raise UserError(f"--by {by}: run '{record.name}' did not log it; it has {has}.")
    return Curve([place for place, _ in points], [value for _, value in points], is_noisy=split == "train")


def seconds_of(record: Record) -> float | None:
    """Time spent training."""
    clock = _clock(record)
    return clock[max(clock)] if clock else record.facts.get("train_seconds")


def speed_of(record: Record) -> float | None:
    """All tokens by all of the time spent training, as both are shown; where they are not known, those of a median
    step."""
    tokens, seconds = tokens_of(record), seconds_of(record)
    if tokens and seconds:
        return tokens / seconds
    logged = [row["tokens_per_second"] for row in record.train if _is_number(row.get("tokens_per_second"))]
    return float(median(logged)) if logged else None


def tokens_of(record: Record) -> int | None:
    return next((row["tokens"] for row in reversed(record.train) if _is_number(row.get("tokens"))), None)


def steps_of(record: Record) -> int:
    return max((row["step"] for row in (*record.train, *record.evaluations)), default=0)


def _places(record: Record, rows: Sequence[dict[str, Any]], by: By) -> list[float | None]:
    if by == "time":
        clock = _clock(record)
        steps = sorted(clock)
        seconds = [clock[step] for step in steps]
        line = Curve([0.0, *map(float, steps)], [0.0, *seconds], is_noisy=False) if steps else None
        return [line.at(row["step"]) if line is not None else None for row in rows]
    return [row[FIELD[by]] if _is_number(row.get(FIELD[by])) else None for row in rows]


def _clock(record: Record) -> dict[int, float]:
    """Seconds of training until each step: the steps' own where they are known, so that pauses between a stop and a
    resume don't count; else by the clock, from when the first row was logged."""
    timed = [row for row in record.train if _is_number(row.get("step_seconds"))]
    if timed:
        total, before, clock = 0.0, 0, {}
        for row in timed:
            total += row["step_seconds"] * (row["step"] - before)
            before = row["step"]
            clock[before] = total
        return clock
    logged = [row for row in record.train if _is_number(row.get("time"))]
    if len(logged) < 2:
        return {}
    is_elapsed = logged[0]["time"] < 1e8  # seconds since the beginning, not since 1970
    start = 0.0 if is_elapsed else logged[0]["time"]
    return {row["step"]: row["time"] - start for row in logged}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
