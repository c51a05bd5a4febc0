"""The runs of a folder as rows, and as a table on the terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.errors import RunFolderError, TrainbookError, without_stop
from trainbook.nearest import nearest_run
from trainbook.report.run_row import Row, run_row
from trainbook.runs import RunFolder, list_runs
from trainbook.runs.folder import is_study
from trainbook.runs.query import full_name, metrics_of, parse_query, sort_rows, value_of
from trainbook.runs.query_hints import why_none
from trainbook.runs.schema import METRICS, fixed

if TYPE_CHECKING:
    from rich.console import Console

OF_STUDIES = ("trials", "runs")  # folders in the folder of a study
NEWEST_FIRST = "-started"
STYLES = {
    "failed": "red",
    "diverged": "red",
    "abandoned": "yellow",
    "interrupted": "yellow",
    "running": "cyan",
    "finished": "green",
}
IN_THE_TABLE = ("name", "status", "step", "max_steps", "metric", "started", "tag", "note", "findings")
LONGEST_NOTE = 40
BEST = "best validation"
TEXTS = ("status", BEST, "findings", "started", "labels")
DISPENSABLE = ("started", "labels", "findings", BEST)  # where the terminal is narrow, in this order
WIDE, NAME_WIDTH, LEAST_WIDTH, GAP = 1_000, 16, 16, 3


@dataclass(frozen=True)
class RunsList:
    rows: list[Row]  # those that were asked for
    fields: list[str]  # that they were chosen and sorted by, but for those that a table has anyway
    num_archived: int  # that are not shown for being archived
    num_others: int  # that the query does not match
    studies: list[Path] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    why_none: str = ""  # matches the query


def list_rows(folder: Path, query: str = "", sort: str = NEWEST_FIRST, *, with_archived: bool = False) -> RunsList:
    """The runs in a folder of runs, or of a study."""
    runs, studies = _runs_in(folder)
    rows, notices = [], []
    for run in runs:
        try:
            row = run_row(run)
        except TrainbookError as error:  # of a damaged manifest, or one of a later version
            notices.append(f"{without_stop(error)}.")
            continue
        rows.append(row)
        notices += row.pop("notices")
    metrics = metrics_of(rows)
    asked_for = parse_query(query, metrics)
    asked = [row for row in rows if asked_for.matches(row)]
    why = why_none(rows, query) if not asked else ""
    shown = sort_rows([row for row in asked if with_archived or not row["archived"]], sort)
    names = dict.fromkeys([*asked_for.names, full_name(sort.removeprefix("-"), metrics)])
    fields = [name for name in names if name not in IN_THE_TABLE]
    return RunsList(shown, fields, len(asked) - len(shown), len(rows) - len(asked), studies, notices, why)


def _runs_in(folder: Path) -> tuple[list[RunFolder], list[Path]]:
    if not folder.is_dir():
        beside = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        near = nearest_run(folder.name, beside)
        hint = f" Did you mean {folder.parent / near}?" if near else ""
        raise RunFolderError(f"there is no folder {folder}.{hint}")
    if RunFolder(folder).manifest.is_file():
        raise RunFolderError(f"{folder} is a run. To see it: trainbook report {shlex.quote(str(folder))}")
    if is_study(folder):
        return [run for place in OF_STUDIES for run in list_runs(folder / place)], []
    studies = [path for path in sorted(folder.iterdir()) if path.is_dir() and is_study(path)]
    return list_runs(folder), studies


def print_rows(found: RunsList, console: Console) -> None:
    """Also the fields that the runs were chosen and sorted by."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    columns: dict[str, list[Any]] = {
        "status": [Text(_status(row), style=STYLES.get(row["status"], "")) for row in found.rows],
        "steps": [steps_text(row) for row in found.rows],
        BEST: [best_text(row) for row in found.rows],
        "findings": [_findings(row) for row in found.rows],
        **{_head(name, found.rows): [_shown(value_of(row, name)) for row in found.rows] for name in found.fields},
        "started": [_when(row["started"]) for row in found.rows],
        "labels": [_labels(row) for row in found.rows],
    }
    shown, left_out = _fitting({head: cells for head, cells in columns.items() if any(cells)}, found, console)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", style="bold", overflow="fold")
    for head in shown:
        side: Any = "left" if head in TEXTS else "right"
        table.add_column(head, justify=side, overflow="fold", no_wrap=head != "labels")
    for number, row in enumerate(found.rows):
        cells = [cells[number] for cells in shown.values()]
        table.add_row(row["name"], *cells, style="dim" if row["archived"] else None)
    console.print(table)
    if left_out:
        console.print(f"Left out on this narrow terminal: {', '.join(left_out)}.", style="dim")


def _head(field: str, rows: list[Row]) -> str:
    """Of a column: metrics of the newest rows are named apart from those of the best evaluation."""
    name = field.split(".")[-1]
    if not any(field in row.get("metrics", ()) for row in rows):
        return name
    side, name = ("validation", name[5:]) if name.startswith("eval_") else ("training", name)
    is_judged = name in METRICS and METRICS[name].higher_is_better is not None
    return f"newest {side} {name.replace('_', ' ')}" if is_judged else name


def _fitting(
    columns: dict[str, list[Any]], found: RunsList, console: Console
) -> tuple[dict[str, list[Any]], list[str]]:
    """Those that a terminal, or $COLUMNS, has room for, and the others; elsewhere all."""
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = WIDE
        return columns, []
    widths = {head: max(map(len, [head, *map(str, cells)])) for head, cells in columns.items()}
    widths |= {"labels": LEAST_WIDTH} if "labels" in widths else {}
    name = min(NAME_WIDTH, max(map(len, [row["name"] for row in found.rows])))
    left_out = []
    for head in DISPENSABLE:
        if head in widths and name + sum(width + GAP for width in widths.values()) > console.width:
            left_out.append(head)
            del widths[head]
    return {head: columns[head] for head in widths}, left_out


def _status(row: Row) -> str:
    left = row["seconds_left"]
    return f"running, {_rough(left)} left" if left is not None else row["status"]


def steps_text(row: Row) -> str:
    total = row["total_steps"]
    is_short = total is not None and row["step"] < total
    return f"{row['step']:,} of {total:,}" if is_short else f"{row['step']:,}"


def best_text(row: Row) -> str:
    """The best evaluation, or why there is none."""
    best = row["metric"]
    if best is None:
        return row["metric_note"]
    is_share = METRICS[best["name"]].unit == "share" if best["name"] in METRICS else False
    value = f"{best['value']:.1%}" if is_share else fixed(best["value"], 4)
    return f"{best['name'].replace('_', ' ')} {value}"


def _findings(row: Row) -> str:
    if row["findings"] is None:
        return "not yet" if row["status"] == "running" else "not judged"
    found = row["findings"]
    counts = [(found.get(name, 0), name) for name in ("error", "warning")]
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count)


def _labels(row: Row) -> str:
    note = " ".join(row["note"].split())
    note = note if len(note) <= LONGEST_NOTE else f"{note[: LONGEST_NOTE - 1]}…"
    return "; ".join(part for part in (", ".join(row["tags"]), note, "archived" * row["archived"]) if part)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _when(moment: str | None) -> str:
    """In local time."""
    try:
        return "" if moment is None else f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def _rough(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def as_json(found: RunsList) -> Mapping[str, Any]:
    return {"runs": found.rows, "archived": found.num_archived, "studies": [str(path) for path in found.studies]}
