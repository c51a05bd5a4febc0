"""Rows as columns, in blocks that a reader keeps beside the file."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.runs import blocks, column_files, jsonl
from trainbook.runs.columns import are_logged, are_numbers, are_true
from trainbook.runs.folder import RunFolder
from trainbook.runs.manifest import Manifest
from trainbook.runs.schema import COLUMNS_FOLDER
from trainbook.runs.table import Table, as_rows

ODD: list[Any] = [0, 1, -3, 2.5, math.nan, math.inf, -math.inf, True, False, None, "", "text", {}, {"a": 1.0}, [], [1]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "PARSED_BYTES", 500)


def made(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path, "run")
    run.write_manifest(Manifest("run"))
    return run


def write(path: Path, rows: list[dict[str, Any]], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(jsonl.dumps(row) + "\n" for row in rows)


def plain(count: int, segment: int = 0, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"step": step, "segment": segment, "split": "train", "loss": 5 / step, "grad_norms": {"a": float(step)}}
        for step in range(first, first + count)
    ]


def kept(run: RunFolder) -> list[Path]:
    folder = run.path / COLUMNS_FOLDER
    return sorted(path for path in folder.iterdir() if path.name != "file.json") if folder.is_dir() else []


def same(found: Any, wanted: Any) -> bool:
    return repr(list(found)) == repr(list(wanted))  # NaN equals itself, and 1 is not 1.0


def test_rows_and_columns_are_what_the_file_says_whatever_it_holds(tmp_path: Path, small_blocks: None):
    chance = random.Random(0)
    rows = []
    for step in range(400):
        names = chance.sample(["loss", "grad_norm", "best", "mfu", "memory_kind", "grad_norms"], k=chance.randrange(6))
        rows.append({"step": step, "split": chance.choice(["train", "eval"])} | {n: chance.choice(ODD) for n in names})
    run = made(tmp_path)
    write(run.metrics_file, rows)
    for _ in range(2):  # parsed, then from the files that were kept
        found = run.metrics()
        assert same(found, rows) and same(reversed(found), rows[::-1])
        assert same(found[10:20], rows[10:20]) and same([found[-1]], rows[-1:])
        for split in ("train", "eval"):
            of_split = [row for row in rows if row["split"] == split]
            assert same(run.metrics(split), of_split)
            for name in ("loss", "best", "memory_kind", "grad_norms", "nothing"):
                having = [row for row in of_split if row.get(name) is not None]
                assert same(run.metrics(split).having(name), having)
                assert same(run.metrics(split).with_true(name), [row for row in of_split if row.get(name)])
                assert run.metrics(split).has(name) == bool(having)
            assert run.metrics(split).names == {name for row in of_split for name in row}
            numbers = {name for row in of_split for name, value in row.items() if isinstance(value, (int, float))}
            assert run.metrics(split).number_names == numbers
    assert len(kept(run)) > 5


def test_a_series_is_that_of_the_rows_also_when_some_are_picked():
    rows = [{"step": step, "loss": math.nan if step == 7 else 1 / (step + 1)} for step in range(100)]
    rows[3]["loss"] = None
    del rows[4]["loss"]
    logged = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
    steps, values = as_rows(rows).series("loss")
    assert repr(list(zip(steps.tolist(), values.tolist(), strict=True))) == repr([(float(s), v) for s, v in logged])
    steps, _ = as_rows(rows).series("loss", lambda count: np.array([0, 3, 50, count - 1]))
    assert steps.tolist() == [logged[place][0] for place in (0, 3, 50, -1)]


def test_what_is_no_number_is_no_number_in_a_column():
    (values,) = as_rows([{"step": 1, "loss": value} for value in ODD]).columns("loss", need=[])
    number = [type(value) in (int, float) for value in ODD]
    assert are_numbers(values).tolist() == number
    assert are_logged(values).tolist() == [value is not None for value in ODD]
    assert are_true(values).tolist() == [bool(value) for value in ODD]
    with pytest.raises(ValueError, match="must be a number"):
        as_rows([{"step": 1, "loss": "high"}]).series("loss")


def test_a_column_of_very_many_rows_is_an_even_selection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("trainbook.runs.table.MOST_ROWS", 10)
    (steps,) = as_rows(plain(95)).columns("step")
    assert steps.tolist() == list(range(1, 96, 10))


def test_a_selection_of_rows_is_even_across_blocks(tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.runs.table.MOST_ROWS", 10)
    run = made(tmp_path)
    write(run.metrics_file, plain(95))
    rows = run.metrics()
    assert len(list(rows.blocks("step"))) > 2
    (steps,) = rows.columns("step")
    assert steps.tolist() == list(range(1, 96, 10))


def test_a_file_that_grows_keeps_its_blocks(tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch):
    run = made(tmp_path)
    write(run.metrics_file, plain(60))
    assert len(run.metrics()) == 60
    before = {path.name: path.stat().st_mtime_ns for path in kept(run)}
    assert before
    parsed = []
    parse = blocks.parse
    monkeypatch.setattr(blocks, "parse", lambda piece, law: parsed.append(piece.start) or parse(piece, law))
    write(run.metrics_file, plain(60, first=61), "a")
    assert same(run.metrics(), plain(120))
    assert min(parsed) > 0 and before.items() <= {path.name: path.stat().st_mtime_ns for path in kept(run)}.items()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("change", ["truncated", "rewritten", "changed in place", "gone"])
def test_a_file_that_was_changed_is_read_as_it_is_now(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, change: str, settled: bool
):
    monkeypatch.setattr(column_files, "SETTLED", -(10**18) if settled else 10**18)
    run = made(tmp_path)
    write(run.metrics_file, plain(100))
    assert len(run.metrics()) == 100 and (run.path / COLUMNS_FOLDER / "file.json").exists() == settled
    wanted = plain(100)
    if change == "truncated":
        wanted = wanted[:31]
    elif change == "rewritten":
        wanted = [row for row in wanted if row["step"] % 3]
    elif change == "changed in place":
        wanted[5]["loss"] = 7.0
    else:
        wanted = []
    if wanted:
        write(run.metrics_file, wanted)
        os.utime(run.metrics_file, ns=(1, 1))
    else:
        run.metrics_file.unlink()
    assert same(run.metrics(), wanted)
    assert run.metrics().columns("step")[0].tolist() == [row["step"] for row in wanted]
    assert run.metrics().columns("loss")[0].tolist() == [row["loss"] for row in wanted]


def test_a_damaged_cache_of_any_kind_changes_nothing(tmp_path: Path, small_blocks: None, monkeypatch):
    monkeypatch.setattr(column_files, "SETTLED", -(10**18))
    run = made(tmp_path)
    write(run.metrics_file, plain(60))
    losses = run.metrics().columns("loss")[0].tolist()
    whole = kept(run)[0].read_bytes()
    chance = random.Random(0)
    for number in range(200):
        place = chance.randrange(len(whole))
        damaged = [
            whole[:place],
            whole[:place] + bytes([chance.randrange(256)]) + whole[place + 1 :],
            b"",
            whole + b"x",
            bytes(len(whole)),
        ][number % 5]
        kept(run)[0].write_bytes(damaged)
        rows = run.metrics()
        assert rows.columns("loss")[0].tolist() == losses and rows[0]["step"] == 1
    rows = run.metrics()
    for path in kept(run):
        path.unlink()
    assert rows.columns("loss")[0].tolist() == losses, "deleted between two looks"


def test_a_header_that_lies_is_not_believed(tmp_path: Path, small_blocks: None):
    run = made(tmp_path)
    write(run.metrics_file, plain(60))
    losses = run.metrics().columns("loss")[0].tolist()
    path = kept(run)[0]
    whole = path.read_bytes()
    begin = len(column_files.MAGIC) + 16
    size = int.from_bytes(whole[begin - 16 : begin - 8], "little")
    header = json.loads(whole[begin : begin + size])
    nowhere = {name: [None, "x"] for name in header["columns"]}
    too_long = {name: [0, 2**62, 0] for name in header["parts"]}
    lies = [{"rows": 10**12}, {"end": -1}, {"rows": "3"}, {"texts": 5}, {"told": [1]}, {"format": 0}, {"columns": []}]
    lies += [{"columns": {"step": 5, "loss": 5}}, {"columns": nowhere}, {"parts": too_long}, {"parts": []}]
    for lie in lies:
        head = json.dumps({**header, **lie}).encode()
        lead = column_files.MAGIC + len(head).to_bytes(8, "little")
        path.write_bytes(lead + column_files.zlib.crc32(head).to_bytes(8, "little") + head + whole[begin + size :])
        assert run.metrics().columns("loss")[0].tolist() == losses, lie


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(tmp_path: Path, small_blocks: None, monkeypatch):
    run = made(tmp_path)
    write(run.metrics_file, plain(100))
    (run.path / COLUMNS_FOLDER).write_text("a file where the cache's folder would be")
    assert same(run.metrics(), plain(100)) and run.metrics().has("loss")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(column_files.tempfile, "mkdtemp", refuse)
    assert same(run.metrics(), plain(100)) and run.metrics().has("loss")


def test_nothing_is_written_through_a_link(tmp_path: Path, small_blocks: None):
    run = made(tmp_path)
    write(run.metrics_file, plain(100))
    outside = tmp_path / "outside"
    outside.mkdir()
    (run.path / COLUMNS_FOLDER).symlink_to(outside)
    assert len(run.metrics()) == 100 and list(outside.iterdir()) == []


def test_a_short_file_leaves_no_cache(tmp_path: Path):
    run = made(tmp_path)
    write(run.metrics_file, plain(100))
    assert len(run.metrics()) == 100 and kept(run) == []


def test_lines_that_are_no_rows_are_counted_over_blocks_and_the_first_are_told(tmp_path: Path, small_blocks: None):
    run = made(tmp_path)
    lines = [jsonl.dumps(row) for row in plain(200)]
    for number in range(0, 200, 10):
        lines[number] = '{"step": 1},{"step": 2}' if number % 20 else '{"step": [1'
    lines[101] = "\0" * 50
    run.metrics_file.write_text("".join(f"{line}\n" for line in lines) + '{"step": 7, "to')
    for _ in range(2):
        assert len(run.metrics()) == 179
        told = run.notices()
        law = "must be one JSON object per line, but got"
        assert told[0] == f"skipped an unreadable line: {run.metrics_file}:1: {law} b'{{\"step\": [1'"
        assert told[-1] == f"{run.metrics_file}: skipped 15 more unreadable lines" and len(told) == 6
    assert len(run.set_skipped_aside()) == 6
    assert len(run.metrics()) == 179 and run.notices() == []
    assert len((run.path / "metrics.jsonl.unreadable").read_text().splitlines()) == 20
    assert run.metrics_file.read_text().endswith('{"step": 7, "to')


def test_a_line_longer_than_a_block_is_no_row_and_the_next_one_is(tmp_path: Path, small_blocks: None):
    run = made(tmp_path)
    write(run.metrics_file, plain(3))
    write(run.metrics_file, [{"step": 4, "reason": "x" * 9000}], "a")
    write(run.metrics_file, plain(50, first=5), "a")
    for _ in range(2):
        assert [row["step"] for row in run.metrics()] == [1, 2, 3, *range(5, 55)]
        assert [line.rpartition(": ")[2] for line in run.notices()] == ["must be at most 0 MB long, but got 0 MB"]


def test_segments_count_as_in_a_list_of_rows(tmp_path: Path, small_blocks: None):
    chance = random.Random(1)
    for number in range(30):
        run = RunFolder.create(tmp_path, f"run-{number}")
        run.write_manifest(Manifest("run"))
        rows: list[dict[str, Any]] = []
        step = 0
        for segment in range(chance.randrange(1, 6)):
            for _ in range(chance.randrange(1, 40)):
                step += 1
                rows.append({"step": step, "segment": segment, "split": "train", "loss": 1.0})
                if step % 5 == 0:
                    rows.append({"step": step, "segment": segment, "split": "eval", "loss": 1.0})
            step = chance.randrange(step)
        write(run.metrics_file, rows)
        began = {s: min(row["step"] for row in rows if row["segment"] == s) for s in range(segment + 1)}
        ends = {s: min((began[t] for t in began if t > s), default=10**9) for s in began}
        true = [row for row in rows if row["step"] <= ends[row["segment"]]]
        latest = {(row["split"], row["step"]): row["segment"] for row in true}
        wanted = [row for row in true if row["segment"] == latest[row["split"], row["step"]]]
        assert same(run.metrics(), wanted)
        assert run.next_segment() == segment + 1


@pytest.mark.parametrize("value", [2**53 + 1, -(10**30)])
def test_a_step_that_no_run_reaches_is_no_step(tmp_path: Path, value: int):
    run = made(tmp_path)
    write(run.metrics_file, [{"step": 1}, {"step": value}, {"step": 2, "segment": value}])
    assert len(run.metrics()) == 1 and len(run.notices()) == 2


def test_a_segment_of_any_number_is_read_at_once(tmp_path: Path):
    run = made(tmp_path)
    write(run.metrics_file, [{"step": 1, "segment": 10**15}])
    assert len(run.metrics()) == 1


def test_an_empty_table_has_no_rows():
    rows = Table.of([]).rows()
    assert len(rows) == 0 and list(rows) == [] and rows == [] and rows.last_step == 0
    assert [len(part) for part in rows.columns("step", "loss")] == [0, 0] and not rows.has("loss")


def test_a_row_that_is_asked_for_again_is_not_read_again_and_is_nobody_elses(tmp_path: Path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 1e200 * step}) + "\n" for step in range(1, 5)))
    rows = Table.read(path, lambda row: "").rows()
    read, real = [], jsonl.row_of
    monkeypatch.setattr(jsonl, "row_of", lambda line, law: read.append(line) or real(line, law))
    first = rows.at([2, 0])
    assert [row["step"] for row in first] == [3, 1] and first[0]["loss"] == math.inf
    first[0]["step"] = 99
    assert [row["step"] for row in rows.at([0, 2])] == [1, 3] and len(read) == 2
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_no_more_rows_are_kept_than_there_is_room_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("trainbook.runs.table.KEPT_BYTES", 50)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 1.5}) + "\n" for step in range(1, 9)))
    table = Table.read(path, lambda row: "")
    assert [row["step"] for row in table.rows()] == list(range(1, 9))
    assert len(table._kept) == 2
    assert [row["step"] for row in table.rows()] == list(range(1, 9))
