"""A file of rows in blocks of some megabytes: each read, parsed and turned into columns by itself.

Where a block begins follows from the bytes before it, so that a file which grows keeps its earlier blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.runs import jsonl
from trainbook.runs.columns import Column, Texts, columns_of, joined
from trainbook.runs.schema import LARGEST_STEP

BLOCK_BYTES = 8 << 20
PARSED_BYTES = 1 << 20  # at a time: rows as Python objects take about ten times as much
MOST_TOLD = 20  # lines of a block that are no rows, each with the law that it breaks

Row = dict[str, Any]
Law = Callable[[Row], str]


@dataclass(frozen=True)
class FilePiece:
    """Bytes of a file: whole lines."""

    start: int
    content: bytes
    is_full: bool  # its end stays where it is, however the file grows
    is_one_line: bool = False  # that is longer than a row may be; `content` has its beginning
    end: int = 0

    def __post_init__(self) -> None:
        if not self.end:
            object.__setattr__(self, "end", self.start + len(self.content))


@dataclass
class RowBlock:
    """The rows of a piece as columns."""

    start: int
    end: int
    lines: int
    rows: int
    starts: np.ndarray  # of each row's line, from the block's
    columns: dict[str, Column]
    texts: Texts = field(default_factory=Texts)
    skipped: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))  # numbers of lines that are no rows
    told: list[tuple[int, str]] = field(default_factory=list)  # of the first of these: number, law

    @property
    def names(self) -> set[str]:
        return set(self.columns)

    def starts_of_rows(self) -> np.ndarray:
        return self.starts

    def column(self, name: str) -> Column | None:
        return self.columns.get(name)


def pieces(path: Path, start: int = 0) -> Iterator[FilePiece]:
    """Without what follows the last newline, which is not yet a line."""
    with open_bytes(path) as file:
        file.seek(start)
        while piece := read_piece(file, start):
            yield piece
            start = piece.end
            file.seek(start)


def read_piece(file: BinaryIO, start: int) -> FilePiece | None:
    content = file.read(BLOCK_BYTES)
    cut = content.rfind(b"\n") + 1
    if cut:
        return FilePiece(start, content[:cut], is_full=len(content) == BLOCK_BYTES)
    end = start + len(content)
    while more := file.read(BLOCK_BYTES):
        if (cut := more.find(b"\n") + 1) > 0:
            return FilePiece(start, content[:PARSED_BYTES], is_full=True, is_one_line=True, end=end + cut)
        end += len(more)
    return None


def parse(piece: FilePiece, broken_law: Law) -> RowBlock:
    if piece.is_one_line:
        law = f"must be at most {BLOCK_BYTES >> 20} MB long, but got {piece.end - piece.start >> 20} MB"
        return RowBlock(
            piece.start, piece.end, 1, 0, np.zeros(0, np.uint32), {}, skipped=np.ones(1, np.uint32), told=[(1, law)]
        )
    texts = Texts()
    skipped: list[int] = []
    told: list[tuple[int, str]] = []
    starts: list[np.ndarray] = []
    columns: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    rows = lines = 0
    for begin, content in _parts(piece.content):
        found = content.split(b"\n")[:-1]
        lengths = np.fromiter(map(len, found), dtype=np.uint32, count=len(found)) + np.uint32(1)
        at = np.cumsum(lengths, dtype=np.uint32) - lengths + np.uint32(begin)
        kept = _all_rows(found, content)
        if kept is None:
            kept, whole, problems = _some_rows(found, broken_law)
            at = at[whole]
            skipped += [lines + number for number, _ in problems]
            told += [(lines + number, law) for number, law in problems[: MOST_TOLD - len(told)]]
        for name, column in columns_of(kept, texts).items():
            here = np.arange(len(kept), dtype=np.uint32) if column.at is None else column.at
            columns.setdefault(name, []).append((here + np.uint32(rows), column.values))
        starts.append(at)
        rows, lines = rows + len(kept), lines + len(found)
    return RowBlock(
        piece.start,
        piece.end,
        lines,
        rows,
        np.concatenate(starts) if starts else np.zeros(0, np.uint32),
        {name: joined(found, rows) for name, found in columns.items()},
        texts,
        np.array(skipped, dtype=np.uint32),
        told,
    )


def of_rows(rows: Sequence[Row]) -> RowBlock:
    """Rows that are in no file of ours."""
    texts = Texts()
    return RowBlock(0, 0, len(rows), len(rows), np.zeros(len(rows), np.uint32), columns_of(rows, texts), texts)


def _parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", min(begin + PARSED_BYTES, len(content) - 1)) + 1
        yield begin, content[begin:end]
        begin = end


def _all_rows(lines: Sequence[bytes], content: bytes) -> list[Row] | None:
    """All lines at once, several times as fast as one by one; None if any of them needs a closer look."""
    rows = json_text.load_lines(lines)
    if rows is None or set(map(type, rows)) != {dict}:
        return None
    return rows if _are_in_order(rows) and not _is_deep(rows, content) else None


def _are_in_order(rows: Sequence[Row]) -> bool:
    """Whether each has a step and a segment that are whole numbers."""
    columns: tuple[list[Any], list[Any]] = [row.get("step") for row in rows], [row.get("segment", 0) for row in rows]
    for found in columns:
        if set(map(type, found)) != {int} or max(found) > LARGEST_STEP or min(found) < -LARGEST_STEP:
            return False
    return True


def _is_deep(rows: Sequence[Row], content: bytes) -> bool:
    """Whether a value holds lists or mappings of lists or mappings: what is hostile is parsed by itself."""
    if content.count(b"{") + content.count(b"[") == len(rows):
        return False
    nested = (value for row in rows for value in row.values() if type(value) in (dict, list))
    inner = (item for value in nested for item in (value.values() if type(value) is dict else value))
    return any(type(item) in (dict, list) for item in inner)


def _some_rows(lines: Sequence[bytes], broken_law: Law) -> tuple[list[Row], list[int], list[tuple[int, str]]]:
    """Rows, their places, and the numbers of lines that are none, each with the law that it breaks."""
    rows, places, problems = [], [], []
    for place, line in enumerate(lines):
        row, law = jsonl.row_of(line, broken_law)
        if row is not None:
            rows.append(row)
            places.append(place)
        elif law:
            problems.append((place + 1, law))
    return rows, places, problems
