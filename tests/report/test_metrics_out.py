from __future__ import annotations

import csv
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs
from tests.run_folders import make_run, write_lines

from trainbook.errors import MissingExtra, UserError
from trainbook.report.event_files import framed, masked_checksums
from trainbook.report.metrics_out import FORMATS, RunMetrics, export_metrics
from trainbook.runs import RunFolder
from trainbook.runs.record import open_record

NEEDED = {
    "csv": needs(),
    "parquet": needs("pyarrow"),
    "tensorboard": needs("tensorboard"),
    "wandb": needs("wandb"),
}
EACH = [pytest.param(name, marks=NEEDED[name]) for name in FORMATS]
READABLE = [pytest.param(name, marks=NEEDED[name]) for name in ("csv", "tensorboard", "wandb")]


SERIES = [[1.0, 2.0, 3.0, 4.0], [3.0, math.nan, 1.5, 1.25], [2.0], [2.5]]  # steps and losses of training, of validation


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Losses that are NaN and infinite, norms by layer, evaluations, and a part that was rolled back."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(
        tmp_path / "runs/a",
        losses=[3.0, math.nan, math.inf],
        evaluations={2: {"loss": 2.5, "accuracy": 0.5, "best": True}},
        settings={"optimizer__learning_rate": 1e-2},
        events=[
            {"step": 0, "segment": 0, "kind": "start"},
            {"step": 2, "segment": 1, "kind": "rollback", "reason": "<b>"},
        ],
    )
    later = {"segment": 1, "split": "train", "grad_norms": {"body.blocks.0": 0.5}, "memory_kind": "host_rss"}
    rows = [{"step": 3, "loss": 1.5, "time": 1.7e9, "tokens": 24, **later}, {"step": 4, "loss": 1.25, **later}]
    write_lines(folder.metrics_file, rows, mode="a")
    return folder


def series(record: Any) -> list[list[float]]:
    return [list(map(float, part)) for part in (*record.series("loss"), *record.series("loss", "eval"))]


@pytest.mark.parametrize("form", READABLE)
def test_what_was_written_is_read_back_as_the_same_run(run: RunFolder, form: str):
    path = export_metrics(open_record(run.path), form)
    assert path == Path(f"a{FORMATS[form].suffix}")
    found, known = open_record(path), open_record(run.path)
    assert str(series(found)) == str(series(known)) == str(SERIES)
    assert found.series("accuracy", "eval")[1] == [0.5]
    if form != "csv":  # which has no place for settings
        assert found.settings["optimizer.learning_rate"] == 1e-2
    assert set(os.listdir(".")) == {"runs", str(path)}


def test_a_table_has_a_row_for_each_that_counts(run: RunFolder):
    export_metrics(open_record(run.path), "csv", Path("x.csv"))
    head, *rows = csv.reader(Path("x.csv").read_text().splitlines())
    assert head == [
        *("step", "segment", "time", "train/tokens", "train/loss", "train/learning_rate"),
        *("train/grad_norms/body.blocks.0", "eval/loss", "eval/accuracy"),
    ]
    assert [row[:2] for row in rows] == [["1", "0"], ["2", "0"], ["2", "0"], ["3", "1"], ["4", "1"]]
    assert [row[4] for row in rows] == ["3.0", "NaN", "", "1.5", "1.25"]
    assert rows[3] == ["3", "1", "1700000000.0", "24", "1.5", "", "0.5", "", ""]


@needs("pyarrow")
def test_parquet_tells_nan_from_what_was_not_logged(run: RunFolder):
    from pyarrow import parquet

    table = parquet.read_table(export_metrics(open_record(run.path), "parquet"))
    losses = table.column("train/loss").to_pylist()
    assert math.isnan(losses[1]) and losses[2] is None and table.column("train/loss").null_count == 1
    assert str(table.schema.field("step").type) == "int64"


@needs("tensorboard")
def test_tensorboard_reads_its_files(run: RunFolder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = export_metrics(open_record(run.path), "tensorboard")
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("train/loss")] == [1, 2, 3, 4]
    assert accumulator.Scalars("train/grad_norms/body.blocks.0")[0].value == 0.5
    assert set(accumulator.Tags()["tensors"]) == {"events/start", "events/rollback"}


