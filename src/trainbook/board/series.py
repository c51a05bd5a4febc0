"""A metric of a run as steps and values, and where its points lie: by step, tokens, time or FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from trainbook.board.answers import Refused
from trainbook.board.records import OpenRun
from trainbook.runs.columns import are_flags, are_logged, are_numbers
from trainbook.runs.schema import METRICS, bounded

By = Literal["step", "tokens", "time", "flops"]
FLOPS_PER_TOKEN = 6  # and parameter: two for the forward pass, four for the backward pass
LONG_AGO = 1e8  # seconds: less is since a beginning, more since 1970


@dataclass(frozen=True)
class MetricName:
    """`loss`, `eval:loss`, `grad_norms:body.blocks.0`."""

    text: str
    split: str
    name: str
    part: str | None = None

    @classmethod
    def of(cls, text: str) -> MetricName:
        split, rest = ("eval", text[5:]) if text.startswith("eval:") else ("train", text)
        name, colon, part = rest.partition(":")
        is_nested = bool(colon) and name in METRICS and METRICS[name].per is not None
        return cls(text, split, name if is_nested else rest, part if is_nested else None)


@dataclass(frozen=True)
class Series:
    """In rising order of `x`. A value is NaN where `is_bad` says so, or where there is a gap."""

    x: np.ndarray
    steps: np.ndarray
    values: np.ndarray
    gaps: np.ndarray  # places before which nothing was logged, although rows were written


def by_of(text: str) -> By:
    if text not in get_args(By):
        raise Refused(400, f"by: must be one of {', '.join(get_args(By))}, but got {text[:40]!r}.")
    return text  # pyright: ignore[reportReturnType]


def series_of(run: OpenRun, metric: MetricName, by: By) -> Series | None:
    """None where the run has no such metric."""
    steps, values, gaps = _nested(run, metric) if metric.part is not None else _plain(run, metric)
    if not len(steps):
        return None
    x = steps if by == "step" else _along(run, by, steps)
    kept = np.isfinite(x)
    if not kept.all():
        places = np.flatnonzero(kept)
        gaps = np.unique(np.searchsorted(places, gaps))
        x, steps, values = x[kept], steps[kept], values[kept]
        gaps = gaps[gaps < len(x)]
    if len(x) and (np.diff(x) < 0).any():
        order = np.argsort(x, kind="stable")
        x, steps, values, gaps = x[order], steps[order], values[order], np.zeros(0, int)
    return Series(x, steps, values, gaps) if len(x) else None


def _plain(run: OpenRun, metric: MetricName) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps_of, values_of, rows_of, before = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, int)], 0
    for steps, values in run.record.rows(metric.split).blocks("step", metric.name):
        kept = are_numbers(values) | are_flags(values)
        found = values[kept]
        if (flags := are_flags(found)).any():
            found = np.where(flags, (found.view(np.uint64) & np.uint64(1)) == 0, found)
        steps_of.append(steps[kept])
        values_of.append(found)
        rows_of.append(np.flatnonzero(kept) + before)
        before += len(steps)
    return np.concatenate(steps_of), np.concatenate(values_of), _gaps(np.concatenate(rows_of))


def _gaps(rows: np.ndarray) -> np.ndarray:
    """Where far more rows than usual lack the metric. One that is sampled lacks it in a regular way."""
    between = np.diff(rows)
    if not len(between):
        return np.zeros(0, int)
    usual = max(float(np.median(between)), float(np.percentile(between, 90)))
    return np.flatnonzero(between > 3 * usual) + 1


def _nested(run: OpenRun, metric: MetricName) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    found = nested_of(run, metric.split, metric.name).get(str(metric.part))
    return (*found, np.zeros(0, int)) if found is not None else (np.zeros(0), np.zeros(0), np.zeros(0, int))


def nested_of(run: OpenRun, split: str, name: str) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """By part; rows are read one by one for it, once."""
    known = run.nested.get((split, name))
    if known is None:
        lists: dict[str, tuple[list[int], list[float]]] = {}
        for row in run.record.rows(split).having(name):
            parts = row[name]
            for part, value in parts.items() if isinstance(parts, dict) else ():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    steps, values = lists.setdefault(str(part), ([], []))
                    steps.append(row["step"])
                    values.append(bounded(value))
        known = {part: (np.array(steps, float), np.array(values, float)) for part, (steps, values) in lists.items()}
        run.nested[split, name] = known
    return known


def _along(run: OpenRun, by: By, steps: np.ndarray) -> np.ndarray:
    """Where these steps lie. Between two rows that say it, on the straight line; beyond the last, at the last."""
    known = _clock(run) if by == "time" else _tokens(run)
    if known is None:
        raise Refused(400, f"run {run.record.name!r} did not log {'tokens' if by == 'flops' else by}.")
    places = np.interp(steps, *known)
    if by != "flops":
        return places
    parameters = run.record.facts.get("num_parameters")
    if not isinstance(parameters, (int, float)) or not parameters > 0:
        raise Refused(400, f"the number of parameters of run {run.record.name!r} is not known, so its FLOPs are not.")
    with np.errstate(all="ignore"):  # of a number that nobody expects
        return FLOPS_PER_TOKEN * float(parameters) * places


def _tokens(run: OpenRun) -> tuple[np.ndarray, np.ndarray] | None:
    for split in ("train", "eval"):
        steps, tokens = _finite(run, split, "tokens")
        if len(steps):
            return np.append(0.0, steps), np.append(0.0, np.maximum.accumulate(tokens))
    return None


def _clock(run: OpenRun) -> tuple[np.ndarray, np.ndarray] | None:
    """Seconds of training until each step: pauses between a stop and a resume are left out where steps say how long
    they took."""
    steps, seconds = _finite(run, "train", "step_seconds")
    if len(steps):
        return np.append(0.0, steps), np.append(0.0, np.cumsum(seconds * np.diff(steps, prepend=0)))
    for split in ("train", "eval"):
        steps, times = _finite(run, split, "time")
        if len(steps):
            first = times[0] if times[0] > LONG_AGO else 0.0
            return steps, np.maximum.accumulate(times) - first
    return None


def _finite(run: OpenRun, split: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    steps, values = run.record.rows(split).columns("step", name)
    kept = are_logged(values) & are_numbers(values) & np.isfinite(values)
    return steps[kept], values[kept]


def has_axis(run: OpenRun) -> list[By]:
    """The axes that the run's curves can lie along."""
    found: list[By] = ["step"]
    has_tokens = _tokens(run) is not None
    if has_tokens:
        found.append("tokens")
    if _clock(run) is not None:
        found.append("time")
    if has_tokens and isinstance(run.record.facts.get("num_parameters"), (int, float)):
        found.append("flops")
    return found


def as_list(values: np.ndarray) -> list[Any]:
    """Whole numbers as such."""
    if (
        len(values)
        and np.isfinite(values).all()
        and (values == np.floor(values)).all()
        and np.abs(values).max() < 2**53
    ):
        return values.astype(np.int64).tolist()
    return values.tolist()
