"""Runs that somebody looks at: their columns are kept while there is room, and read on when their files grow."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.board.answers import Refused
from trainbook.board.finding_runs import Place, Stamp
from trainbook.board.memory import give_back
from trainbook.bounded.files import open_bytes
from trainbook.contained import must_stay_inside
from trainbook.errors import TrainbookError
from trainbook.runs import RunFolder, blocks
from trainbook.runs.blocks import RowBlock
from trainbook.runs.folder import law_of_metrics
from trainbook.runs.foreign import read_foreign
from trainbook.runs.run_record import RunRecord, read_run
from trainbook.runs.table import Table

MOST_BYTES = 48 << 20  # of columns, of all runs together
MOST_PIECES = 64  # that a growing file is read in, before they are put together
CHECKED_BYTES = 256  # before the place to read on from: they must be the same as before


class GrowingFolder(RunFolder):
    """A run folder whose metrics are read on from where they ended."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self._read: Table | None = None
        self._inode, self._end, self._last = 0, 0, b""

    def _table(self) -> Table:
        if self._read is not None and self._can_read_on():
            self._read_on(self._read)
        else:
            self._read = super()._table()
        self._note_end(self._read)
        return self._read

    def _can_read_on(self) -> bool:
        if self._read is None or not self._end or len(self._read.blocks) > MOST_PIECES:
            return False
        try:
            with open_bytes(self.metrics_file) as file:
                file.seek(max(0, self._end - CHECKED_BYTES))
                return os.fstat(file.fileno()).st_ino == self._inode and file.read(len(self._last)) == self._last
        except OSError:
            return False

    def _read_on(self, table: Table) -> None:
        path = self.metrics_file
        more = [blocks.parse(piece, law_of_metrics) for piece in blocks.pieces(path, self._end)]
        if more:
            self._read = Table.of_file(path, law_of_metrics, [*table.blocks, *more])

    def _note_end(self, table: Table) -> None:
        self._end = table.blocks[-1].end if table.blocks else 0
        if not self._end:
            return
        with open_bytes(self.metrics_file) as file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(max(0, self._end - CHECKED_BYTES))
            self._last = file.read(min(CHECKED_BYTES, self._end))

    @property
    def bytes(self) -> int:
        return 0 if self._read is None else table_bytes(self._read)


def table_bytes(table: Table) -> int:
    """That its columns take in memory; those of a stored block are in files."""
    held = [block for block in table.blocks if isinstance(block, RowBlock)]
    columns = [column for block in held for column in block.columns.values()]
    places = sum(column.at.nbytes for column in columns if column.at is not None)
    return sum(block.starts.nbytes for block in held) + sum(column.values.nbytes for column in columns) + places


@dataclass
class OpenRun:
    """`nested` has metrics that are mappings in the rows, such as norms of layers, once they were asked for."""

    place: Place
    stamp: Stamp
    record: RunRecord
    folder: GrowingFolder | None = None
    light_bytes: int = 0  # where only some columns were read
    nested: dict[tuple[str, str], dict[str, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    @property
    def has_config(self) -> bool:
        """Of a run of the command line: one of `fit` has its module and data in a program."""
        return self.folder is not None and self.record.origin == "trainbook" and self.folder.config.is_file()

    @property
    def bytes(self) -> int:
        held = (self.folder.bytes if self.folder is not None else 0) + 100_000
        return held + sum(
            steps.nbytes + values.nbytes for found in self.nested.values() for steps, values in found.values()
        )


class Records:
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def open(self, place: Place) -> OpenRun:
        """The run as it is now."""
        with self._lock:
            lock = self._locks.setdefault(place.id, threading.Lock())
        with lock:
            stamp = place.stamp()
            known = self._open.get(place.id)
            is_new = known is None
            if known is None or known.stamp != stamp:
                known = _opened(place, stamp, known)
            if is_new:
                give_back()
        with self._lock:
            self._open[place.id] = known
            self._open.move_to_end(place.id)
            self._make_room()
        return known

    def is_open(self, place: Place) -> bool:
        with self._lock:
            return place.id in self._open

    def forget(self, id: str) -> None:
        with self._lock:
            self._open.pop(id, None)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(each.bytes for each in self._open.values())

    def _make_room(self) -> None:
        sizes = {id: each.bytes for id, each in self._open.items()}
        total = sum(sizes.values())
        while total > self.most_bytes and len(self._open) > 1:
            id, _ = self._open.popitem(last=False)
            total -= sizes[id]


def _opened(place: Place, stamp: Stamp, before: OpenRun | None) -> OpenRun:
    try:
        if place.kind == "foreign":
            record = read_foreign(place.path)
            if record is None:
                raise Refused(400, f"{place.path.name} is no log that can be read.")
            return OpenRun(place, stamp, record)
        must_stay_inside(place.path)
        folder = before.folder if before is not None and before.folder is not None else GrowingFolder(place.path)
        return OpenRun(place, stamp, read_run(folder), folder)
    except (TrainbookError, OSError) as error:
        raise Refused(400, str(error)) from None
