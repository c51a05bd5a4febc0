"""Files of one JSON object a line: appended to, tailed, and whole again after a crash.

JSON has no NaN or infinity. They are written as the strings "NaN", "Infinity" and "-Infinity", which every JSON
reader accepts, and read back as floats.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.errors import RunFolderError
from trainbook.runs.disk import naming_the_file

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAIL_BLOCK_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Extent:
    """What a file of rows held at some moment. It is only appended to, so that must be its beginning ever after."""

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
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
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


def read(path: Path) -> list[dict[str, Any]]:
    """All whole rows; a last line that is still being written, or was torn by a crash, is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is empty, or not yet a line
    rows = [_parse(line) for line in lines]
    while rows and rows[-1] is None:
        rows.pop()  # a power cut can leave whole lines of zeros at the end
    for number, row in enumerate(rows, start=1):
        if row is None:
            raise RunFolderError(
                f"{path}:{number}: must be one JSON object a line, but got {lines[number - 1][:60]!r}. "
                "Mend the line, or take it out."
            )
    return [row for row in rows if row is not None]


def has_rows(path: Path) -> bool:
    return path.is_file() and b"\n" in path.read_bytes()


def lost_since(path: Path, then: Extent) -> str:
    """What became of the rows that the file held then, as the end of a sentence; empty if every one is still there."""
    if not path.exists():
        return f"is gone, and with it the {then.rows:,} rows that it held" if then.rows else ""
    _, _, digest = _measure(path, then.bytes)
    if digest.hexdigest() == then.sha256:
        return ""
    now, _, _ = _measure(path, path.stat().st_size)
    if now < then.rows:
        return f"has {now:,} row(s), and held {then.rows:,}"
    return f"is not what it was: of the {then.rows:,} rows that it held, some were changed or lost"


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
    return _decode(json.loads(line))


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
    with open(path, "r+b") as file:
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
