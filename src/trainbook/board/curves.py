"""A curve for a width in pixels: the lowest and highest value of each pixel column, so that no spike is lost.

The columns divide the visible range evenly; the same question gets the same answer. Where the range has few points,
they are given as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.board.records import OpenRun
from trainbook.board.series import By, MetricName, Series, as_list, series_of

WIDTHS = (50, 4_000)
FEW = 2  # points a pixel: so many are given as they are
CSV_ROWS = 20_000  # that are written at once
BAD_KINDS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class View:
    """What is asked for; without a range, all of it. `steps`: the range as a stretch of steps, on whatever axis."""

    width: int = 1_200
    low: float | None = None
    high: float | None = None
    steps: tuple[float, float] | None = None

    def placed(self, series: Sequence[Series | None]) -> View:
        """With the range on the axis of these series, where the stretch lies in any of them."""
        known = [each for each in series if each is not None and len(each.x)]
        if self.steps is None or not known:
            return self
        low, high = (
            pick(float(_place_of(each, step)) for each in known)
            for pick, step in zip((min, max), self.steps, strict=True)
        )
        return View(self.width, low, high) if low < high else View(self.width)

    @property
    def range(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]


def _place_of(series: Series, step: float) -> float:
    order = np.argsort(series.steps, kind="stable")
    return float(np.interp(step, series.steps[order], series.x[order]))


@dataclass
class Curve:
    """`mean` is left out where the points are raw. None in `low` and `high` is a gap."""

    x: list[Any] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    first: list[float | None] = field(default_factory=list)
    last: list[float | None] = field(default_factory=list)
    mean: list[float | None] | None = None
    bad: list[dict[str, Any]] = field(default_factory=list)
    raw: bool = True
    points: int = 0

    def as_facts(self, has_steps: bool) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("x", "low", "high", "first", "last", "bad", "raw", "points")}
        if self.mean is not None:
            facts["mean"] = self.mean
        return {**facts, "step": self.steps} if has_steps else facts


def curve_of(series: Series | None, view: View, extent: tuple[float, float] | None = None) -> Curve:
    """`extent` is the range of all curves together, which the columns divide where no range is asked for."""
    if series is None:
        return Curve()
    low, high = _range(series, view, extent)
    begin, end = np.searchsorted(series.x, low, "left"), np.searchsorted(series.x, high, "right")
    inside = slice(int(begin), int(end))
    if end - begin <= FEW * view.width:
        # One point more on both sides: the line comes from it, and goes there.
        around = slice(max(0, int(begin) - 1), min(len(series.x), int(end) + 1))
        return _raw(series, around, int(end - begin))
    return _columns(series, inside, low, high, view.width)


def extent_of(series: list[Series | None]) -> tuple[float, float] | None:
    known = [each for each in series if each is not None and len(each.x)]
    if not known:
        return None
    return min(float(each.x[0]) for each in known), max(float(each.x[-1]) for each in known)


def _range(series: Series, view: View, extent: tuple[float, float] | None) -> tuple[float, float]:
    whole = extent or (float(series.x[0]), float(series.x[-1]))
    low = whole[0] if view.low is None else view.low
    high = whole[1] if view.high is None else view.high
    return low, high


def _raw(series: Series, part: slice, points: int) -> Curve:
    values, gaps = series.values[part], _gaps_in(series, part)
    curve = Curve(points=points)
    finite = np.isfinite(values)
    shown: list[float | None] = [
        value if is_known else None for value, is_known in zip(values.tolist(), finite, strict=True)
    ]
    x, steps = as_list(series.x[part]), as_list(series.steps[part])
    for place, value in enumerate(shown):
        if place in gaps:
            _append(curve, (x[place - 1] + x[place]) / 2, steps[place], None)
        _append(curve, x[place], steps[place], value)
    curve.high, curve.first, curve.last = curve.low, curve.low, curve.low
    curve.bad = list(_bad(series.x[part], series.steps[part], values))
    return curve


def _append(curve: Curve, x: Any, step: Any, value: float | None) -> None:
    curve.x.append(x)
    curve.steps.append(step)
    curve.low.append(value)


def _gaps_in(series: Series, part: slice) -> set[int]:
    inside = series.gaps[(series.gaps > part.start) & (series.gaps < part.stop)]
    return set((inside - part.start).tolist())


def _columns(series: Series, part: slice, low: float, high: float, width: int) -> Curve:
    x, values, steps = series.x[part], series.values[part], series.steps[part]
    span = (high - low) or 1.0
    numbers = np.clip(((x - low) / span * width).astype(np.int64), 0, width - 1)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))  # of each column that has a point
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, starts)
    has = counts > 0
    lows = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    highs = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    means = np.add.reduceat(np.where(finite, values, 0.0), starts) / np.maximum(counts, 1)
    firsts, lasts = _ends(values, finite, starts, has)
    middles = low + (numbers[starts] + 0.5) * span / width
    gaps = np.array(sorted(_gaps_in(series, part)), dtype=int)
    broken = np.unique(np.searchsorted(starts, gaps, "left"))
    broken = broken[(broken > 0) & (broken < len(starts))]
    between = (middles[broken - 1] + middles[broken]) / 2
    ends = [np.insert(np.where(has, each, np.nan), broken, np.nan) for each in (lows, highs, firsts, lasts, means)]
    low_, high_, first, last, mean = (_with_none(each) for each in ends)
    bad = np.flatnonzero(~finite)
    _, chosen = np.unique(np.stack([numbers[bad], _kinds(values[bad])]), axis=1, return_index=True)
    shown = bad[np.sort(chosen)]
    return Curve(
        x=np.insert(middles, broken, between).tolist(),
        steps=as_list(np.insert(steps[starts], broken, steps[starts][broken])),
        low=low_,
        high=high_,
        first=first,
        last=last,
        mean=mean,
        bad=list(_bad(x[shown], steps[shown], values[shown])),
        raw=False,
        points=int(finite.sum()),
    )


def _with_none(values: np.ndarray) -> list[float | None]:
    found = values.tolist()
    missing = np.flatnonzero(np.isnan(values))
    for place in missing.tolist():
        found[place] = None
    return found


def _ends(values: np.ndarray, finite: np.ndarray, starts: np.ndarray, has: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last finite value of each column."""
    places = np.arange(len(values))
    after = np.minimum.reduceat(np.where(finite, places, len(values) - 1), starts)
    before = np.maximum.reduceat(np.where(finite, places, 0), starts)
    return np.where(has, values[after], np.nan), np.where(has, values[before], np.nan)


