"""Runs side by side: their curves, mean and range of each group, what differs, and what the difference shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainbook.board.answers import Refused, text_of
from trainbook.board.board import Board
from trainbook.board.curves import View, curve_of, extent_of
from trainbook.board.run_view import NOT_DRAWN, TITLES
from trainbook.board.series import By, MetricName, Series, series_of
from trainbook.knobs.aliases import by_path
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.own_module import applies_to_fit
from trainbook.report.seed_groups import FAULTS, group_name, repeats_of

MOST_RUNS = 100
MOST_COLUMNS = 20_000  # of all curves together: with many runs, each pixel column is wider
BAND_COLUMNS = 400
LONGEST = 300

Facts = dict[str, Any]


def compare_view(
    board: Board, ids: Sequence[str], metric: str | None, by: By, view: View, *, with_groups: bool
) -> Facts:
    places, summaries = [board.place(id, "run") for id in ids], [board.summary(id) for id in ids]
    metrics = common_metrics(summaries)
    name = MetricName.of(metric or _usual(metrics))
    runs = board.lights.open(places, name, by)
    found = [series_of(run, name, by) for run in runs]
    if not any(each is not None for each in found):
        raise Refused(400, f"no run has {name.text!r}. They have {', '.join(each['name'] for each in metrics[:20])}.")
    extent = extent_of(found)
    width = max(100, min(view.width, MOST_COLUMNS // len(runs)))
    placed = view.placed(found)
    narrowed = View(width, placed.low, placed.high)
    curves = []
    for place, summary, series in zip(places, summaries, found, strict=True):
        facts = curve_of(series, narrowed, extent).as_facts(by != "step")
        told = {"run": place.id, "name": summary["name"], "group": summary.get("group"), "metric": name.text}
        curves.append({**told, **facts})
    return {
        "metric": name.text,
        "by": by,
        "range": list(extent) if extent is not None else None,
        "view": narrowed.range,
        "metrics": metrics,
        "curves": curves,
        "bands": bands_of(summaries, found, narrowed, extent) if with_groups else [],
        "differences": differences_of(summaries),
    }


def common_metrics(summaries: Sequence[Facts]) -> list[Facts]:
    """That two runs or more have, as the page of a run calls them."""
    counts: Counter[str] = Counter()
    for summary in summaries:
        names = (name for name in summary.get("metrics", ()) if name not in NOT_DRAWN)
        counts.update(f"eval:{name[5:]}" if name.startswith("eval_") else name for name in names)
    least = min(2, len(summaries))
    first = ("eval:loss", "loss", "eval:accuracy", "learning_rate", "grad_norm", "tokens_per_second")
    kept = sorted(
        (name for name, count in counts.items() if count >= least),
        key=lambda name: (first.index(name) if name in first else len(first), name),
    )
    return [{"name": name, "title": _title(name)} for name in kept]


def _title(name: str) -> str:
    found = MetricName.of(name)
    title = TITLES.get(found.name, found.name.replace("_", " ").capitalize())
    return f"{title}, validation" if found.split == "eval" else title


def _usual(metrics: Sequence[Facts]) -> str:
    if not metrics:
        raise Refused(400, "these runs have no metric in common.")
    return metrics[0]["name"]


def bands_of(
    summaries: Sequence[Facts],
    found: Sequence[Series | None],
    view: View,
    extent: tuple[float, float] | None,
) -> list[Facts]:
    """Of each group of two seeds or more: the mean over one run of each, and the lowest and highest of them."""
    groups: dict[str, list[int]] = {}
    repeats = repeats_of(each for place, each in enumerate(summaries) if found[place] is not None)
    for place, summary in enumerate(summaries):
        if summary.get("group") and found[place] is not None and summary["id"] not in repeats:
            groups.setdefault(summary["group"], []).append(place)
    bands = []
    for group, places in groups.items():
        series = [each for place in places if (each := found[place]) is not None]
        if len(series) < 2 or extent is None:
            continue
        band = _band(series, view, extent)
        ids, names = ([summaries[place][what] for place in places] for what in ("id", "name"))
        bands.append({"group": group, "name": group_name(names), "runs": ids, **band})
    return bands


def _band(series: Sequence[Series], view: View, extent: tuple[float, float]) -> Facts:
    """In as many columns as the view has, where all runs have been. What is not finite in one run has no mean."""
    low = extent[0] if view.low is None else view.low
    high = extent[1] if view.high is None else view.high
    columns = min(view.width, BAND_COLUMNS)
    middles = low + (np.arange(columns) + 0.5) * ((high - low) or 1.0) / columns
    rows = np.stack([_means(each, low, high, columns, middles) for each in series])
    begin, end = max(float(each.x[0]) for each in series), min(float(each.x[-1]) for each in series)
    half = ((high - low) or 1.0) / columns / 2
    kept = (middles >= begin - half) & (middles <= end + half)
    rows, middles = rows[:, kept], middles[kept]
    is_known: list[bool] = np.isfinite(rows).all(axis=0).tolist()  # pyright: ignore[reportAssignmentType]
    told = {"x": middles.tolist()}
    for name, values in (("mean", rows.mean(axis=0)), ("low", rows.min(axis=0)), ("high", rows.max(axis=0))):
        told[name] = [value if known else None for value, known in zip(values.tolist(), is_known, strict=True)]
    return told


def _means(series: Series, low: float, high: float, columns: int, middles: np.ndarray) -> np.ndarray:
    """The mean of each column; between two that have points, on the straight line."""
    numbers = np.floor((series.x - low) / ((high - low) or 1.0) * columns)
    numbers = np.where(series.x == high, columns - 1, numbers)
    inside = (numbers >= 0) & (numbers < columns)
    if not inside.any():
        return np.interp(middles, series.x, series.values)
    chosen, values = numbers[inside].astype(int), series.values[inside]
    starts = np.flatnonzero(np.diff(chosen, prepend=-1))
    counts = np.diff(np.append(starts, len(chosen)))
    with np.errstate(all="ignore"):
        means = np.add.reduceat(values, starts) / counts
        outside_x, outside = series.x[~inside], series.values[~inside]
        x = np.concatenate([outside_x, middles[chosen[starts]]])
        order = np.argsort(x, kind="stable")
        return np.interp(middles, x[order], np.concatenate([outside, means])[order])


def differences_of(summaries: Sequence[Facts]) -> list[Facts]:
    """The settings of which two known values differ; None where a run does not say its own."""
    settings = [_known_settings(each) for each in summaries]
    found = []
    for path in dict.fromkeys(path for each in summaries for path in each["settings"]):
        known = [value for each in settings if (value := each(path)) is not UNKNOWN]
        if any(value != known[0] for value in known[1:]):
            values = [None if (value := each(path)) is UNKNOWN else _shown(value) for each in settings]
            found.append({"path": path, "values": values})
    if any(each.get("faults") for each in summaries):
        faults = [", ".join(each.get("faults") or ()) or "none" for each in summaries]
        if len(set(faults)) > 1:
            found.append({"path": FAULTS, "values": [text_of(each, LONGEST) for each in faults]})
    order = {FAULTS: -1, **{path: place for place, path in enumerate(by_path())}}
    return sorted(found, key=lambda each: order.get(each["path"], len(order)))


UNKNOWN = object()


def _known_settings(summary: Facts) -> Callable[[str], Any]:
    """A run of ours has the default of what its summary does not name."""
    given, origin = summary["settings"], summary.get("origin")

    def value(path: str) -> Any:
        if path in given or path not in by_path():
            return given.get(path, UNKNOWN)
        is_ours = origin == "trainbook" or (origin == "fit" and applies_to_fit(path))
        return by_path()[path].field.default if is_ours else UNKNOWN

    return value


def _shown(value: Any) -> str:
    return text_of(yaml_value(value), LONGEST)
