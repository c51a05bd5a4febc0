"""A few columns of a metrics file without parsing its lines, which is many times as fast: a comparison needs one metric
of each run.

Lines are taken apart only if they begin and end as the loop writes them; otherwise they are parsed. What is damaged in
another column of a line is not noticed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.runs import RunFolder, blocks
from trainbook.runs.blocks import FilePiece, RowBlock
from trainbook.runs.column_files import ColumnFiles, StoredBlock, identity
from trainbook.runs.columns import Column, Texts
from trainbook.runs.folder import law_of_metrics
from trainbook.runs.schema import LARGEST_METRIC, LARGEST_STEP
from trainbook.runs.table import Table

Rows = Literal["all", "eval"]

_HEAD = rb'\{"step": (\d{1,15}), "segment": (\d{1,15}), "split": "(train|eval)",(?= )'
_VALUE = rb'(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|"NaN"|"-?Infinity")[,}]'
_EVALUATION = b'"split": "eval"'
_NON_FINITE = {b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf}
_NEWLINE, _CLOSING_BRACE = ord("\n"), ord("}")


class LightFolder(RunFolder):
    """A run folder of whose metrics only these columns are read; with `rows` "eval", all columns of evaluations."""

    def __init__(self, path: Path, names: Sequence[str], rows: Rows = "all") -> None:
        super().__init__(path)
        self._names: Sequence[str] = names
        self._rows: Rows = rows
        self.last_table = Table(())

    def _table(self) -> Table:
        if not self.metrics_file.exists():
            return super()._table()
        found = _light_blocks(self.metrics_file, self._names, self._rows)
        self.last_table = Table.of_file(self.metrics_file, law_of_metrics, found)
        return self.last_table


def _light_blocks(path: Path, names: Sequence[str], rows: Rows) -> Iterator[RowBlock | StoredBlock]:
    """Those that a reader has stored are used as they are."""
    files = ColumnFiles(path.parent)
    before, is_known = identity(path), files.known_as(path)
    start = number = 0
    with open_bytes(path) as file:
        while True:
            stored = files.load(number, start) if is_known else None
            if stored is not None and stored[0].end <= before["size"]:
                yield stored[0]
                start, number = stored[0].end, number + 1
                continue
            file.seek(start)
            piece = blocks.read_piece(file, start)
            if piece is None:
                return
            light = evaluation_block(piece) if rows == "eval" else light_block(piece, names)
            yield light or blocks.parse(piece, law_of_metrics)
            start, number = piece.end, number + 1


def light_block(piece: FilePiece, names: Sequence[str]) -> RowBlock | None:
    """None: a line is not as the loop writes them."""
    content = piece.content
    starts = _starts(content)
    if piece.is_one_line or starts is None or b"\\" in content:
        return None
    num_nested = content.count(b"{") - len(starts)
    if num_nested and content.count(b'": {') != num_nested:
        return None
    places, columns = starts.tolist(), {}
    for name in names or ("",):
        match = _pattern(name).match
        found = [match(content, place) for place in places]
        if not all(found):
            return None
        groups = [each.groups() for each in found if each is not None]
        if not columns:
            columns = _columns_of_heads(groups)
            if columns["step"].values.max() > LARGEST_STEP:
                return None
        column = _column(content, places, name, [each[3] for each in groups], num_nested > 0) if name else None
        if name and column is None:
            return None
        if column is not None and len(column.values):
            columns[name] = column
    texts = Texts(["train", "eval"])
    return RowBlock(piece.start, piece.end, len(places), len(places), starts.astype(np.uint32), columns, texts)


def evaluation_block(piece: FilePiece) -> RowBlock | None:
    """The rows of evaluations, parsed; of few rows among many."""
    content = piece.content
    if piece.is_one_line or not content.startswith(b'{"step": ') or b"\\" in content:
        return None
    rows, starts, at = [], [], 0
    while (found := content.find(_EVALUATION, at)) >= 0:
        start, at = content.rfind(b"\n", 0, found) + 1, content.find(b"\n", found)
        try:
            row = json_text.loads(content[start:at])
        except ValueError:
            return None
        if not isinstance(row, dict) or law_of_metrics(row):
            return None
        rows.append(row)
        starts.append(start)
    block = blocks.of_rows(rows)
    block.start, block.end, block.starts = piece.start, piece.end, np.array(starts, dtype=np.uint32)
    return block


def _starts(content: bytes) -> np.ndarray | None:
    """Of the lines; None where one does not end as an object does."""
    letters = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    if not len(ends) or ends[0] == 0 or not (letters[ends - 1] == _CLOSING_BRACE).all():
        return None
    return np.concatenate([[0], ends[:-1] + 1])


def _columns_of_heads(groups: Sequence[tuple[bytes, ...]]) -> dict[str, Column]:
    texts = Texts(["train", "eval"])
    codes = {name: texts.code(name.decode()) for name in (b"train", b"eval")}
    splits = np.fromiter((codes[each[2]] for each in groups), dtype=np.uint64, count=len(groups))
    steps, segments = (np.fromiter(map(float, (each[n] for each in groups)), float, len(groups)) for n in (0, 1))
    return {
        "step": Column(None, steps),
        "segment": Column(None, segments),
        "split": Column(None, splits.view(np.float64)),
    }


def _column(
    content: bytes, places: Sequence[int], name: str, texts: Sequence[bytes | None], is_nested: bool
) -> Column | None:
    key = f'"{name}": '.encode()
    rows = [row for row, text in enumerate(texts) if text is not None]
    if len(rows) < len(places) and _is_elsewhere(content, places, rows, key):
        return None
    if is_nested and any(_is_inside(content, places[row], content.find(key, places[row])) for row in rows):
        return None
    values = np.array([_number(text) for text in texts if text is not None], dtype=np.float64)
    far = np.abs(values) > LARGEST_METRIC
    values[far] = np.copysign(np.inf, values[far])
    return Column(None if len(rows) == len(places) else np.array(rows, dtype=np.uint32), values)


@cache
def _pattern(name: str) -> re.Pattern[bytes]:
    """Step, segment, split and, where it is there, the value of a metric of a line."""
    key = re.escape(name.encode())
    return re.compile(_HEAD + (rb'(?:[^\n]*?"' + key + rb'": ' + _VALUE + rb")?" if name else b""))


def _is_elsewhere(content: bytes, places: Sequence[int], rows: Sequence[int], key: bytes) -> bool:
    """Whether a line has the name with a value that is no number."""
    without = set(range(len(places))) - set(rows)
    ends = [*places[1:], len(content)]
    return any(content.find(key, places[row], ends[row]) >= 0 for row in without)


def _is_inside(content: bytes, start: int, at: int) -> bool:
    """Whether it stands in a mapping of the row, as of a layer that is called like the metric."""
    return content.rfind(b"{", start, at) > max(start, content.rfind(b"}", start, at))


def _number(text: bytes) -> float:
    return _NON_FINITE[text] if text[:1] == b'"' else float(text)
