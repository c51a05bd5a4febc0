"""Many files of numbers, read as one long array: only what is asked for, and never many files open at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MOST_OPEN = 64  # a mapped file keeps a handle, of which a process may have about a thousand


class ConcatMemmap:
    """Files one behind the other. It is read by slices and by arrays of places, as a mapped file is.

    A file may hold more than its length here: what is behind it is not part of the whole.
    """

    ndim = 1

    def __init__(self, paths: Sequence[Path], lengths: Sequence[int], dtype: Any, most_open: int = MOST_OPEN) -> None:
        self.paths, self.dtype, self.most_open = list(map(str, paths)), np.dtype(dtype), most_open
        self.bounds = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
        self._open: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, asked: int | slice | np.ndarray) -> Any:
        if isinstance(asked, slice):
            begin, end, step = asked.indices(len(self))
            if step != 1:
                return self._gather(np.arange(begin, end, step))
            return self._slice(begin, max(begin, end))
        if isinstance(asked, np.ndarray):
            return self._gather(asked)
        return self._gather(np.array([asked]))[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._slice(0, len(self)).astype(dtype or self.dtype, copy=False)

    def _slice(self, begin: int, end: int) -> np.ndarray:
        first, last = np.searchsorted(self.bounds, [begin, max(begin, end - 1)], side="right") - 1
        pieces = []
        for file in range(first, min(last + 1, len(self.paths))):
            start = int(self.bounds[file])
            if self.bounds[file + 1] == start:
                continue  # an empty file cannot be mapped
            pieces.append(self._read(file, slice(max(begin - start, 0), min(end, int(self.bounds[file + 1])) - start)))
        return np.concatenate([*pieces, np.empty(0, dtype=self.dtype)])

    def _gather(self, places: np.ndarray) -> np.ndarray:
        if len(places) == 0:
            return np.empty(0, dtype=self.dtype)
        lowest, highest = int(places.min()), int(places.max())
        if lowest < 0:
            places = np.where(places < 0, places + len(self), places)
            lowest, highest = int(places.min()), int(places.max())
        if not 0 <= lowest <= highest < len(self):
            raise IndexError(f"places must be within {len(self)}, but reach from {lowest} to {highest}")
        first, last = np.searchsorted(self.bounds, [lowest, highest], side="right") - 1
        if first == last:
            return self._read(int(first), places - self.bounds[first])
        files = np.searchsorted(self.bounds, places, side="right") - 1
        found = np.empty(len(places), dtype=self.dtype)
        for file in np.flatnonzero(np.bincount(files)):
            here = files == file
            found[here] = self._read(int(file), places[here] - self.bounds[file])
        return found

    def _read(self, file: int, places: slice | np.ndarray) -> np.ndarray:
        """The one place where anything is read."""
        return self._mapped(file)[places]

    def _mapped(self, file: int) -> np.ndarray:
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        while len(self._open) >= self.most_open:
            self._open.popitem(last=False)
        length = int(self.bounds[file + 1] - self.bounds[file])
        self._open[file] = np.memmap(self.paths[file], dtype=self.dtype, mode="r", shape=(length,))
        return self._open[file]

    # Workers get the names of the files, and open them for themselves.

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict()}
