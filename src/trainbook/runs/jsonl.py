"""JSON Lines files: appended to, followed while they grow, and repaired after a crash.

JSON has no NaN or infinity. They are written as the strings "NaN", "Infinity" and "-Infinity", which every JSON
reader accepts, and read back as floats.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.contained import open_no_link
from trainbook.errors import RunFolderError
from trainbook.runs.disk import naming_the_file, write_parts_atomically

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAIL_BLOCK_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20

MOST_TOLD = 5  # of lines that are no rows, each by itself


@dataclass(frozen=True)
class Extent:
    """The extent of a file at some time. Files are only appended to, so its beginning must stay the same."""

    rows: int
    bytes: int
    sha256: str


class JsonlWriter:
    """One writer at a time; the run folder's lock sees to that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming_the_file(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_end(path)
            self._descriptor = open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._rows, self._bytes, self._digest = _measure(path, path.stat().st_size)

    @property
    def extent(self) -> Extent:
        return Extent(self._rows, self._bytes, self._digest.hexdigest())

    def append(self, row: Mapping[str, Any]) -> None:
        line = (dumps(row) + "\n").encode()
        with naming_the_file(self.path):
            size_before = os.fstat(self._descriptor).st_size
            try:
                # Straight to the kernel, with no buffer of ours: a killed process loses nothing it has appended.
                written = 0
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                with suppress(OSError):  # the first error is the one to tell
                    os.ftruncate(self._descriptor, size_before)  # a full disk may take half a line
                raise
        self._rows, self._bytes = self._rows + 1, self._bytes + len(line)
        self._digest.update(line)

    def fsync(self) -> None:
        with naming_the_file(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Unreadable:
    """A line that is no row."""

    number: int  # the first line is 1
    law: str  # what it breaks

    def told(self, path: Path) -> str:
        return f"{path}:{self.number}: {self.law}"


@dataclass(frozen=True)
class Skipped:
    """Lines of a file that are no rows."""

    numbers: Sequence[int] = ()
    told: Sequence[Unreadable] = ()  # the first of them, at least

    def __len__(self) -> int:
        return len(self.numbers)

    def lines(self, path: Path, each: str, more: str) -> list[str]:
        """A sentence for each of the first ones, and one for the others."""
        found = [each.format(line.told(path)) for line in self.told[:MOST_TOLD]]
        rest = len(self) - len(found)
        return [*found, f"{path}: {more.format(f'{rest:,}')}"] if rest else found


def read(path: Path) -> list[dict[str, Any]]:
    """All complete rows; an incomplete last line, still being written or torn by a crash, is left out."""
    rows, unreadable = scan(path)
    if unreadable and unreadable[0].number <= len(rows):  # rows follow it: no crash has left it there
        raise RunFolderError(f"{unreadable[0].told(path)}. Fix or remove the line.")
    return rows


def scan(
    path: Path, broken_law: Callable[[dict[str, Any]], str] = lambda row: ""
) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    """All rows that keep the laws, and the lines that are none. Zeros, which a power cut can leave, are neither."""
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    if not path.exists():
        return rows, unreadable
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):  # not yet a line
                break
            row, law = row_of(line[:-1], broken_law)
            if row is not None:
                rows.append(row)
            elif law:
                unreadable.append(Unreadable(number, law))
    return rows, unreadable


def row_of(line: bytes, broken_law: Callable[[dict[str, Any]], str]) -> tuple[dict[str, Any] | None, str]:
    """The row, or the law that the line breaks; neither of a line that is empty or of zeros."""
    row = _parse(line)
    law = f"must be one JSON object per line, but got {line[:60]!r}" if row is None else broken_law(row)
    return (None, law if line.strip(b"\0") else "") if row is None or law else (row, "")


def set_aside(path: Path, numbers: Collection[int]) -> Path:
    """Take lines that are no rows out of a file, and keep their bytes in another beside it, which comes first."""
    aside = path.with_name(f"{path.name}.unreadable")
    gone = set(numbers)
    with naming_the_file(aside), open(open_no_link(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as kept_aside:
        with open_bytes(path) as file:
            kept_aside.writelines(line for number, line in enumerate(file, start=1) if number in gone)
        kept_aside.flush()
        os.fsync(kept_aside.fileno())
    with open_bytes(path) as file:
        write_parts_atomically(path, (line for number, line in enumerate(file, start=1) if number not in gone))
    return aside


def has_rows(path: Path) -> bool:
    if not path.is_file():
        return False
    with _opened(path) as file:
        return any(b"\n" in block for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _opened(path: Path) -> BinaryIO:
    try:
        return open_bytes(path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}.") from None


def lost_since(path: Path, then: Extent) -> str:
    """What happened to the rows of that time, as the end of a sentence; empty if they are all unchanged."""
    if not path.exists():
        return f"is missing; it held {then.rows:,} rows" if then.rows else ""
    if not path.is_file():
        return f"is no file; it held {then.rows:,} rows"
    _, _, digest = _measure(path, then.bytes)
    if digest.hexdigest() == then.sha256:
        return ""
    now, _, _ = _measure(path, path.stat().st_size)
    if now < then.rows:
        return f"has {now:,} row(s); it held {then.rows:,}"
    return f"has lost or changed some of the {then.rows:,} rows that it held"


def _measure(path: Path, size: int) -> tuple[int, int, Any]:
    """Rows, bytes and hash of the file's first `size` bytes."""
    rows, read, digest = 0, 0, hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(min(_BLOCK_BYTES, size - read)):
            rows, read = rows + block.count(b"\n"), read + len(block)
            digest.update(block)
    return rows, read, digest


def dumps(row: Mapping[str, Any]) -> str:
    return json.dumps(_encode(row), allow_nan=False, ensure_ascii=False)


def loads(line: str | bytes) -> dict[str, Any]:
    return _decode(json_text.loads(line))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value


def _cut_torn_end(path: Path) -> None:
    """Cut the file after its last whole row, so that what is appended next starts on a line of its own."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(open_no_link(path, os.O_RDWR), "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        keep, tail = end, b""
        while keep > 0:
            start = max(0, keep - _TAIL_BLOCK_BYTES)
            file.seek(start)
            tail = file.read(keep - start) + tail
            keep = start
            lines = tail.split(b"\n")
            # lines[0] may begin before this block, lines[-1] is not ended: only those between are known whole.
            first_known = 0 if start == 0 else 1
            for index in range(len(lines) - 2, first_known - 1, -1):
                if _parse(lines[index]) is not None:
                    whole = start + sum(len(line) + 1 for line in lines[: index + 1])
                    if whole < end:
                        file.truncate(whole)
                    return
        file.truncate(0)
