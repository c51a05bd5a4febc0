"""CSV: rows of cells, with limits on the number of columns and on the size of a cell."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from trainbook.errors import BeyondBounds

MOST_COLUMNS = 16_384
MOST_CELL_CHARACTERS = 64 << 20  # a cell may be a whole document; the reader takes up to eight bytes for each character

Error = csv.Error


class CsvRows:
    """As `csv.reader`: iterates over rows, and `line_num` is the last line that was read."""

    def __init__(self, lines: Iterable[str], delimiter: str, shown: str, *, strict: bool = False) -> None:
        csv.field_size_limit(MOST_CELL_CHARACTERS)
        self._rows = csv.reader(lines, delimiter=delimiter, strict=strict)
        self._shown = shown

    @property
    def line_num(self) -> int:
        return self._rows.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        row = next(self._rows)
        if len(row) > MOST_COLUMNS:
            place = f"{self._shown}:{self._rows.line_num}"
            raise BeyondBounds(f"{place}: must have at most {MOST_COLUMNS:,} columns, but has {len(row):,}.")
        return row
