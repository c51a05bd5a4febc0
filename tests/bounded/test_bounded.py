"""Each limit of each format: what is just inside is read; beyond it, the message has file, limit and value."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from trainbook.bounded import arrays, files, json_text, tables, yaml_text
from trainbook.errors import BeyondBounds, UserError

# Files


def test_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"a pipe, not a regular file"):
        files.read_bytes(tmp_path / "pipe")


def test_a_device_is_refused(tmp_path: Path):
    with pytest.raises(OSError, match=r"a device, not a regular file"):
        files.read_bytes("/dev/zero")


def test_a_folder_is_an_os_error_as_with_open(tmp_path: Path):
    with pytest.raises(IsADirectoryError):
        files.read_text(tmp_path)


def test_each_of_the_three_line_ends_is_one(tmp_path: Path):
    (tmp_path / "lines").write_bytes(b"windows\r\n\r\nold mac\rlinux\nend")
    assert files.read_text(tmp_path / "lines") == "windows\n\nold mac\nlinux\nend"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)  # of which nothing lies on the disk
    with pytest.raises(BeyondBounds, match=r"large: must have at most 100 bytes, but has 1,099,511,627,776"):
        files.read_bytes(tmp_path / "large", most=100)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert files.read_bytes(tmp_path / "file", most=100) == b"x" * 100
    (tmp_path / "file").write_bytes(b"x" * 101)
    with pytest.raises(BeyondBounds):
        files.read_bytes(tmp_path / "file", most=100)


def test_what_is_beyond_is_a_mistake_of_the_user_and_a_faulty_value():
    assert issubclass(BeyondBounds, UserError) and issubclass(BeyondBounds, ValueError)
    assert BeyondBounds("x").exit_code == 2


# JSON


def test_depth_of_json():
    deepest = json_text.MOST_DEPTH
    assert json_text.loads("[" * deepest + "]" * deepest) is not None
    with pytest.raises(BeyondBounds, match=r"m.json: must be nested at most 100 deep, but is 101 deep"):
        json_text.loads("[" * (deepest + 1) + "]" * (deepest + 1), "m.json")
    with pytest.raises(BeyondBounds, match=r"100,000 deep"):
        json_text.loads('{"a":' * 100_000, "m.json")


def test_brackets_in_strings_are_no_depth():
    text = json.dumps(["[" * 1000, '"' + "{" * 1000, "\\" * 7 + "[[" * 500])
    assert json_text.loads(text) == json.loads(text)


def test_lists_beside_each_other_are_no_depth():
    assert len(json_text.loads("[" + ",".join(["[]"] * 1000) + "]")) == 1000


def test_digits_of_json():
    assert json_text.loads("9" * 300) == int("9" * 300)
    with pytest.raises(BeyondBounds, match=r"x.json: a number must have at most 300 digits, but has 100,000"):
        json_text.loads('{"a": ' + "9" * 100_000 + "}", "x.json")


def test_values_of_json():
    assert len(json_text.loads("[" + "1," * 99 + "1]", most_values=100)) == 100
    with pytest.raises(BeyondBounds, match=r"must have at most 100 values, but has 101"):
        json_text.loads("[" + "1," * 100 + "1]", most_values=100)
    assert json_text.loads(json.dumps("," * 1000), most_values=100) == "," * 1000


def test_what_is_no_json_is_a_value_error():
    for text in ("", "{", b"\xff", b"\xff\xfe[\x00]\x00", '"\n"'):
        with pytest.raises(ValueError):
            json_text.loads(text)


# YAML

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def test_a_billion_laughs_are_counted_before_they_are_made():
    with pytest.raises(BeyondBounds, match=r"c.yaml:\d+: must have at most 20,000 values, aliases expanded, but has"):
        yaml_text.load(LAUGHS, "c.yaml")


def test_a_few_aliases_are_fine():
    assert yaml_text.load("a: &a [1, 2]\nb: *a\nc: [*a, *a]") == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], [1, 2]]}


def test_an_anchor_that_is_used_again_is_no_warning():
    assert yaml_text.load("a: &a 1\nb: &a 2\nc: *a") == {"a": 1, "b": 2, "c": 2}


def test_depth_of_yaml():
    with pytest.raises(BeyondBounds, match=r"c.yaml:1: must be nested at most 100 deep"):
        yaml_text.load("a: " + "[" * 20_000, "c.yaml")


def test_digits_of_yaml():
    with pytest.raises(BeyondBounds, match=r"c.yaml:2: a number must have at most 300 digits, but has 100,000"):
        yaml_text.load("a: 1\nb: " + "9" * 100_000, "c.yaml")
    assert yaml_text.load("a: '" + "9" * 1000 + "'") == {"a": "9" * 1000}


def test_size_of_yaml():
    with pytest.raises(BeyondBounds, match=r"c.yaml: must have at most 524,288 bytes, but has 600,000"):
        yaml_text.load("#" * 600_000, "c.yaml")


def test_values_of_yaml():
    with pytest.raises(BeyondBounds, match=r"must have at most 20,000 values"):
        yaml_text.load("[" + "1," * 30_000 + "]")


# CSV


def test_columns_of_a_table():
    with pytest.raises(BeyondBounds, match=r"t.csv:1: must have at most 16,384 columns, but has 20,000"):
        next(tables.CsvRows(["," * 19_999], ",", "t.csv"))


# Compression


def test_a_gzip_bomb_is_given_up_early():
    bomb = io.BytesIO(gzip.compress(b"\0" * (80 << 20)))
    opened = files.open_inner(bomb, "b.gz", "b.txt.gz")
    with pytest.raises(BeyondBounds, match=r"b.txt.gz: must expand to at most 200 times its size"):
        while opened.read(1 << 20):
            pass


def test_a_bomb_without_line_ends_is_given_up_inside_of_its_first_line():
    bomb = io.BytesIO(gzip.compress(b"a" * (80 << 20)))
    with pytest.raises(BeyondBounds):
        next(iter(files.open_inner(bomb, "b.gz", "b.gz")))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_what_is_compressed_as_usual_is_read(ending: str):
    import bz2
    import lzma

    import pyarrow

    text = b"".join(b"line %d\n" % number for number in range(10_000))
    pack = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
    }[ending]
    assert files.open_inner(io.BytesIO(pack(text)), f"a{ending}", "a").read() == text


# Parquet


def test_a_parquet_bomb_is_given_up_early(tmp_path: Path):
    """A text of 3 MB a thousand times: 3 GB, of a file of a few kilobytes."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from trainbook.bounded.arrow import parquet_rows

    path = tmp_path / "bomb.parquet"
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000), pyarrow.array(["x" * 3_000_000]))
    parquet.write_table(
        pyarrow.table({"text": column.cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))}),
        path,
        compression="zstd",
    )
    assert path.stat().st_size < 10_000
    before = pyarrow.total_allocated_bytes()
    number = 0
    law = r"bomb.parquet: must expand to at most 200 times its size"
    with (
        pytest.raises(BeyondBounds, match=law),
        files.open_bytes(path) as stream,
        parquet_rows(stream, "bomb.parquet") as (_, rows),
    ):
        for _ in rows:
            number += 1
            assert pyarrow.total_allocated_bytes() - before < 200 << 20
    assert number < 30


