"""A comparison as a page: what it shows, the curves, the runs, and the settings in which they differ."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.errors import RunError, UserError
from trainbook.knobs.dumping import yaml_value
from trainbook.report.card import duration
from trainbook.report.compare import ASIDE, SEED, Comparison, Group, Pairing, summary
from trainbook.report.compare_verdict import conclusion, final_text, number, place_text, remarks, what, why_no_interval
from trainbook.report.compare_view import as_json, spread_texts
from trainbook.report.page import Bullets, Commands, Page, PageTable, Text, charts
from trainbook.runs import write_text_atomically
from trainbook.runs.run_record import counted

NAMED = 3  # runs in the title
BAND_PLACES = 120
MOST_VALUE = 200  # letters of a setting


def compare_page(comparison: Comparison) -> Page:
    labels = [side.label for side in comparison.sides]
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    name = f"{', '.join(labels[:NAMED])}{more}" if more else " and ".join([", ".join(labels[:-1]), labels[-1]])
    page = Page(name, f"comparison of {what(comparison)}", f"{len(labels)} runs", conclusion(comparison))
    page.footer = "Made by trainbook compare from the files of the runs."
    page.add("Curves", *_charts(comparison))
    page.add("What the difference shows", _pairings(comparison), *_remarks(comparison))
    page.add("Runs", _runs(comparison), _groups(comparison))
    page.add("Settings that differ", *_differences(comparison))
    page.add("Not logged by all", _missing(comparison), is_folded=True)
    page.add("Next", Commands(_next(comparison)))
    return page


def check_html(path: Path) -> None:
    """Before the work is done."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html: the file must end in .html, but got '{path}'.")
    if not path.parent.is_dir():
        raise UserError(f"--html: there is no folder '{path.parent}'.")
    if path.is_dir():
        raise UserError(f"--html: '{path}' is a folder, but a file is needed.")


def write_page(comparison: Comparison, path: Path) -> None:
    try:
        write_text_atomically(path, compare_page(comparison).as_html())
    except RunError as error:
        raise UserError(str(error)) from None


# Curves


def _charts(comparison: Comparison) -> list[Any]:
    from trainbook.charts.comparison import curves_figure, differences_figure

    if not comparison.groups:
        return [Text("No curves: no run has a finite value.")]
    answer = as_json(comparison)
    unit = answer["unit"] or comparison.metric
    ends = [
        f"{side.label} {number(side.curve.at(side.curve.end))}" for side in comparison.sides if side.curve is not None
    ]
    label = f"{what(comparison).capitalize()} by {comparison.by}. At the end: {', '.join(ends)}"
    drawn = partial(_figure, comparison, curves_figure, unit)
    caption = "Of long curves, the lowest and highest of each stretch are drawn, so no spike is lost."
    if comparison.has_repeats:
        caption += " Runs that differ in the seed alone have one colour, with their mean and range."
    wanted = [(drawn, label, caption, "")]
    if any(len(each["way"]) > 1 for each in answer["comparisons"]):
        said = [f"{e['other']} minus {e['reference']}: {number(e['difference'])}" for e in answer["comparisons"]]
        caption = "Above 0: higher than the first. The bar is the 95 % interval over seeds, where there are several."
        wanted.append((partial(differences_figure, answer), f"Difference. {'; '.join(said)}", caption, ""))
    return charts(*wanted)


def _figure(comparison: Comparison, draw: Any, unit: str) -> Any:
    from trainbook.charts.comparison import DrawnGroup, DrawnRun

    groups = []
    for group in comparison.groups:
        curves = [(side.label, side.curve) for side in group.sides if side.curve is not None]
        runs = [DrawnRun(label, curve.places, curve.values) for label, curve in curves]
        groups.append(DrawnGroup(group.label, runs, _band(group)))
    return draw(groups, what(comparison).capitalize(), comparison.by, unit)


