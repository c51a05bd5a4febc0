"""Files of one JSON object a line: appended to, tailed, and whole again after a crash.

JSON has no NaN or infinity. They are written as the strings "NaN", "Infinity" and "-Infinity", which every JSON
reader accepts, and read back as floats.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainbook.errors import RunFolderError
from trainbook.runs.disk import naming_the_file

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAIL_BLOCK_BYTES = 1 << 16


class JsonlWriter:
    """One writer at a time; the run folder's lock sees to that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming_the_file(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_end(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

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
            raise RunFolderError(f"{path}:{number}: must be one JSON object a line, but got {lines[number - 1][:60]!r}")
    return [row for row in rows if row is not None]


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
