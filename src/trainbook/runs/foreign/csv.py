"""Files of steps: a header and a row a line, with commas, semicolons or tabs; as Lightning, Keras, W&B, people write.

Numbers of one step may stand in several rows, and cells may be empty. Lightning's `hparams.yaml` is read beside it.
"""

from __future__ import annotations

import re
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

from trainbook.bounded import tables
from trainbook.bounded.files import read_text
from trainbook.errors import UserError
from trainbook.runs.foreign.metrics import STEP_NAMES, Logged, as_step, number, place, rows_of, step_name
from trainbook.runs.foreign.vocabulary import knobs_in, names_for, read_mapping
from trainbook.runs.run_record import RunRecord

SHOWN = 80  # characters of a cell in a message
EMPTY = ("", "none", "null", "n/a", "na", "-")
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+),\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")

Lines = list[tuple[int, list[str]]]  # each row with its number in the file


def find(folder: Path) -> Path | None:
    """Lightning's metrics.csv, of the folder itself or of its only version."""
    tables = [folder / "metrics.csv"] if (folder / "metrics.csv").is_file() else []
    tables = tables or sorted(folder.glob("version_*/metrics.csv"))
    tables = tables or sorted(folder.glob("lightning_logs/version_*/metrics.csv"))
    if len(tables) > 1:
        names = ", ".join(table.parent.name for table in tables)
        raise UserError(f"{folder} must hold one run, but got {len(tables)}: {names}. Name one of them.")
    return tables[0] if tables else None


def read(path: Path) -> RunRecord:
    header, lines, separator = _table(path)
    if separator != ",":
        lines = _with_decimal_points(path, lines)
    logged, counted_in = _logged(path, header, lines)
    rows = rows_of(logged)
    settings, names = knobs_in(read_mapping(path.parent / "hparams.yaml"))
    is_only_a_log = path.name == "metrics.csv"  # then the folder has the run's name
    name = path.resolve().parent.name if is_only_a_log else path.stem
    return rows.record(path, "csv", name, settings, {"tool": "CSV", "steps_are": counted_in}, names_for(names))


def _table(path: Path) -> tuple[list[str], Lines, str]:
    """The header, the rows, and what separates their cells."""
    try:
        text = read_text(path, encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: must be a text file in UTF-8.") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = max("\t;,", key=first.count)
    reader = tables.CsvRows(text.splitlines(), separator, str(path))
    header, lines = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row) and header:
                lines.append((reader.line_num, row))
            elif any(cell.strip() for cell in row):
                header = [cell.strip() for cell in row]
                if twice := [name for name in dict.fromkeys(header) if name and header.count(name) > 1]:
                    raise UserError(f"{path}:{reader.line_num}: must name each column once, but got {twice[0]} twice.")
    except tables.Error as error:
        raise UserError(f"{path}:{reader.line_num}: must be a table, but {error}.") from None
    # A file that is still written may end inside a row.
    if lines and len(lines[-1][1]) != len(header) and not text.endswith("\n"):
        lines.pop()
    if not header or not lines:
        has = "is empty" if not header else "has no whole row below the header"
        raise UserError(f"{path}: must have a header and at least one row, but {has}.")
    if separator == ",":
        _must_have_decimal_points(path, header, lines)
    return header, lines, separator


def _must_have_decimal_points(path: Path, header: list[str], lines: Lines) -> None:
    """A comma is one of the two: a separator, or the sign before decimals."""
    line, cells = lines[0]
    if len(cells) > len(header) and all(len(row) > len(header) for _, row in lines):
        raise UserError(
            f"{path}:{line}: must have {len(header)} cells, like the header, but got {len(cells)}. If its numbers have "
            "decimal commas, separate the columns with semicolons."
        )


def _with_decimal_points(path: Path, lines: Lines) -> Lines:
    """Where numbers have decimal commas, a point stands between thousands."""
    cells = [cell.strip() for _, row in lines for cell in row]
    comma = next((cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)), None)
    if comma is None:
        return lines
    point = next((each for each in cells if DECIMAL_POINT.fullmatch(each) and not THOUSANDS.fullmatch(each)), None)
    if point is not None:
        line = next(number for number, row in lines if point in (cell.strip() for cell in row))
        raise UserError(
            f"{path}:{line}: must have decimal commas or decimal points in all numbers, but got '{comma}' and "
            f"'{point}'."
        )
    return [(line, [_with_point(cell) for cell in row]) for line, row in lines]