def _band(group: Group) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Mean and range where all seeds have values."""
    if len(group.shared) < 2 or len(group.shared[0].places) < 2:
        return None
    shared = group.shared[0].places
    places = shared[np.unique(np.linspace(0, len(shared) - 1, BAND_PLACES).round().astype(int))]
    values = np.array([[curve.at(place) for place in places.tolist()] for curve in group.shared])
    return places, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


# Tables


def _pairings(comparison: Comparison) -> PageTable:
    rows = [_pairing(comparison, pairing) for pairing in comparison.pairings]
    columns = ["comparison", "where", "values", "difference", "95 % interval", "p", "seeds"]
    corrected = "; p is corrected for the number of comparisons" if len(rows) > 1 else ""
    return PageTable(f"Each setting against the first, at equal {comparison.by}{corrected}", rows, columns)


def _pairing(comparison: Comparison, pairing: Pairing) -> list[Any]:
    estimate = pairing.estimate
    runs = len(pairing.other.sides), len(pairing.reference.sides)
    seeds = f"{estimate.pairs} pairs" if estimate is not None and estimate.pairs else " and ".join(map(str, runs))
    p = None if estimate is None else estimate.p if pairing.p is None else pairing.p
    return [
        f"{pairing.other.label} minus {pairing.reference.label}",
        place_text(comparison, pairing.at),
        f"{number(pairing.values[1])} and {number(pairing.values[0])}",
        f"{pairing.difference:+.4g}",
        why_no_interval(pairing) if estimate is None else f"{number(estimate.low)} to {number(estimate.high)}",
        "" if p is None else f"{p:.2g}",
        seeds,
    ]


def _remarks(comparison: Comparison) -> list[Any]:
    found = [f"{remark}." for remark in remarks(comparison)]
    return [Bullets(found)] if found else []


def _runs(comparison: Comparison) -> PageTable:
    rows = []
    for side in comparison.sides:
        facts, unit = summary(side, comparison.higher_is_better), counted(side.record.facts)
        best = "" if facts["best"] is None else f"{number(facts['best'])} {place_text(comparison, facts['best_at'])}"
        rows.append(
            [
                side.label,
                facts["status"],
                facts["from"],
                facts["seed"],
                f"{facts['steps']:,}",
                "" if facts["tokens"] is None else f"{facts['tokens']:,} {unit}",
                "" if facts["seconds"] is None else duration(facts["seconds"]),
                "" if facts["final"] is None and not facts["is_lost"] else final_text(facts),
                best,
            ]
        )
    columns = ["run", "status", "logged by", "seed", "steps", "seen", "time", f"final {comparison.metric}", "best"]
    return PageTable(f"{what(comparison).capitalize()}, by {comparison.by}", rows, columns)


def _groups(comparison: Comparison) -> PageTable:
    rows = []
    for group in comparison.groups if comparison.has_repeats else ():
        rows.append([group.label, len(group.sides), *spread_texts(comparison, group, "")])
    columns = ["setting", "runs", "mean", "standard deviation", "lowest", "highest", "where"]
    return PageTable("By setting", rows, columns)


def _differences(comparison: Comparison) -> list[Any]:
    labels = [side.label for side in comparison.sides]
    rows, aside = [], []
    for path, values in comparison.differences.items():
        if path.startswith(ASIDE) and path != SEED:
            aside.append(path)
            continue
        rows.append([path, *(_value(values[label]) if label in values else "unknown" for label in labels)])
    blocks: list[Any] = [PageTable("Knobs with different values", rows, ["knob", *labels])] if rows else []
    if not rows:
        known = all(side.record.settings for side in comparison.sides)
        blocks.append(Text("No knob differs." if known else "No knob differs among those that are known."))
    if aside:
        blocks.append(Text(f"Without effect on the result: {', '.join(aside)}."))
    return blocks


def _value(value: Any) -> str:
    text = yaml_value(value)
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 1]}…"


def _missing(comparison: Comparison) -> PageTable:
    rows = [[label, ", ".join(names)] for label, names in comparison.missing.items()]
    return PageTable("What others logged and a run did not", rows, ["run", "metrics"])


def _next(comparison: Comparison) -> list[tuple[str, str]]:
    commands = []
    for side in comparison.sides[:NAMED]:
        path = shlex.quote(str(side.record.path)) if side.record.path is not None else shlex.quote(side.record.name)
        commands.append((f"trainbook doctor {path}", f"show what the doctor says of {side.label}"))
    return commands