@needs("tensorboard")
def test_checksums_are_those_of_tensorboard():
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    draw = random.Random(1)
    records = [draw.randbytes(draw.randrange(0, 300)) for _ in range(200)] + [b"", b"\0"]
    assert masked_checksums(records) == [masked_crc32c(record).to_bytes(4, "little") for record in records]
    assert masked_checksums([]) == [] and framed([]) == b""


@pytest.mark.parametrize("form", EACH)
def test_nothing_is_overwritten(run: RunFolder, form: str):
    record = open_record(run.path)
    path = export_metrics(record, form)
    with pytest.raises(UserError, match="already exists, and nothing is overwritten"):
        export_metrics(record, form)
    Path("link").symlink_to("elsewhere")
    with pytest.raises(UserError, match="already exists"):
        export_metrics(record, form, Path("link"))
    assert not Path("elsewhere").exists() and path.exists()


@pytest.mark.parametrize("form", ["csv", pytest.param("tensorboard", marks=needs("tensorboard"))])
def test_what_fails_leaves_nothing(run: RunFolder, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RunMetrics, "_flat", lambda self, row: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_metrics(open_record(run.path), form)
    assert os.listdir(".") == ["runs"]


@pytest.mark.parametrize("form", EACH)
def test_runs_of_other_tools_are_exported_too(tmp_path: Path, form: str):
    path = tmp_path / "theirs.csv"
    path.write_text("step,loss,val_loss,=evil,<script>\n1,3.0,,7,1\n2,NaN,2.5,8,2\n")
    record = open_record(path)
    out = export_metrics(record, form, tmp_path / "out")
    assert out.exists()
    rows = [row for block in RunMetrics(record).blocks() for row in block]
    assert [row["step"] for row in rows] == [1, 2, 2] and rows[0]["train/=evil"] == 7.0
    if form == "csv":  # no cell of the header begins as a formula does
        assert not any(name.startswith(("=", "+", "-", "@")) for name in out.read_text().splitlines()[0].split(","))


def test_hostile_names_stay_in_their_cell_and_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "runs/-..;rm <b>")
    row = {
        "step": 9,
        "segment": 0,
        "split": "train",
        "loss": 1.0,
        'x","\n\x1b[31m': 2.0,
        "grad_norms": {"../../x": 1.0},
    }
    write_lines(folder.metrics_file, [row, {"step": 10, "segment": 0, "split": "<b>", "loss": 5.0}], mode="a")
    path = export_metrics(open_record(folder.path), "csv")
    assert path == Path("rm--b.csv") and path.exists()
    with path.open(newline="") as file:
        head = next(csv.reader(file))
    assert 'train/x","\n\\u001b[31m' in head and "\x1b" not in path.read_text() and "5.0" not in path.read_text()


def test_more_metrics_than_a_table_may_have_are_refused(tmp_path: Path):
    folder = make_run(tmp_path / "a")
    row = {"step": 9, "segment": 0, "split": "train", "grad_norms": {f"x{number}": 1.0 for number in range(16_400)}}
    write_lines(folder.metrics_file, [row], mode="a")
    with pytest.raises(UserError, match="must have at most 16,384 metrics"):
        export_metrics(open_record(folder.path), "csv", tmp_path / "x.csv")
    assert os.listdir(tmp_path) == ["a"]


def test_mistakes_are_told(run: RunFolder, monkeypatch: pytest.MonkeyPatch):
    record = open_record(run.path)
    with pytest.raises(UserError, match=r"csv, parquet, but got cvs\. Did you mean 'csv'"):
        export_metrics(record, "cvs")
    with pytest.raises(UserError, match="there is no folder 'nowhere'"):
        export_metrics(record, "csv", Path("nowhere/x.csv"))
    monkeypatch.setattr("trainbook.report.metrics_out.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[data\]'"):
        export_metrics(record, "parquet")
    empty = make_run(Path("runs/empty"), losses=[])
    with pytest.raises(UserError, match="has logged no metrics"):
        export_metrics(open_record(empty.path), "csv")


def test_blocks_of_a_long_run_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.runs.blocks.BLOCK_BYTES", 4_096)
    folder = make_run(tmp_path / "a", losses=[1 / step for step in range(1, 300)])
    blocks = list(RunMetrics(open_record(folder.path)).blocks())
    assert len(blocks) > 5 and [row["train/loss"] for block in blocks for row in block][-1] == 1 / 299
    assert list(folder.metrics()) == [row for block in folder.metrics().plain_blocks() for row in block]
