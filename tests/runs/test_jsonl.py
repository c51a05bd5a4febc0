from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from trainbook.errors import RunError, RunFolderError
from trainbook.runs import jsonl
from trainbook.runs.jsonl import Extent, JsonlWriter


def strict(line: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_rows_come_back_as_they_went_in(tmp_path: Path):
    rows = [{"step": 1, "loss": 0.1}, {"step": 2, "reason": "a\nb — ü"}, {"flag": True, "none": None, "list": [1, 2]}]
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        for row in rows:
            writer.append(row)
    assert jsonl.read(tmp_path / "m.jsonl") == rows


def test_floats_keep_every_bit(tmp_path: Path):
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        writer.append({"loss": 0.1 + 0.2, "tiny": 5e-324})
    assert jsonl.read(tmp_path / "m.jsonl") == [{"loss": 0.1 + 0.2, "tiny": 5e-324}]


def test_a_row_can_be_read_as_soon_as_it_is_appended(tmp_path: Path):
    writer = JsonlWriter(tmp_path / "m.jsonl")
    writer.append({"step": 1})
    assert jsonl.read(tmp_path / "m.jsonl") == [{"step": 1}]
    writer.close()


def test_nan_and_infinity_are_json_for_any_reader_and_floats_for_ours(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    with JsonlWriter(file) as writer:
        writer.append({"loss": math.nan, "norms": [math.inf, -math.inf], "evidence": {"loss": math.nan}})
    assert strict(file.read_text()) == {
        "loss": "NaN",
        "norms": ["Infinity", "-Infinity"],
        "evidence": {"loss": "NaN"},
    }
    [row] = jsonl.read(file)
    assert math.isnan(row["loss"]) and math.isnan(row["evidence"]["loss"]) and row["norms"] == [math.inf, -math.inf]


def test_numbers_inside_a_dict_keep_their_names_and_what_is_not_finite(tmp_path: Path):
    norms = {"body.blocks.0": math.inf, "NaN": 0.5, "head": math.nan}
    with JsonlWriter(tmp_path / "m.jsonl") as writer:
        writer.append({"step": 1, "grad_norms": norms})
    written = strict((tmp_path / "m.jsonl").read_text())["grad_norms"]
    assert written == {"body.blocks.0": "Infinity", "NaN": 0.5, "head": "NaN"}
    [row] = jsonl.read(tmp_path / "m.jsonl")
    assert math.isnan(row["grad_norms"].pop("head"))
    assert row["grad_norms"] == {"body.blocks.0": math.inf, "NaN": 0.5}


def test_a_torn_last_line_is_left_out_by_readers(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}')
    assert jsonl.read(file) == [{"step": 1}]
    assert file.read_text() == '{"step": 1}\n{"step": 2}'  # a reader changes nothing


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3}', "\0\0\0\0", "\0\0\0\n", '{"st\n', "7\n\n{"])
def test_a_torn_end_is_cut_off_before_the_next_row(tmp_path: Path, torn: str):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    with JsonlWriter(file) as writer:
        writer.append({"step": 3})
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_file_that_is_one_torn_line_starts_anew(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": ')
    JsonlWriter(file).close()
    assert file.read_text() == ""


def test_a_torn_end_is_found_behind_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jsonl, "_TAIL_BLOCK_BYTES", 5)
    file = tmp_path / "m.jsonl"
    whole = '{"step": 1, "reason": "a long one"}\n{"step": 2, "reason": "another long one"}\n'
    file.write_text(whole + '{"step": 3, "reason": "never fini')
    JsonlWriter(file).close()
    assert file.read_text() == whole


def test_the_end_of_a_broken_line_is_not_taken_for_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jsonl, "_TAIL_BLOCK_BYTES", len('{"step": 2}\n'))
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n' + "\0" * 8 + '{"step": 2}\n')
    JsonlWriter(file).close()
    assert file.read_text() == '{"step": 1}\n'


def test_a_whole_file_is_left_as_it_is(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n')
    JsonlWriter(file).close()
    assert file.read_text() == '{"step": 1}\n'


def test_a_bad_line_in_the_middle_is_named_by_file_and_line(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(
        RunFolderError,
        match=r"m\.jsonl:2: must be one JSON object per line, but got b'nonsense'\. Fix or remove the line",
    ):
        jsonl.read(file)


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path):
    assert jsonl.read(tmp_path / "none.jsonl") == []


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines_and_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "m.jsonl"
    writer = JsonlWriter(file)
    writer.append({"step": 1})
    write = os.write
    room = [4]

    def nearly_full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(RunError, match=r"m\.jsonl: cannot be written: No space left on device"):
        writer.append({"step": 2})
    assert file.read_text() == '{"step": 1}\n'
    writer.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_kernels_own_full_disk_is_a_run_error():
    with (
        JsonlWriter(Path("/dev/full")) as writer,
        pytest.raises(RunError, match=r"/dev/full: cannot be written: No space left on device"),
    ):
        writer.append({"step": 1})


def test_a_writer_knows_what_its_file_holds_also_from_before(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    with JsonlWriter(file) as writer:
        for _ in range(3):
            content = file.read_bytes()
            assert writer.extent == Extent(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())
            writer.append({"step": 3, "reason": "ü"})


def test_a_row_that_was_refused_by_the_disk_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = JsonlWriter(tmp_path / "m.jsonl")
    writer.append({"step": 1})
    before = writer.extent
    with monkeypatch.context() as patch, pytest.raises(RunError):
        patch.setattr(os, "write", full)
        writer.append({"step": 2})
    assert writer.extent == before
    writer.close()


ROWS = b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (ROWS, ""),
        (ROWS + b'{"step": 4}\n{"st', ""),
        (b"", "has 0 row(s); it held 3"),
        (ROWS[:12], "has 1 row(s); it held 3"),
        (ROWS[:-1], "has 2 row(s); it held 3"),
        (ROWS[12:] + b'{"step": 4}\n', "has lost or changed some of the 3 rows that it held"),
        (ROWS.replace(b"2", b"7"), "has lost or changed some of the 3 rows that it held"),
        (None, "is missing; it held 3 rows"),
    ],
)
def test_rows_that_a_file_no_longer_holds_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bytes | None, said: str
):
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 7)
    file = tmp_path / "m.jsonl"
    if now is not None:
        file.write_bytes(now)
    assert jsonl.lost_since(file, Extent(3, len(ROWS), hashlib.sha256(ROWS).hexdigest())) == said


def test_a_file_that_never_had_a_row_has_lost_none(tmp_path: Path):
    assert jsonl.lost_since(tmp_path / "none", Extent(0, 0, hashlib.sha256().hexdigest())) == ""
