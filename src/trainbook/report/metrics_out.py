"""The metrics of a run in files for other programs: CSV, Parquet, TensorBoard's event files, an offline run of W&B.

Rows are read and written a block at a time, so that a run of any length needs the same memory. All formats have the
same names, `train/loss`, `eval/accuracy`, `train/grad_norms/body.blocks.3`, and keep NaN and infinities.
"""

from __future__ import annotations

import csv
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from trainbook.contained import create_anew, replacing
from trainbook.errors import MissingExtra, UserError
from trainbook.nearest import did_you_mean
from trainbook.runs import RunFolder
from trainbook.runs.run_record import RunRecord
from trainbook.runs.schema import METRICS
from trainbook.terminal import visible
from trainbook.tracking.tracker import scalars_of

PLACES = ("step", "segment", "time")  # columns that place a row
MOST_COLUMNS = 16_384
ROWS_AT_A_TIME = 10_000
WHOLE_UNITS = ("steps", "count", "tokens", "targets", "updates", "bytes")
WHOLE = {"step", "segment"} | {
    f"{split}/{metric.name}" for metric in METRICS.values() if metric.unit in WHOLE_UNITS for split in metric.splits
}

Row = dict[str, Any]


class RunMetrics:
    """All rows of a run that count, with their numbers by name; may be gone through several times."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self._shown: dict[str, str] = {}

    def blocks(self) -> Iterator[list[Row]]:
        """`step`, `segment` and, where it is known, `time`, and the numbers of the row."""
        for rows in self._logged():
            yield [self._flat(row) for row in rows if row.get("split") in ("train", "eval")]

    @cached_property
    def columns(self) -> list[str]:
        """All names that any row has, in the order of the schema; those that place a row come first."""
        found: dict[str, None] = {}
        for rows in self.blocks():
            for row in rows:
                if not found.keys() >= row.keys():
                    found.update(dict.fromkeys(row))
                    if len(found) > MOST_COLUMNS:
                        raise UserError(
                            f"'{self.record.name}' must have at most {MOST_COLUMNS:,} metrics, but has more."
                        )
        return sorted(found, key=_order)

    def _logged(self) -> Iterator[list[Row]]:
        if (folder := _own_folder(self.record)) is not None:
            yield from folder.metrics().plain_blocks()
            return
        rows = merge(self.record.rows("train"), self.record.rows("eval"), key=lambda row: row["step"])
        while block := list(islice(rows, ROWS_AT_A_TIME)):
            yield block

    def _flat(self, row: Row) -> Row:
        flat = {name: row[name] for name in PLACES if isinstance(row.get(name), (int, float))}
        for name in ("step", "segment"):
            flat[name] = int(flat.get(name, 0))
        for name, value in scalars_of(row).items():
            if name not in self._shown:
                self._shown[name] = visible(name)
            flat[self._shown[name]] = value
        return flat


def _order(name: str) -> tuple[int, int, int, str]:
    if name in PLACES:
        return 0, PLACES.index(name), 0, ""
    split, metric = name.split("/")[:2]
    known = list(METRICS)
    return 1, ("train", "eval").index(split), known.index(metric) if metric in known else len(known), name


def _own_folder(record: RunRecord) -> RunFolder | None:
    if record.path is None or not record.path.is_dir():
        return None
    folder = RunFolder(record.path)
    is_ours = folder.manifest.is_file() or folder.config.is_file()
    return folder if is_ours and folder.metrics_file.is_file() else None


@dataclass(frozen=True)
class MetricsFormat:
    name: str
    suffix: str  # of the file or folder, where none is named
    write: Callable[[RunMetrics, Path], None]
    is_folder: bool = False
    package: str = ""  # that it needs
    extra: str = ""  # that brings the package


def export_metrics(record: RunRecord, to: str, output: Path | None = None) -> Path:
    """Write a run's metrics; returns the file or folder, which must not exist before."""
    if to not in FORMATS:
        raise UserError(f"--to: must be one of {', '.join(FORMATS)}, but got {to}.{did_you_mean(to, FORMATS)}")
    form = FORMATS[to]
    if form.package and find_spec(form.package) is None:
        raise MissingExtra(f"--to {to}", form.package, form.extra)
    target = output or Path(f"{_plain(record.name)}{form.suffix}")
    _must_be_free(target, form)
    if not record.train and not record.evaluations:
        raise UserError(f"'{record.name}' has logged no metrics: there is nothing to export.")
    with _made(target, form) as temporary:
        form.write(RunMetrics(record), temporary)
    return target


def _plain(name: str) -> str:
    """A name that may be part of a file's."""
    return "".join(letter if letter.isalnum() or letter in "._+=@-" else "-" for letter in name).strip(".-") or "run"


def _must_be_free(target: Path, form: MetricsFormat) -> None:
    if not target.parent.is_dir():
        raise UserError(f"--output: there is no folder '{target.parent}'.")
    if os.path.lexists(target) and not (form.is_folder and target.is_dir() and not any(target.iterdir())):
        raise UserError(f"--output: '{target}' already exists, and nothing is overwritten. Choose another place.")


@contextmanager
def _made(target: Path, form: MetricsFormat) -> Iterator[Path]:
    """A place beside it, which takes its name when everything is written."""
    try:
        with replacing(target) as temporary:
            if form.is_folder:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
            else:
                os.close(create_anew(temporary))
            try:
                yield temporary
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    except OSError as error:
        raise UserError(f"'{target}' cannot be written: {error.strerror or error}.") from None


# Tables: a row for each logged row, empty where it has no such metric


def _write_csv(metrics: RunMetrics, path: Path) -> None:
    columns = metrics.columns
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for rows in metrics.blocks():
            writer.writerows([_cell(name, row[name]) if name in row else "" for name in columns] for row in rows)


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if name in WHOLE and value.is_integer():
            return int(value)
    return value  # infinities are written as inf and -inf


def _write_parquet(metrics: RunMetrics, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    fields = [(name, pyarrow.int64() if name in ("step", "segment") else pyarrow.float64()) for name in metrics.columns]
    schema = pyarrow.schema(fields, metadata={"run": visible(metrics.record.name)})
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in metrics.blocks():
            arrays = [pyarrow.array([_as(kind, row.get(name)) for row in rows], kind) for name, kind in fields]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _as(kind: Any, value: Any) -> Any:
    return value if value is None or kind == "int64" else float(value)


def _write_tensorboard(metrics: RunMetrics, path: Path) -> None:
    from trainbook.report.event_files import write_events

    write_events(metrics, path)


def _write_wandb(metrics: RunMetrics, path: Path) -> None:
    from trainbook.report.offline_wandb import write_run

    write_run(metrics, path)


FORMATS: Mapping[str, MetricsFormat] = {
    form.name: form
    for form in (
        MetricsFormat("tensorboard", "-tensorboard", _write_tensorboard, True, "tensorboard", "tensorboard"),
        MetricsFormat("wandb", "-wandb", _write_wandb, True, "wandb", "wandb"),
        MetricsFormat("csv", ".csv", _write_csv),
        MetricsFormat("parquet", ".parquet", _write_parquet, False, "pyarrow", "data"),
    )
}
