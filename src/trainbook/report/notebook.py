"""A run in a notebook: it shows itself, its metrics are a data frame, and a metric is a figure."""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.errors import RunFolderError, UserError
from trainbook.nearest import did_you_mean
from trainbook.report.run_row import Row, record_row, run_row
from trainbook.report.runs_table import best_text, steps_text
from trainbook.runs import RunFolder
from trainbook.runs.schema import Split, fixed
from trainbook.terminal import visible

if TYPE_CHECKING:
    from trainbook.runs.run_record import RunRecord
    from trainbook.runs.table import TableRows

FRAMES = ("pandas", "polars")  # one that is imported already comes first
FIRST_COLUMNS = ("step", "segment", "split", "time")
LONGEST_NOTE = 300


class _Shown:
    """What runs of ours and of other tools have in a notebook."""

    name: str

    def record(self) -> RunRecord:
        """The rows of training and of evaluations, the settings and the events, as they are now."""
        raise NotImplementedError

    def _row(self) -> Row:
        raise NotImplementedError

    def _blocks(self, split: Split | None) -> Iterable[list[Row]]:
        raise NotImplementedError

    def frame(self, split: Split | None = None) -> Any:
        """The metrics as a data frame of pandas or polars, a row for each logged row. `split`: "train" or "eval"
        alone. A metric by layer has a column for each, such as `grad_norms/body.blocks.0`."""
        if split not in (None, "train", "eval"):
            raise UserError(f'frame: split must be "train", "eval" or None, but got {split!r}.')
        library = _frames()
        rows = [_flat(row) for block in self._blocks(split) for row in block]
        names = dict.fromkeys(name for row in rows for name in row)
        ordered = [*(name for name in FIRST_COLUMNS if name in names), *(n for n in names if n not in FIRST_COLUMNS)]
        columns = {name: [row.get(name) for row in rows] for name in ordered}
        return library.DataFrame(columns, strict=False) if library.__name__ == "polars" else library.DataFrame(columns)

    def plot(self, metric: str = "loss") -> Any:
        """A figure of a metric by step, with what the guard did. `train_` or `eval_` before it chooses the split."""
        from trainbook.charts.run import MARKS, loss_figure, trace
        from trainbook.runs.table import as_rows

        record = self.record()
        name, splits = _split_and_name(record, metric)
        rows = [record.rows(split) if split in splits else as_rows([]) for split in ("train", "eval")]
        train, evaluations = (trace(each, name) for each in rows)
        marked = [event for event in record.events if event["kind"] in MARKS and event.get("count") != 0]
        events = {kind: [event["step"] for event in marked if event["kind"] == kind] for kind in MARKS}
        figure = loss_figure(train, evaluations, None, events, name.replace("_", " "))
        figure.suptitle(visible(self.name).replace("$", "\\$"), fontsize=10)
        return figure

    def _repr_html_(self) -> str:
        try:
            return _html(self._row())
        except RunFolderError as error:
            return f"<p>{_text(error)}</p>"


class OpenedRun(_Shown, RunFolder):
    """A run folder, as `trainbook.open_run` gives it."""

    def record(self) -> RunRecord:
        from trainbook.runs.run_record import read_run

        return read_run(self)

    def _row(self) -> Row:
        return run_row(self, with_spark=True)

    def _blocks(self, split: Split | None) -> Iterable[list[Row]]:
        return self.metrics(split).plain_blocks()