def _kinds(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), 0, np.where(values > 0, 1, 2))


def _bad(x: np.ndarray, steps: np.ndarray, values: np.ndarray) -> Iterator[dict[str, Any]]:
    for at, step, value in zip(x.tolist(), steps.tolist(), values.tolist(), strict=True):
        if not math.isfinite(value):
            kind = BAD_KINDS[0] if math.isnan(value) else BAD_KINDS[1 if value > 0 else 2]
            yield {"x": at, "step": int(step), "kind": kind}


def answer(run: OpenRun, metrics: Sequence[MetricName], by: By, view: View) -> dict[str, Any]:
    """`range` is the whole extent of all asked curves, which their columns divide."""
    found = [series_of(run, metric, by) for metric in metrics]
    extent, view = extent_of(found), view.placed(found)
    told = [
        {"metric": metric.text, **curve_of(each, view, extent).as_facts(by != "step")}
        for metric, each in zip(metrics, found, strict=True)
    ]
    return {"curves": told, "range": list(extent) if extent is not None else None, "view": view.range, "by": by}


def csv_lines(run: OpenRun, metrics: Sequence[MetricName], by: By = "step", view: View | None = None) -> Iterator[str]:
    """All points of the range as they were logged: metric, step, value; before it, the place on another axis."""
    yield f"metric,{_csv_places(by)},value\n"
    for metric in metrics:
        yield from _csv_rows((metric.text,), series_of(run, metric, by), by, view or View())


def csv_lines_of_runs(
    runs: Sequence[tuple[str, OpenRun]], metric: MetricName, by: By = "step", view: View | None = None
) -> Iterator[str]:
    """Of several runs, with their names before it."""
    yield f"run,metric,{_csv_places(by)},value\n"
    for name, run in runs:
        yield from _csv_rows((name, metric.text), series_of(run, metric, by), by, view or View())


def _csv_places(by: By) -> str:
    return "step" if by == "step" else f"step,{'seconds' if by == 'time' else by}"


def _csv_rows(names: Sequence[str], series: Series | None, by: By, view: View) -> Iterator[str]:
    if series is None:
        return
    head = ",".join(map(csv_text, names))
    low, high = _range(series, view, None)
    begin, end = np.searchsorted(series.x, low, "left"), np.searchsorted(series.x, high, "right")
    for start in range(int(begin), int(end), CSV_ROWS):
        part = slice(start, min(start + CSV_ROWS, int(end)))
        places = [f"{int(step)}" for step in series.steps[part].tolist()]
        if by != "step":
            places = [f"{step},{x!r}" for step, x in zip(places, as_list(series.x[part]), strict=True)]
        pairs = zip(places, series.values[part].tolist(), strict=True)
        yield "".join(f"{head},{place},{value!r}\n" for place, value in pairs)


def csv_text(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    safe = f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
    return '"' + safe.replace('"', '""') + '"' if set(safe) & set(',"\n\r') else safe
