"""A corpus in the cache, as arrays: one file each, or the files of many parts read as one."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainbook.bounded.arrays import load_array
from trainbook.data.prepare.folder_cache import digest_of
from trainbook.data.prepare.writing import (
    LABELS_FILE,
    MARKS_FILE,
    MARKS_TYPE,
    TARGETS_FILE,
    TARGETS_TABLE_FILE,
    TOKENS_FILE,
    Encoding,
)
from trainbook.data.samples.base import TABLE_FILE, DocumentTable, StoredTable
from trainbook.data.tokenizers import Tokenizer

# Many files of numbers, read as one long array: only what is asked for, and never many files open at a time.


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


CHUNK = 1 << 18  # numbers that are hashed at a time


@dataclass(frozen=True)
class CachedCorpus:
    folder: Path
    index: dict[str, Any]
    tokenizer: Tokenizer
    reused: bool  # found ready, not made by this call

    @property
    def sides(self) -> dict[str, dict[str, int]]:
        """Of "train" and, where there is one, "validation": the number of tokens, documents and bytes."""
        return self.index["sides"]

    @property
    def fingerprint(self) -> str:
        """Of the tokens themselves and of their meaning, wherever they came from and in whatever parts they lie."""
        contents = self.index["contents"]
        return digest_of([contents, list(self.label_names)] if self.label_names else contents)

    @property
    def train_fingerprint(self) -> str:
        """Of the training side alone: where it is the same, the id of a sample means the same one."""
        return digest_of({name: its for name, its in self.index["contents"].items() if name.startswith("train/")})

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class of each number in labels, or in the marks of tagged words."""
        return tuple(self.index["label_names"])

    def tokens(self, side: str) -> np.ndarray:
        return self._stream(side, TOKENS_FILE, self.index["dtype"], "tokens", self.sides[side]["tokens"])

    def documents(self, side: str, root: str) -> DocumentTable:
        parts = self._parts(side)
        return StoredTable([folder for folder, _ in parts], [facts["tokens"] for _, facts in parts], root)

    def targets(self, side: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Of pairs: the tokens of all texts to produce, and where each begins and how long it is."""
        if "target_tokens" not in self.sides[side]:
            return None
        tables = []
        begin = 0
        for folder, facts in self._parts(side):
            table = load_array(folder / TARGETS_TABLE_FILE)
            tables.append(table + np.array([begin, 0]))
            begin += facts["target_tokens"]
        table = np.concatenate([*tables, np.empty((0, 2), dtype=np.int64)])
        return self._stream(side, TARGETS_FILE, self.index["dtype"], "target_tokens", begin), table[:, 0], table[:, 1]

    def labels(self, side: str) -> np.ndarray | None:
        """Of labelled records: classes (int64), numbers (float32), or a flag for each class (float32)."""
        paths = [folder / LABELS_FILE for folder, _ in self._parts(side)]
        if not paths or not paths[0].exists():
            return None
        return np.concatenate([load_array(path) for path in paths])

    def marks(self, side: str) -> np.ndarray | None:
        """Of tagged words and conversations, a number for each token: a class, or 1 where it is learned; -1: none."""
        if "marked_tokens" not in self.sides[side]:
            return None
        return self._stream(side, MARKS_FILE, MARKS_TYPE, "tokens", self.sides[side]["tokens"])

    def hash_contents(self, advance: Callable[[], None]) -> dict[str, str]:
        """Of each array and of the tokenizer: as if every array were a file of its own."""
        contents = {name: facts[1] for name, facts in self.index["files"].items() if name.startswith("tokenizer/")}
        for side in self.sides:
            table = self.documents(side, "")
            columns = np.stack([table.starts, table.lengths, table.first_lines], axis=1)
            contents[f"{side}/{TOKENS_FILE}"] = hash_stream(self.tokens(side), advance)
            contents[f"{side}/{TABLE_FILE}"] = _hash_saved(columns)
            if (targets := self.targets(side)) is not None:
                contents[f"{side}/{TARGETS_FILE}"] = hash_stream(targets[0], advance)
                contents[f"{side}/{TARGETS_TABLE_FILE}"] = _hash_saved(np.stack(targets[1:], axis=1))
            if (labels := self.labels(side)) is not None:
                contents[f"{side}/{LABELS_FILE}"] = _hash_saved(labels)
            if (marks := self.marks(side)) is not None:
                contents[f"{side}/{MARKS_FILE}"] = hash_stream(marks, advance)
        return dict(sorted(contents.items()))

    def _parts(self, side: str) -> list[tuple[Path, dict[str, int]]]:
        """The folder of each part that has something of a side, and how much."""
        shelf = self.folder / self.index["shelf"]
        parts = [(shelf / part["key"][:32] / side, part["sides"].get(side)) for part in self.index["parts"]]
        return [(folder, facts) for folder, facts in parts if facts is not None and facts["documents"] > 0]

    def _stream(self, side: str, name: str, dtype: str, count: str, length: int) -> np.ndarray:
        """Behind the last document of all nothing follows, so an end of text there is none of the stream."""
        parts = self._parts(side)
        if length == 0:
            return np.empty(0, dtype=dtype)
        if len(parts) == 1:
            return np.memmap(parts[0][0] / name, dtype=dtype, mode="r", shape=(length,))
        lengths = [facts[count] for _, facts in parts]
        lengths[-1] -= sum(lengths) - length
        # Samples read their arrays in no other way than it offers.
        return cast(np.ndarray, ConcatMemmap([folder / name for folder, _ in parts], lengths, dtype))


def total(parts: Sequence[dict[str, Any]], side: str, encoding: Encoding) -> dict[str, int]:
    """How much there is of everything on a side. Each part ends with an end of text, of which the last is too many."""
    found = [part["sides"][side] for part in parts if side in part["sides"]]
    names = dict.fromkeys(name for facts in found for name in facts) or dict.fromkeys(("tokens", "documents", "bytes"))
    facts = {name: sum(each[name] for each in found) for name in names}
    if facts["documents"] > 0 and encoding.tokenizer.end_of_text is not None:
        facts["tokens"] -= 1
    return facts


class _Hashing:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return len(content)


def hash_stream(stream: np.ndarray, advance: Callable[[], None]) -> str:
    hashing = _Hashing()
    for begin in range(0, len(stream), CHUNK):
        hashing.write(_read(stream, begin).tobytes())
        advance()
    return hashing.digest.hexdigest()


def _read(stream: np.ndarray, begin: int) -> np.ndarray:
    """One chunk. Pages of a memory map, once touched, would stay: a large corpus is read, not mapped."""
    if not isinstance(stream, np.memmap) or stream.filename is None:
        return np.ascontiguousarray(stream[begin : begin + CHUNK])
    offset = stream.offset + begin * stream.itemsize
    return np.fromfile(stream.filename, dtype=stream.dtype, count=min(CHUNK, len(stream) - begin), offset=offset)


def _hash_saved(values: np.ndarray) -> str:
    """Of the file that numpy would write."""
    hashing = _Hashing()
    np.save(cast(Any, hashing), values, allow_pickle=False)
    return hashing.digest.hexdigest()
