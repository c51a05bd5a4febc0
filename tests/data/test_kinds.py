"""What a file is, by its first bytes."""

from __future__ import annotations

import gzip
import io
import pickle
import sqlite3
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from trainbook.data.sources import open_source
from trainbook.data.sources.files import why_not_text
from trainbook.errors import DataError

ENGLISH = "The quick brown fox jumps over the lazy dog.\n" * 40
RUSSIAN = "\u042d\u0442\u043e \u043f\u0440\u043e\u0441\u0442\u043e\u0439 \u0442\u0435\u043a\u0441\u0442.\n" * 40
CHINESE = "\u8fd9\u662f\u4e00\u6bb5\u7b80\u5355\u7684\u4e2d\u6587\u3002\n" * 40


@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, CHINESE], ids=["English", "Russian", "Chinese"])
@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_utf_16_and_utf_32_are_named_with_and_without_a_byte_order_mark(text: str, codec: str) -> None:
    encoding = codec.upper().replace("-LE", "LE").replace("-BE", "BE")
    problem = why_not_text(text.encode(codec), "notes.txt")
    assert problem == (
        f"is {encoding} text without a byte order mark, not UTF-8. "
        f"Convert it first: iconv -f {encoding} -t UTF-8 'notes.txt' > 'notes-utf8.txt'"
    )
    problem = why_not_text(("\ufeff" + text).encode(codec), "notes.txt")
    assert problem is not None and problem.startswith(f"is {encoding[:6]} text, not UTF-8. Convert it first: iconv -f")


@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, CHINESE, "a", "", "PK is a text", "BZh", "ID3 tags", "GGUF", "MZ"])
def test_texts_are_texts_also_in_8_bit_encodings_and_with_a_few_control_characters(text: str) -> None:
    assert why_not_text(text.encode(), "x") is None
    assert why_not_text(text.encode("cp1251", "ignore"), "x") is None
    assert why_not_text(text.encode("gb18030"), "x") is None
    assert why_not_text((ENGLISH + text + "\x00\x1b[0m\f").encode(), "x") is None


def files() -> dict[str, bytes]:
    made = {
        "PNG image": b"\x89PNG\r\n\x1a\n" + bytes(40),
        "PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "compressed with gzip": gzip.compress(b"hello"),
        "NumPy array": b"\x93NUMPY\x01\x00",
        "program (ELF)": Path(sys.executable).resolve().read_bytes()[:4096],
        "Python pickle": pickle.dumps(["a text"] * 10),
        "safetensors": save({"weight": torch.zeros(2, 2)}),
        "a binary file of an unknown kind": np.random.default_rng(0).bytes(4096),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "hello")
    made["zip archive"] = packed.getvalue()
    torch.save({"weight": torch.zeros(2)}, packed := io.BytesIO())
    made["PyTorch checkpoint"] = packed.getvalue()
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as archive:
        archive.add(__file__)
    made["tar archive"] = packed.getvalue()
    return made


@pytest.mark.parametrize("what", files())
def test_a_binary_file_is_named_for_what_it_is_and_not_told_to_be_converted(what: str, tmp_path: Path) -> None:
    for name in ("d.txt", "d.jsonl", "d.csv", "d.conll"):
        (tmp_path / name).write_bytes(files()[what])
        with pytest.raises(DataError) as caught:
            list(open_source(str(tmp_path / name)).documents())
        assert what in str(caught.value)
        assert "onvert" not in str(caught.value)


def test_a_database_and_a_compressed_binary_are_named(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "rows.txt") as database:
        database.execute("create table rows (text)")
    (tmp_path / "image.txt.gz").write_bytes(gzip.compress(files()["PNG image"]))
    for name, message in (
        ("rows.txt", "it is an SQLite database, not text. Export the table as CSV or JSONL first."),
        ("image.txt.gz", "its compressed content is a PNG image, not text."),
    ):
        with pytest.raises(DataError) as caught:
            list(open_source(str(tmp_path / name)).documents())
        assert str(caught.value) == f"data.source: '{tmp_path}/{name}' cannot be read: {message}"
