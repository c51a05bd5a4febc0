"""The documents of a sample: in memory while they are short together, in a temporary file beyond that.

Each document has the same chance to be in the sample, whatever its place: it draws a number, and those with the least
numbers stay, as many as the limits allow. A very long document is represented by pieces of it.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Generic, TypeVar, overload

import numpy as np

from trainbook.data.report.memory import scratch_file
from trainbook.data.sources.records import Document

MEMORY_CHARACTERS = 1 << 24  # of the sample that stay in memory
SAMPLE_CHARACTERS = 1 << 28  # of the sample at most
EXCERPTED = 1 << 22  # characters of a document from which on an excerpt stands for it
NUM_PIECES, PIECE = 64, 1 << 14  # characters of an excerpt: pieces that lie evenly in the text

Item = TypeVar("Item")


@dataclass(frozen=True)
class ReadDocument:
    """A document of the sample, and what was found out when it was read."""

    document: Document
    excerpt: str | None  # in place of the text, if that is very long
    unit: tuple[str, bytes | str]  # what stays on one side of a split: its group, or else its text
    num_characters: int
    num_bytes: int

    @property
    def text(self) -> str:
        """What is looked at more closely."""
        return self.document.text if self.excerpt is None else self.excerpt


@dataclass(frozen=True)
class Row:
    """What stays in memory of each document."""

    place: str
    unit: tuple[str, bytes | str]
    text_characters: int  # of the text or its excerpt
    num_bytes: int
    is_excerpted: bool


class Excerpt:
    """Collected while the chunks of a text of known length pass by."""

    def __init__(self, num_characters: int) -> None:
        last = max(num_characters - PIECE, 0)
        self._begins = [last * number // (NUM_PIECES - 1) for number in range(NUM_PIECES)]
        self._pieces = [""] * NUM_PIECES
        self._position = self._first = 0

    def add(self, chunk: str) -> None:
        for number in range(self._first, NUM_PIECES):
            begin = self._begins[number] - self._position
            if begin >= len(chunk):
                break
            self._pieces[number] += chunk[max(begin, 0) : max(begin + PIECE, 0)]
            if begin + PIECE <= len(chunk):
                self._first = number + 1
        self._position += len(chunk)

    @property
    def text(self) -> str:
        return "\n".join(self._pieces)


class KeptSample(Sequence[ReadDocument]):
    """In the order of the source, once `close` was called."""

    def __init__(self, limit: int, draw: np.random.Generator) -> None:
        self.limit, self._draw = limit, draw
        self._heap: list[tuple[float, int, Row, ReadDocument | tuple[int, int]]] = []
        self._order: list[tuple[Row, ReadDocument | tuple[int, int]]] = []
        self._characters = self._in_memory = 0
        self._least = -1.0  # what a document must draw to stay
        self._file: IO[bytes] | None = None

    def offer(self, index: int, seen: ReadDocument, place: str) -> None:
        key = -float(self._draw.random())
        if key < self._least or (len(self._heap) >= self.limit and key < self._heap[0][0]):
            return
        size = seen.num_characters if seen.excerpt is None else len(seen.excerpt)
        row = Row(place, seen.unit, size, seen.num_bytes, seen.excerpt is not None)
        kept: ReadDocument | tuple[int, int] = seen
        if self._in_memory + size > MEMORY_CHARACTERS:
            kept = self._put(seen)
        else:
            self._in_memory += size
        heapq.heappush(self._heap, (key, index, row, kept))
        self._characters += size
        while len(self._heap) > self.limit or (self._characters > SAMPLE_CHARACTERS and len(self._heap) > 1):
            self._least, _, row, kept = heapq.heappop(self._heap)
            self._characters -= row.text_characters
            self._in_memory -= row.text_characters if isinstance(kept, ReadDocument) else 0

    def close(self) -> None:
        self._order = [(row, kept) for _, _, row, kept in sorted(self._heap, key=lambda entry: entry[1])]
        self._heap = []

    @property
    def rows(self) -> list[Row]:
        return [row for row, _ in self._order]

    def _put(self, seen: ReadDocument) -> tuple[int, int]:
        if self._file is None:
            self._file = scratch_file(self)
        content = pickle.dumps(seen)
        begin = self._file.seek(0, 2)
        self._file.write(content)
        return begin, len(content)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> ReadDocument: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadDocument]: ...

    def __getitem__(self, index: int | slice) -> ReadDocument | Sequence[ReadDocument]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        kept = self._order[index][1]
        if isinstance(kept, ReadDocument):
            return kept
        begin, size = kept
        assert self._file is not None
        self._file.seek(begin)
        return pickle.loads(self._file.read(size))


class KeptView(Sequence[Item], Generic[Item]):
    """Something of each document, read when it is asked for."""

    def __init__(self, samples: Sequence[KeptSample], get: Callable[[ReadDocument], Item]) -> None:
        self._samples, self._get = samples, get

    def __len__(self) -> int:
        return sum(map(len, self._samples))

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        for sample in self._samples:
            if index < len(sample):
                return self._get(sample[index])
            index -= len(sample)
        raise IndexError(index)

    def __iter__(self) -> Iterator[Item]:
        for sample in self._samples:
            for number in range(len(sample)):
                yield self._get(sample[number])
