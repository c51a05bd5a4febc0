"""A comparison as JSON, and as terminal output."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from trainbook.report.card import LEVELS
from trainbook.report.compare import ASIDE, SEED, Comparison, Group, Pairing, summary, value_text
from trainbook.report.compare_verdict import (
    COMMON,
    conclusion,
    final_text,
    number,
    place_text,
    remarks,
    seconds_text,
    what,
    why_no_interval,
)
from trainbook.report.curves import Curve
from trainbook.runs.run_record import counted
from trainbook.runs.schema import METRICS

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 40
LOGGED_BY = "logged by"
NAME_WIDTH, GAP = 10, 3  # columns of the terminal that a name needs, and that lie between two columns of a table
NARROW = 80  # columns of a terminal that has no room for wide gaps
MOST_POINTS = 400  # of a curve in the answer
MOST_VALUE = 28  # letters


def as_json(comparison: Comparison) -> dict[str, Any]:
    metric = METRICS.get(comparison.metric)
    return {
        "metric": comparison.metric,
        "split": comparison.split,
        "unit": metric.unit if metric else None,
        "higher_is_better": comparison.higher_is_better,
        "by": comparison.by,
        "runs": [summary(side, comparison.higher_is_better) for side in comparison.sides],
        "differences": {path: dict(values) for path, values in comparison.differences.items()},
        "groups": [_group(group) for group in comparison.groups],
        "comparisons": [_pairing(pairing) for pairing in comparison.pairings],
        "missing": dict(comparison.missing),
        "remarks": remarks(comparison),
        "conclusion": conclusion(comparison),
        "curves": {side.label: _points(side.curve) for side in comparison.sides if side.curve is not None},
    }


def _group(group: Group) -> dict[str, Any]:
    """Runs of one setting, with the mean and the standard deviation over seeds at the last place that all have."""
    values = group.values
    return {
        "name": group.label,
        "runs": [side.label for side in group.sides],
        "at": group.end,
        "mean": fmean(values) if values else None,
        "standard_deviation": stdev(values) if len(values) > 1 else None,
    }


def _pairing(pairing: Pairing) -> dict[str, Any]:
    estimate = pairing.estimate
    return {
        "reference": pairing.reference.label,
        "other": pairing.other.label,
        "at": pairing.at,
        "values": list(pairing.values),
        "difference": pairing.difference,
        "way": [{"at": at, "difference": difference} for at, difference in pairing.way],
        "interval": [estimate.low, estimate.high] if estimate else None,
        "why_no_interval": None if estimate else why_no_interval(pairing),
        "pairs": estimate.pairs if estimate else None,
        "p": estimate.p if estimate else None,
        "p_corrected": pairing.p,
        "p_is_exact": estimate.is_exact if estimate else None,
    }


def _points(curve: Curve) -> list[list[float]]:
    """Of a long one so many stretches, each with its mean."""
    size = -(-len(curve.places) // MOST_POINTS)
    starts = range(0, len(curve.places), size)
    ends = [min(at + size, len(curve.places)) - 1 for at in starts]
    means = [fmean(curve.values[at : at + size].tolist()) for at in starts]
    return [[place, mean] for place, mean in zip(curve.places[ends].tolist(), means, strict=True)]


def render(comparison: Comparison, console: Console) -> None:
    _print_runs(comparison, console)
    _print_differences(comparison, console)
    _print_groups(comparison, console)
    if comparison.groups:
        _print_curves(comparison, console)
    _print_way(comparison, console)
    for label, names in comparison.missing.items():
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        console.print(f"  not logged by {label}: {shown}", style="dim", highlight=False)
    for remark in remarks(comparison):
        console.print(f"  note: {remark}.", highlight=False)
    console.print()
    console.print(conclusion(comparison), highlight=False, style="bold")


def _print_runs(comparison: Comparison, console: Console) -> None:
    rows = [summary(side, comparison.higher_is_better) for side in comparison.sides]
    has_best = any(row["best"] is not None for row in rows)
    is_mixed = any(row["from"] != "Trainbook" for row in rows)
    units = [counted(side.record.facts) for side in comparison.sides]
    unit = units[0] if len(set(units)) == 1 else "tokens"
    columns = ["steps", unit, "time", f"{unit}/s", f"final {comparison.metric}"]
    table = _table("run", [*columns, *["best"] * has_best, *[LOGGED_BY] * is_mixed])
    table.title = f"{what(comparison)}, by {comparison.by}"
    for row, its_unit in zip(rows, units, strict=True):
        count = ["–" if row[name] is None else f"{row[name]:,.0f}" for name in ("steps", "tokens", "tokens_per_second")]
        if its_unit != unit:
            count[1:] = [f"{count[1]} {its_unit}", f"{count[2]} {its_unit}/s"]
        cells = [row["name"], count[0], count[1], seconds_text(row["seconds"]), count[2], final_text(row)]
        cells += [number(row["best"])] * has_best + [row["from"]] * is_mixed
        table.add_row(*cells)
    _keep_numbers_whole(table, console)
    console.print(table)


def _print_differences(comparison: Comparison, console: Console) -> None:
    console.print()
    if not comparison.differences:
        known = all(side.record.settings for side in comparison.sides)
        console.print(f"  settings: no knob differs{'' if known else ' among those that are known'}", highlight=False)
        return
    aside = [path for path in comparison.differences if path.startswith(ASIDE) and path != SEED]
    without_effect = f"without effect on the result: {', '.join(aside)}"
    if len(aside) == len(comparison.differences):
        console.print(f"  settings: no knob differs but those {without_effect}", highlight=False)
        return
    groups = [(group.label, [side.label for side in group.sides]) for group in comparison.groups]
    groups += [(side.label, [side.label]) for side in comparison.sides if side.curve is None]
    table = _table("knob that differs", [label for label, _ in groups], justify="left")
    for path, values in comparison.differences.items():
        if path not in aside:
            table.add_row(path, *(_values(path, values, runs) for _, runs in groups))
    console.print(table)
    if aside:
        console.print(f"  and, {without_effect}", style="dim", highlight=False)


def _values(path: str, values: Mapping[str, Any], runs: list[str]) -> str:
    """The values of runs that differ only in the seed and in knobs without effect on the result."""
    return ", ".join(dict.fromkeys(_value(path, values, run) for run in runs))


def _value(path: str, values: Mapping[str, Any], label: str) -> str:
    if label not in values:
        return "unknown"
    text = value_text(path, values[label])
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 1]}…"


def _print_groups(comparison: Comparison, console: Console) -> None:
    """If settings were repeated: the mean and the spread over seeds of each."""
    if not comparison.has_repeats:
        return
    table = _table("setting", ["runs", "mean", "standard deviation", "lowest", "highest", "where"])
    table.title = f"{what(comparison)}, by setting"
    for group in comparison.groups:
        table.add_row(group.label, str(len(group.sides)), *spread_texts(comparison, group, "–"))
    _keep_numbers_whole(table, console)
    console.print(table)


def spread_texts(comparison: Comparison, group: Group, none: str) -> list[str]:
    """Mean, standard deviation, lowest and highest value of a group, and where; `none` where there is none."""
    values = group.values
    if group.end is None:
        return [none] * 4 + [f"no {COMMON[comparison.by]} in common"]
    deviation = number(stdev(values)) if len(values) > 1 else none
    shown = [number(fmean(values)), deviation, number(min(values)), number(max(values))]
    return [*shown, place_text(comparison, group.end)]


def _print_curves(comparison: Comparison, console: Console) -> None:
    """All on one scale, so that their heights can be compared."""
    sides = [(side, side.curve) for side in comparison.sides if side.curve is not None]
    low, high = (float(end([end(curve.values) for _, curve in sides])) for end in (np.min, np.max))
    last = max(curve.end for _, curve in sides)
    longest = max(len(side.label) for side, _ in sides)
    scale = f"{LEVELS[0]} {number(low)}, {LEVELS[-1]} {number(high)}; right end: {place_text(comparison, last)}"
    # On a narrow terminal the curves are shorter; beside a long name, below it.
    is_beside = longest + len(scale) + 5 <= console.width
    name = longest if is_beside else 0
    width = min(WIDTH, console.width - name - 5)
    console.print()
    for side, curve in sides:
        if not is_beside:
            console.print(f"  {side.label}", highlight=False)
        console.print(f"  {side.label if is_beside else '':<{name}}  {_blocks(curve, last, low, high, width)}")
    console.print(f"  {'':<{name}}  {scale}", style="dim", highlight=False)


def _blocks(curve: Curve, last: float, low: float, high: float, width: int = WIDTH) -> str:
    """A block for each stretch, at the height of its mean; where nothing was logged, the one before goes on."""
    places = (curve.places / last * width).astype(int) if last else np.zeros(len(curve.places), int)
    bounds = np.searchsorted(np.minimum(places, width - 1), np.arange(width + 1))  # in rising order
    shown, before = "", " "
    for number_, (first, end) in enumerate(pairwise(bounds.tolist())):
        if number_ / width * last > curve.end:
            break
        if first < end:
            share = (fmean(curve.values[first:end].tolist()) - low) / (high - low) if high > low else 0.0
            before = LEVELS[round(share * (len(LEVELS) - 1))]
        shown += before
    return shown


def _print_way(comparison: Comparison, console: Console) -> None:
    for pairing in comparison.pairings:
        shown = pairing.way if len(pairing.way) <= 4 else pairing.way[-1::-2][::-1]
        steps = ", ".join(f"{difference:+.4g} {place_text(comparison, at)}" for at, difference in shown)
        console.print()
        text = f"  {pairing.other.label} minus {pairing.reference.label}: {steps}"
        console.print(text, highlight=False)


def _table(first: str, columns: list[str], justify: Any = "right") -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=True)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify=justify, overflow="fold")
    return table


def _keep_numbers_whole(table: Any, console: Console) -> None:
    """On a narrow terminal names and titles take more lines; a number that is cut off says something else."""
    room = console.width - NAME_WIDTH
    for column in table.columns[1:]:
        if column.header != LOGGED_BY:
            column.min_width = max(len(str(cell)) for cell in column.cells)
            room -= column.min_width + GAP
    for column in table.columns[1:]:  # whose words stay whole where there is room for them
        if column.header == LOGGED_BY:
            longest = max(len(word) for cell in column.cells for word in str(cell).split())
            column.min_width = longest if longest + GAP <= room else None
    if console.width < NARROW:
        table.padding = (0, 1, 0, 0)