class ForeignRun(_Shown):
    """A run that another tool wrote, as `trainbook.open_run` gives it."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.name, self.path = record.name, record.path

    def __repr__(self) -> str:
        return f"<run {self.name!r}, logged by {self._record.facts.get('tool', self._record.origin)}>"

    def record(self) -> RunRecord:
        return self._record

    def metrics(self, split: Split | None = None) -> list[Row] | TableRows:
        """The rows of training, of evaluations, or of both by step."""
        if split is not None:
            return self._record.rows(split)
        both = [*self._record.rows("train"), *self._record.rows("eval")]
        return sorted(both, key=lambda row: row["step"])

    def events(self) -> list[Row]:
        return self._record.events

    def _row(self) -> Row:
        from trainbook.runs.digest import LossBuckets

        losses = LossBuckets()
        steps, values = self._record.series("loss")
        losses.add([value if math.isfinite(value) else math.inf for value in values], lambda at: int(steps[at]))
        return {**record_row(self._record), "spark": losses.values(), "spark_steps": losses.steps()}

    def _blocks(self, split: Split | None) -> Iterable[list[Row]]:
        return [list(self.metrics(split))]


def open_any(path: str | Path) -> OpenedRun | ForeignRun:
    """A run folder, or the log of another tool."""
    try:
        return OpenedRun(RunFolder.open(path, "runs").path)
    except RunFolderError:
        from trainbook.runs.foreign import read_foreign

        found = read_foreign(Path(path).expanduser()) if Path(path).expanduser().exists() else None
        if found is None:
            raise
        return ForeignRun(found)


# Data frames


def _frames() -> Any:
    name = next((name for name in FRAMES if name in sys.modules), None)
    name = name or next((name for name in FRAMES if find_spec(name) is not None), None)
    if name is None:
        raise UserError("frame() needs the package 'pandas' or 'polars'. Install one: pip install pandas")
    return import_module(name)


def _flat(row: Row) -> Row:
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": item for key, item in value.items() if isinstance(item, (int, float))}
        elif isinstance(value, (int, float, str)):
            flat[name] = int(value) if name in ("step", "segment") else value
    return flat


# Figures


def _split_and_name(record: RunRecord, asked: str) -> tuple[str, tuple[str, ...]]:
    from trainbook.runs.foreign.metrics import place

    have = {split: record.rows(split).number_names for split in ("train", "eval")}
    split, metric, _ = place(asked)
    is_known = any(asked in names for names in have.values())
    name = asked if is_known else metric or asked
    splits = ("train", "eval") if split is None or is_known else (split,)
    logged = tuple(split for split in splits if name in have[split])
    if not logged:
        known = sorted((have["train"] | have["eval"]) - {"step", "segment", "time", "best"})
        raise UserError(f"plot: '{asked}' was not logged; {', '.join(known)} were.{did_you_mean(asked, known)}")
    return name, logged


# HTML: in the colours of the notebook, whichever they are


BLUE, RED = "#3a87c8", "#d0482a"
STATUS = {"finished": "#2e8b57", "running": BLUE, "failed": RED}
WIDTH, HEIGHT = 320, 48
SPAN = 30.0  # from the lowest to the highest loss


def _html(row: Row) -> str:
    colour = STATUS.get(row["status"], "#b8860b")
    style = f"border:1px solid {colour};color:{colour};border-radius:.7em;padding:0 .5em"
    badge = f'<span style="{style}">{_text(row["status"])}</span>'
    facts = {
        "steps": steps_text(row),
        "best" if row["metric"] else "loss": _best(row),
        "doctor": _findings(row),
        "guard": f"{row['guard']:,} action{'s' * (row['guard'] != 1)}" if row["guard"] else "",
        "recipe": row["recipe"],
        "tags": ", ".join(row["tags"]),
        "note": row["note"][:LONGEST_NOTE],
        "folder": row["path"],
    }
    lines = "".join(
        f'<tr><th style="text-align:left;padding:0 1em 0 0;font-weight:600">{_text(name)}</th>'
        f'<td style="text-align:left;padding:0;white-space:pre-wrap">{_text(value)}</td></tr>'
        for name, value in facts.items()
        if value
    )
    return (
        f'<div style="max-width:48em;color:inherit"><p style="margin:0 0 .4em"><b>{_text(row["name"])}</b> {badge}</p>'
        f'{_sparkline(row["spark"], row["spark_steps"])}<table style="border-collapse:collapse">{lines}</table>'
        f'<p style="opacity:.7;margin:.4em 0 0">.frame() has the metrics, .plot("loss") draws one.</p></div>'
    )


def _best(row: Row) -> str:
    at = f" at step {row['metric']['step']:,}" if row["metric"] else ""
    newest = "" if row["loss"] is None else f"; newest training loss {fixed(row['loss'], 4)}"
    return f"{best_text(row)}{at}{newest}"


def _findings(row: Row) -> str:
    found = row["findings"]
    if found is None:
        return ""
    counts = [f"{found[name]} {name}{'s' * (found[name] != 1)}" for name in ("error", "warning") if found.get(name)]
    return " and ".join(counts) or "no error or warning during the run"


def _sparkline(values: list[float], steps: list[int]) -> str:
    """The training loss over the steps, on a log scale where its span is wide; a red mark where it is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if len(values) < 2 or not finite:
        return ""
    is_wide = min(finite) > 0 and max(finite) > SPAN * min(finite)
    heights = {value: math.log(value) if is_wide else value for value in finite}
    low, high = min(heights.values()), max(heights.values())
    marks: list[str] = []
    pieces: list[list[tuple[float, float]]] = [[]]
    first, span = min(steps), max(steps) - min(steps) or 1
    for step, value in zip(steps, values, strict=True):
        x = round(2 + (step - first) * (WIDTH - 4) / span, 1)
        if math.isfinite(value):
            share = (heights[value] - low) / (high - low) if high > low else 0.5
            pieces[-1].append((x, round(HEIGHT - 4 - share * (HEIGHT - 8), 1)))
        else:
            marks.append(_dot(x, 4, RED))
            pieces.append([])
    lines = [_line(piece) if len(piece) > 1 else _dot(piece[0][0], piece[0][1], BLUE) for piece in pieces if piece]
    label = f"training loss from {fixed(values[0], 4)} to {fixed(values[-1], 4)}"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{_text(label)}">{"".join([*lines, *marks])}</svg>'


def _line(points: list[tuple[float, float]]) -> str:
    places = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>'


def _text(value: Any) -> str:
    return html.escape(visible(str(value)))
