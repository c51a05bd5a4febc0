"""The rows of a metrics file as columns, however long it is: in memory there is a block at a time."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, overload

import numpy as np

from trainbook.bounded.files import open_bytes
from trainbook.errors import RunFolderError
from trainbook.runs import blocks, jsonl
from trainbook.runs.blocks import Law, Row, RowBlock
from trainbook.runs.column_files import ColumnFiles, DamagedCache, StoredBlock, hash_of, identity
from trainbook.runs.columns import (
    ABSENT,
    absent,
    are_flags,
    are_logged,
    are_numbers,
    are_true,
    as_numbers,
    bits_of,
    plain_values,
)
from trainbook.runs.schema import bounded_row

MOST_ROWS = 2_000_000  # of several columns together; of more rows an even selection
KEPT_BYTES = 2**20  # of lines of which the rows are kept
Pick = Callable[[int], np.ndarray]  # of so many values, the indices of those that are wanted, in their order


class Table:
    """All rows of a file, or of a list."""

    def __init__(self, found: Iterable[RowBlock | StoredBlock], rows: Sequence[Row] = ()) -> None:
        self.blocks = list(found)
        self._rows = rows
        self._source: tuple[Path, Law] | None = None
        self._kept: dict[tuple[int, int], Row] = {}  # rows as mappings, which the rules of the doctor ask for in turn
        self._room = KEPT_BYTES

    @classmethod
    def read(cls, path: Path, broken_law: Law) -> Table:
        return cls.of_file(path, broken_law, _read_blocks(path, broken_law) if path.exists() else ())

    @classmethod
    def of_file(cls, path: Path, broken_law: Law, found: Iterable[RowBlock | StoredBlock]) -> Table:
        """Of blocks of the file that somebody has read."""
        table = cls(found)
        table._source = path, broken_law
        return table

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Table:
        return cls([blocks.of_rows(rows)] if rows else [], rows)

    def rows(self) -> TableRows:
        return TableRows(self, [None] * len(self.blocks))

    def skipped(self) -> jsonl.Skipped:
        """The lines that are no rows, by their numbers in the file."""
        before = list(accumulate((block.lines for block in self.blocks), initial=0))[:-1]
        numbers = [self._read(number, lambda block: block.skipped) + first for number, first in enumerate(before)]
        told = [
            jsonl.Unreadable(first + number, law)
            for block, first in zip(self.blocks, before, strict=True)
            for number, law in block.told
        ]
        return jsonl.Skipped(array("q", np.concatenate(numbers).astype(np.int64).tobytes() if numbers else b""), told)

    def column(self, number: int, name: str, mask: np.ndarray | None) -> np.ndarray:
        """Of a block, or of some of its rows."""
        found = self._read(number, lambda block: block.column(name))
        rows = self.blocks[number].rows
        values = absent(rows) if found is None else found.dense(rows)
        return values if mask is None else values[mask]

    def rows_of(self, number: int, wanted: np.ndarray) -> Iterator[Row]:
        """Rows of a block, by their places in it."""
        places = wanted.tolist()
        if all((number, place) in self._kept for place in places):
            yield from (dict(self._kept[number, place]) for place in places)
            return
        for place, (row, size) in zip(places, self._read_rows(number, places), strict=True):
            found = bounded_row(row)
            if size <= self._room and (number, place) not in self._kept:
                self._kept[number, place], self._room = dict(found), self._room - size
            yield found

    def _read_rows(self, number: int, places: Sequence[int]) -> Iterator[tuple[Row, int]]:
        """Each with the bytes of its line."""
        if self._source is None:
            yield from ((self._rows[place], 50 * len(self._rows[place])) for place in places)
            return
        block = self.blocks[number]
        starts = self._read(number, lambda block: block.starts_of_rows())
        steps = self.column(number, "step", None)
        with open_bytes(self._source[0]) as file:
            file.seek(block.start)
            content = file.read(block.end - block.start) if len(places) > 16 else b""
            for place in places:
                start = int(starts[place])
                if content:
                    line = content[start : content.find(b"\n", start)]
                else:
                    file.seek(block.start + start)
                    line = file.readline(blocks.BLOCK_BYTES).removesuffix(b"\n")
                row, _ = jsonl.row_of(line, self._source[1])
                if row is None or row["step"] != steps[place]:
                    raise RunFolderError(f"{self._source[0]} was rewritten while it was read. Try again.")
                yield row, len(line)

    def _read(self, number: int, part: Callable[[RowBlock | StoredBlock], Any]) -> Any:
        """What a damaged or deleted file of the cache held is read from the rows again."""
        try:
            return part(self.blocks[number])
        except DamagedCache:
            assert self._source is not None
            block = self.blocks[number]
            with open_bytes(self._source[0]) as file:
                file.seek(block.start)
                piece = blocks.read_piece(file, block.start)
            if piece is None or piece.end != block.end:
                raise RunFolderError(f"{self._source[0]} was rewritten while it was read. Try again.") from None
            self.blocks[number] = blocks.parse(piece, self._source[1])
            return part(self.blocks[number])


class TableRows(Sequence[Row]):
    """Rows of a table, as mappings or as columns. A mapping is read from the file when it is asked for."""

    def __init__(self, table: Table, masks: Sequence[np.ndarray | None]) -> None:
        self._table = table
        self._masks = masks  # of each block, which of its rows; None: all
        counts = [
            block.rows if mask is None else int(np.count_nonzero(mask))
            for block, mask in zip(table.blocks, masks, strict=True)
        ]
        self._ends = list(accumulate(counts))
        self._has: dict[str, bool] = {}

    # As mappings

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return self.at(range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError("there are no so many rows")
        return self.at([place])[0]

    def at(self, places: Iterable[int]) -> list[Row]:
        """The rows of these places, in their order."""
        found = []
        for number, of_block in groupby(places, lambda place: bisect.bisect_right(self._ends, place)):
            before = self._ends[number - 1] if number else 0
            found += self._table.rows_of(number, self._places(number)[[place - before for place in of_block]])
        return found

    def __iter__(self) -> Iterator[Row]:
        for number in range(len(self._ends)):
            yield from self._table.rows_of(number, self._places(number))

    def __reversed__(self) -> Iterator[Row]:
        for number in reversed(range(len(self._ends))):
            yield from self._table.rows_of(number, self._places(number)[::-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} rows>"

    # As columns

    @property
    def names(self) -> set[str]:
        """What any of them has, be it null."""
        return self._names(lambda values: bits_of(values) != np.uint64(ABSENT))

    @property
    def number_names(self) -> set[str]:
        return self._names(lambda values: are_numbers(values) | are_flags(values))

    def has(self, name: str) -> bool:
        """Whether any of them has it, and not null. Kept, because the doctor asks for a few names again and again."""
        if name not in self._has:
            self._has[name] = self._any(name, are_logged)
        return self._has[name]

    @property
    def last_step(self) -> int:
        """The highest; 0 if there is none."""
        return int(max((steps.max() for (steps,) in self.blocks("step") if len(steps)), default=0))

    def has_text(self, name: str, text: str) -> bool:
        return any(
            bool(block.texts.is_text(found[0], text).any())
            for block, found in zip(self._table.blocks, self.blocks(name), strict=True)
        )

    def blocks(self, *names: str) -> Iterator[tuple[np.ndarray, ...]]:
        """For each block of rows in turn, these columns of it; `columns` says what stands where a row has none."""
        for number, mask in enumerate(self._masks):
            yield tuple(self._table.column(number, name, mask) for name in names)

    def plain_blocks(self) -> Iterator[list[Row]]:
        """The rows of each block in turn, made from its columns, which is quicker than from their lines."""
        for number, mask in enumerate(self._masks):
            block = self._table.blocks[number]
            names = sorted(block.names)
            found = [plain_values(self._table.column(number, name, mask), block.texts) for name in names]
            rows = [
                {name: value for name, value in zip(names, values, strict=True) if value is not None}
                for values in zip(*found, strict=True)
            ]
            incomplete = [place for place, row in enumerate(rows) if ... in row.values()]
            whole = self._table.rows_of(number, self._places(number)[incomplete]) if incomplete else ()
            for place, row in zip(incomplete, whole, strict=True):
                rows[place] |= {name: row[name] for name, value in rows[place].items() if value is ...}
            yield rows

    def series(self, name: str, pick: Pick | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of the rows that have it; of those that `pick` chooses."""
        if pick is None:
            found = [(steps[kept], values[kept]) for steps, values, kept in self._logged(name)]
        else:
            ends = np.cumsum([len(values[kept]) for _, values, kept in self._logged(name)])
            wanted = pick(int(ends[-1]) if len(ends) else 0)
            found = []
            for (steps, values, kept), end in zip(self._logged(name), ends.tolist(), strict=True):
                first = end - int(np.count_nonzero(kept))
                here = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, end)] - first
                found.append((steps[kept][here], values[kept][here]))
        return as_numbers(steps for steps, _ in found), as_numbers(values for _, values in found)

    def columns(self, *names: str, need: Sequence[str] | None = None) -> tuple[np.ndarray, ...]:
        """These columns of the rows that have all of `need`, by default all; of very many rows of an even selection.

        What is not logged is a NaN that `are_logged` tells from one that is.
        """
        need = names if need is None else need
        every = -(-len(self) // MOST_ROWS) or 1
        parts: list[list[np.ndarray]] = [[] for _ in names]
        seen = 0
        for found in self.blocks(*names, *need):
            kept = np.ones(len(found[0]), dtype=bool)
            for values in found[len(names) :]:
                kept &= are_logged(values)
            chosen = np.flatnonzero(kept)
            begin, seen = -seen % every, seen + len(chosen)
            for part, values in zip(parts, found, strict=False):
                part.append(values[chosen[begin::every]])
        return tuple(np.concatenate(part) if part else np.zeros(0) for part in parts)

    def having(self, *names: str) -> TableRows:
        """Those that have all of these, and not null."""
        return self._where(lambda *found: np.logical_and.reduce([are_logged(values) for values in found]), *names)

    def with_true(self, name: str) -> TableRows:
        """Those of which it counts as true in a condition: not zero, not empty."""
        return self._where(are_true, name)

    def with_text(self, name: str, text: str) -> TableRows:
        masks = [
            _narrowed(mask, block.texts.is_text(found[0], text))
            for block, mask, found in zip(self._table.blocks, self._masks, self.blocks(name), strict=True)
        ]
        return TableRows(self._table, masks)

    def after(self, step: int) -> TableRows:
        """Those of later steps."""
        return self._where(lambda steps: steps > step, "step")

    def first_steps(self) -> dict[int, int]:
        """By segment: its lowest step."""
        lowest: dict[int, int] = {}
        for steps, segments in self.blocks("step", "segment"):
            numbers = np.where(are_logged(segments), segments, 0.0)
            for segment in np.unique(numbers).tolist():
                first = int(steps[numbers == segment].min())
                lowest[int(segment)] = min(first, lowest.get(int(segment), first))
        return lowest

    def up_to(self, ends: Mapping[int, int]) -> TableRows:
        """Without those of a segment that are beyond its end. Of those at an end that several segments have, the ones
        of the segment that was written last."""
        if not ends:
            return self
        segments, steps = (np.array(part, dtype=np.float64) for part in zip(*ends.items(), strict=True))

        def before_end(its_steps: np.ndarray, its_segments: np.ndarray) -> np.ndarray:
            kept = np.ones(len(its_steps), dtype=bool)
            numbers = np.where(are_logged(its_segments), its_segments, 0.0)
            present = np.unique(numbers)
            for segment, end in zip(segments, steps, strict=True):
                if segment in present:
                    kept &= (numbers != segment) | (its_steps <= end)
            return kept

        found = self._where(before_end, "step", "segment")
        return found._last_written_at(np.unique(steps))

    def _last_written_at(self, steps: np.ndarray) -> TableRows:
        """A later segment begins where those before it end: only there can two have the same step."""
        latest: dict[tuple[int, float], float] = {}
        both: list[tuple[np.ndarray, list[tuple[int, float]], np.ndarray]] = []
        texts: list[str] = []
        for block, (its_steps, its_segments, splits) in zip(
            self._table.blocks, self.blocks("step", "segment", "split"), strict=True
        ):
            places = np.flatnonzero(np.isin(its_steps, steps))
            numbers = np.where(are_logged(its_segments), its_segments, 0.0)[places]
            keys = [
                (_split_key(block, splits[place : place + 1], texts), float(its_steps[place]))
                for place in places.tolist()
            ]
            latest.update(zip(keys, numbers.tolist(), strict=True))
            both.append((places, keys, numbers))
        masks = []
        for mask, end, before, (places, keys, numbers) in zip(
            self._masks, self._ends, [0, *self._ends], both, strict=False
        ):
            kept = np.ones(end - before, dtype=bool)
            kept[places] = [latest[key] == number for key, number in zip(keys, numbers.tolist(), strict=True)]
            masks.append(_narrowed(mask, kept))
        return TableRows(self._table, masks)

    def _where(self, choose: Callable[..., np.ndarray], *names: str) -> TableRows:
        masks = [_narrowed(mask, choose(*found)) for mask, found in zip(self._masks, self.blocks(*names), strict=True)]
        return TableRows(self._table, masks)

    def _logged(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for steps, values in self.blocks("step", name):
            yield steps, values, are_logged(values)

    def _names(self, test: Callable[[np.ndarray], np.ndarray]) -> set[str]:
        known = set().union(*(block.names for block in self._table.blocks))
        return {name for name in known if self._any(name, test)}

    def _any(self, name: str, test: Callable[[np.ndarray], np.ndarray]) -> bool:
        return any(
            name in block.names and bool(test(self._table.column(number, name, mask)).any())
            for number, (block, mask) in enumerate(zip(self._table.blocks, self._masks, strict=True))
        )

    def _places(self, number: int) -> np.ndarray:
        mask = self._masks[number]
        return np.arange(self._table.blocks[number].rows) if mask is None else np.flatnonzero(mask)


def as_rows(rows: Sequence[Row]) -> TableRows:
    return rows if isinstance(rows, TableRows) else Table.of(rows).rows()


def _read_blocks(path: Path, broken_law: Law) -> Iterator[RowBlock | StoredBlock]:
    """Those that are kept are used as long as the bytes that they were made from are the same."""
    files = ColumnFiles(path.parent)
    before = identity(path)
    is_known = files.known_as(path)
    start = number = 0
    with open_bytes(path) as file:
        while True:
            loaded = files.load(number, start)
            if loaded is not None and is_known and loaded[0].end <= before["size"]:
                yield loaded[0]
                start, number = loaded[0].end, number + 1
                continue
            file.seek(start)
            piece = blocks.read_piece(file, start)
            if piece is None:
                break
            if (
                loaded is not None
                and piece.is_full
                and loaded[0].end == piece.end
                and loaded[1] == hash_of(piece.content)
            ):
                yield loaded[0]
            else:
                block = blocks.parse(piece, broken_law)
                yield files.store(number, block, piece.content) if piece.is_full else block
            start = piece.end
            number += piece.is_full
    files.drop_from(number)
    if number:
        files.remember(path, before)


def _narrowed(mask: np.ndarray | None, kept: np.ndarray) -> np.ndarray | None:
    if kept.all():
        return mask
    if mask is None:
        return kept
    narrowed = mask.copy()
    narrowed[mask] = kept
    return narrowed


def _split_key(block: RowBlock | StoredBlock, value: np.ndarray, texts: list[str]) -> int:
    """The same for the same split in any block."""
    known = next((text for text in block.texts.known if block.texts.is_text(value, text)[0]), None)
    if known is None:
        return -1 - int(bits_of(value)[0] % 1000)
    if known not in texts:
        texts.append(known)
    return texts.index(known)