def test_rows_of_every_kind_are_read_as_they_were_written(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from trainbook.bounded.arrow import parquet_rows

    rows = [
        {
            "text": "one",
            "n": 1,
            "tags": ["a", None],
            "inner": {"x": "y", "z": [b"1"]},
            "pairs": [("k", "v")],
        },
        {"text": None, "n": None, "tags": None, "inner": None, "pairs": None},
        {"text": "one", "n": 3, "tags": [], "inner": {"x": None, "z": []}, "pairs": []},
    ]
    schema = pyarrow.schema(
        [
            ("text", pyarrow.string()),
            ("n", pyarrow.int64()),
            ("tags", pyarrow.list_(pyarrow.string())),
            ("inner", pyarrow.struct([("x", pyarrow.large_string()), ("z", pyarrow.list_(pyarrow.binary()))])),
            ("pairs", pyarrow.map_(pyarrow.string(), pyarrow.string())),
        ]
    )
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "d.parquet")
    with files.open_bytes(tmp_path / "d.parquet") as stream, parquet_rows(stream, "d") as (_, found):
        assert list(found) == rows


# Arrays


def test_a_numpy_header_that_asks_for_more_than_follows_is_refused(tmp_path: Path):
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(BeyondBounds, match=r"8,000,000,000,000 bytes"):
        arrays.load_array(tmp_path / "a.npy")


def test_arrays_are_read_as_they_were_written(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.arange(12).reshape(3, 4))
    assert np.array_equal(arrays.load_array(tmp_path / "a.npy"), np.arange(12).reshape(3, 4))
    np.savez(tmp_path / "a.npz", one=np.arange(3), two=np.empty((0, 2)))
    with arrays.opened_arrays(tmp_path / "a.npz") as found:
        assert found["one"].tolist() == [0, 1, 2]


def test_an_archive_that_expands_is_refused(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", one=np.zeros(1_000_000))
    with pytest.raises(BeyondBounds, match=r"must not expand"), arrays.opened_arrays(tmp_path / "a.npz"):
        pass


def test_a_safetensors_header_that_is_longer_than_the_file_is_refused(tmp_path: Path):
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 1 << 50) + b"{}")
    with pytest.raises(BeyondBounds, match=r"must have a header of at most 2 bytes"):
        arrays.open_tensors(tmp_path / "m.safetensors")


def test_a_pipe_is_no_safetensors_file(tmp_path: Path):
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(OSError, match=r"a pipe"):
        arrays.open_tensors(tmp_path / "m.safetensors")