def _with_point(cell: str) -> str:
    text = cell.strip()
    is_number = DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text)
    return text.replace(".", "").replace(",", ".") if is_number else cell


def _logged(path: Path, header: list[str], lines: Lines) -> tuple[Logged, str]:
    header = _one_run(path, header)
    column = step_name(name for name in header if name)
    counted_in = "steps"
    if column is None and (column := next((name for name in header if place(name)[1] == "epoch"), None)) is not None:
        counted_in = "epochs"
    if column is None:
        raise UserError(_no_steps(path, header))
    logged = Logged(str(path))
    at = header.index(column)
    epoch = next((header.index(name) for name in header if name and place(name)[1] == "epoch"), None)
    counted = _Counted()
    for line, cells in lines:
        where = f"{path}:{line}"
        if len(cells) != len(header):
            raise UserError(f"{where}: must have {len(header)} cells, like the header, but got {len(cells)}.")
        step = as_step(number(cells[at]))
        if step is None:
            if cells[at].strip().lower() in EMPTY:
                continue
            raise UserError(f"{where}: {column} must be a whole number >= 0, but got '{_short(cells[at])}'.")
        if epoch is not None and counted_in == "steps":
            step = counted.on(step, number(cells[epoch]))
        for name, cell in zip(header, cells, strict=True):
            if not name or (name == column and counted_in == "steps") or cell.strip().lower() in EMPTY:
                continue
            value = _when(cell) if place(name)[1] == "time" else number(cell)
            if value is not None:
                logged.add(name, step, value)
            elif place(name)[1] not in (None, *CLOCKS):
                raise UserError(f"{where}: {name} must be a number, but got '{_short(cell)}'.")
    return logged, counted_in


CLOCKS = ("time", "seconds")  # written in many ways, such as 00:40, and not worth a refusal


class _Counted:
    """Steps that begin anew in each epoch, as `for step, batch in enumerate(loader)` counts them, counted on."""

    def __init__(self) -> None:
        self.before = 0  # steps of earlier epochs
        self.first = self.last = self.stride = 0
        self.epoch: float | None = None

    def on(self, step: int, epoch: float | None) -> int:
        if epoch is None:
            return self.before + step
        if self.epoch is None:
            self.first = step
        # A run that is resumed goes back too, but not into a later epoch, and seldom to where an epoch begins.
        elif epoch > self.epoch and step < self.last and step <= self.first + self.stride:
            self.before += self.last + max(1, self.stride) - step
            self.first = step
        elif step > self.last:
            self.stride = step - self.last
        self.last, self.epoch = step, epoch
        return self.before + step


def _short(cell: str) -> str:
    return shorten(cell, SHOWN, placeholder="…") if len(cell.split()) > 1 else cell.strip()[:SHOWN]


def _one_run(path: Path, header: list[str]) -> list[str]:
    """W&B's export names columns `run - metric`, each with its __MIN and __MAX, which are not wanted."""
    runs = dict.fromkeys(name.rpartition(" - ")[0] for name in header if " - " in name)
    if len(runs) > 1:
        raise UserError(f"{path}: must hold one run, but got columns of {len(runs)}: {', '.join(runs)}.")
    return ["" if name.endswith(("__MIN", "__MAX")) else name.rpartition(" - ")[2] for name in header]


def _no_steps(path: Path, header: list[str]) -> str:
    lower = {name.lower(): name for name in header}
    near = next((found for known in STEP_NAMES for found in get_close_matches(known, lower, n=1, cutoff=0.7)), None)
    hint = f" Did you mean '{lower[near]}'? Rename it." if near else ""
    return (
        f"{path}: must have a column of steps (step, global_step, iter, epoch, …), but got {', '.join(header)}.{hint}"
    )


def _when(cell: str) -> float | None:
    if (seconds := number(cell)) is not None:
        return seconds
    try:
        return datetime.fromisoformat(cell.strip()).timestamp()
    except ValueError:
        return None
