from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from trainbook.data.prepare.hashes import Hashes

LONG_AGO = 1_600_000_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all files that were hashed."""
    names: list[str] = []
    real = hashlib.file_digest

    def file_digest(stream, kind):
        names.append(Path(stream.name).name)
        return real(stream, kind)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    # A file has just been written in a test, and its inode changed: taken as settled all the same.
    monkeypatch.setattr("trainbook.data.prepare.hashes.SETTLED_NANOSECONDS", -(10**12))
    return names


def test_a_file_is_read_once_and_known_to_the_next_start(tmp_path: Path, read: list[str]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    expected = 3, hashlib.sha256(b"abc").hexdigest()
    first = Hashes(tmp_path / "cache")
    assert first.of(file, "book") == first.of(file, "book") == expected
    first.save()
    assert Hashes(tmp_path / "cache").of(file, "book") == expected
    assert read == ["a.txt"]
    assert Hashes(tmp_path / "cache").of(file, "another book") == expected
    assert read == ["a.txt", "a.txt"]


def test_another_text_of_the_same_length_and_time_is_noticed(tmp_path: Path, read: list[str]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    os.utime(file, (LONG_AGO, LONG_AGO))
    hashes = Hashes(tmp_path / "cache")
    before = hashes.of(file, "book")
    file.write_bytes(b"xyz")
    os.utime(file, (LONG_AGO, LONG_AGO))
    assert hashes.of(file, "book") != before
    other = tmp_path / "b.txt"
    other.write_bytes(b"123")
    os.replace(other, file)
    assert hashes.of(file, "book") == (3, hashlib.sha256(b"123").hexdigest())


def test_a_file_that_was_written_just_now_is_not_remembered(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainbook.data.prepare.hashes.SETTLED_NANOSECONDS", 10**15)
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    hashes = Hashes(tmp_path / "cache")
    hashes.of(file, "book")
    hashes.of(file, "book")
    assert len(read) == 2


def test_what_several_writers_remember_is_known_to_all(tmp_path: Path, read: list[str]) -> None:
    for writer in range(3):
        (tmp_path / f"{writer}.txt").write_bytes(b"abc")
        hashes = Hashes(tmp_path / "cache", writer)
        hashes.of(tmp_path / f"{writer}.txt", "book")
        hashes.save()
    again = Hashes(tmp_path / "cache", 7)
    for writer in range(3):
        again.of(tmp_path / f"{writer}.txt", "book")
    assert len(read) == 3


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"a": 3}', b'{"a": [1]}'])
def test_a_damaged_book_is_an_empty_one(tmp_path: Path, read: list[str], content: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    hashes = Hashes(tmp_path / "cache")
    hashes.of(file, "book")
    hashes.save()
    (book,) = (tmp_path / "cache").iterdir()
    book.write_bytes(content)
    assert Hashes(tmp_path / "cache").of(file, "book")[0] == 3
    assert len(read) == 2
