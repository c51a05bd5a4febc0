"""What a source is made of: records as a file has them, and the documents that are made of their fields."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from trainbook.data.batches.filling import Ragged

# What a task asks of each record: a text; a text with a label; words with a tag each; an input text with a target
# text; a conversation, of which only some parts are learned.
RecordKind = Literal["text", "labelled", "tagged", "pairs", "chat"]

# What a label is: one class of several; any number of classes; a number.
LabelKind = Literal["class", "classes", "number"]


class DataRecord(NamedTuple):
    """What a file says, before it is known which of its fields matter."""

    fields: Mapping[str, Any]
    origin: str  # "path" or "path:line", relative to the root of its source
    first_line: int = 0  # the line of the file on which a plain text begins; 0 where the origin already names the line
    group: str | None = None  # records of one group stay on one side of the split
    document: Document | None = None  # in place of fields: a text that is too long to be held in memory


MOST_LEVELS, MOST_PARTS = 3, 100  # of nested fields: how deep they are looked for, and how many of a record


def with_nested(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a record, and the parts of those that are mappings under names such as `review.text`."""
    if dict not in map(type, fields.values()):
        return fields
    found = dict(fields)
    level = [(name, value) for name, value in fields.items() if isinstance(value, dict)]
    for _ in range(MOST_LEVELS):
        parts = [(f"{name}.{key}", part) for name, value in level for key, part in value.items()]
        for name, part in parts[: MOST_PARTS + len(fields) - len(found)]:
            found.setdefault(name, part)
        level = [(name, part) for name, part in parts if isinstance(part, dict)]
    return found


# Told of a record that cannot be read: raises, or counts it and lets the reader go on.
Complain = Callable[[str], None]


@dataclass(frozen=True)
class Document:
    text: str
    origin: str  # "path" or "path:line", relative to the root of its source
    first_line: int = 1  # the line of the file on which the text begins; 0 where the origin already names the line
    target: str | None = None  # pairs: the text to produce
    label: str | float | tuple[str, ...] | None = None  # labelled: a class, a number, or classes
    words: tuple[str, ...] | None = None  # tagged: the text as words, joined by blanks in `text`
    tags: tuple[str, ...] | None = None  # tagged: the class of each word
    learned: tuple[tuple[int, int], ...] | None = None  # chat: ranges of characters to learn; None: everything
    group: str | None = None  # documents of one group stay on one side of the split; None: those with the same text

    @classmethod
    def of_text(cls, text: str, origin: str, first_line: int, group: str | None) -> Document:
        """A text alone. There may be millions: this is several times as fast as the constructor of a frozen class."""
        found = object.__new__(cls)
        vars(found).update(text=text, origin=origin, first_line=first_line, group=group)
        return found

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes that it has, be it of its own or of its words."""
        if self.tags is not None:
            return tuple(sorted(set(self.tags)))
        if isinstance(self.label, str):
            return (self.label,)
        return self.label if isinstance(self.label, tuple) else ()

    # A text may be too long for memory (`sources.long.LongDocument`). Whoever must not hold it uses these, not `text`.

    def chunks(self) -> Iterator[str]:
        """The text in parts that fit into memory, cut anywhere."""
        yield self.text

    @property
    def num_characters(self) -> int:
        return len(self.text)

    @property
    def is_blank(self) -> bool:
        return not self.text or self.text.isspace()

    def digest(self, advance: Callable[[int], None] = lambda num_bytes: None) -> bytes:
        """16 bytes that stand for the text. `advance` is told how many bytes were read."""
        content = self.text.encode("utf-8")
        advance(len(content))
        return hashlib.sha256(content).digest()[:16]

    def cut(self, position: int) -> tuple[Document | None, Document | None]:
        """The text before a character and the text from it on; None where nothing is left."""
        line = self.first_line and self.first_line + self.text.count("\n", 0, position)
        head = Document(self.text[:position], self.origin, self.first_line) if position > 0 else None
        tail = Document(self.text[position:], self.origin, line) if position < len(self.text) else None
        return head, tail


# Whether samples are met again: hashes of rows, and of spans wherever in a text they stand.


SPAN = 64  # tokens that have to be equal for two places of a stream to count as the same
ONE_IN = 16  # of the spans are remembered, chosen by what they hold, so that copies are chosen alike

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: what SplitMix64 counts by


def row_hashes(tokens: Ragged, epochs: np.ndarray | None = None) -> np.ndarray:
    """(N,) uint64, of every token: rows from one template may differ in a single one. With `epochs`, the same row in
    another epoch has another hash: that it comes again is no news."""
    lengths = tokens.lengths
    if len(lengths) == 0:
        return np.empty(0, dtype=np.uint64)
    longest = int(lengths.max())
    weights = _weights(1 << longest.bit_length())[:longest]
    values = tokens.values.astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        if longest * len(lengths) == len(values):
            sums = values.reshape(len(lengths), longest) @ weights
        else:
            sums, has_any = np.zeros(len(lengths), dtype=np.uint64), lengths > 0
            sums[has_any] = np.add.reduceat(values * weights[tokens.places], tokens.starts[has_any])
        return _sealed(sums, lengths, epochs)


def with_numbers(hashes: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """(N,) uint64: where the labels are numbers, one for each row, these count too: measured twice is no copy."""
    if labels is None or labels.ndim != 1 or labels.dtype.kind != "f":
        return hashes
    with np.errstate(over="ignore"):
        return hashes ^ mixed(labels.astype(np.float64).view(np.uint64) + GOLDEN)


@cache
def _weights(length: int) -> np.ndarray:
    """(length,) uint64: an odd random number for each place of a row."""
    with np.errstate(over="ignore"):
        return mixed(np.arange(1, length + 1, dtype=np.uint64) * GOLDEN) | np.uint64(1)


def part_hashes(stream: np.ndarray, starts: np.ndarray, lengths: np.ndarray, *, most: int) -> np.ndarray:
    """(N,) uint64: of parts of a stream, of each of which `most` tokens are looked at, spread over it."""
    if len(lengths) == 0:
        return np.empty(0, dtype=np.uint64)
    counts = np.minimum(lengths, most)
    which = np.repeat(np.arange(len(lengths)), counts)
    order = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    places = starts[which] + order * lengths[which] // np.maximum(1, counts[which])
    sums, has_any = np.zeros(len(lengths), dtype=np.uint64), counts > 0
    with np.errstate(over="ignore"):
        parts = mixed(stream[places].astype(np.uint64) * GOLDEN + order.astype(np.uint64))
        if len(parts):
            sums[has_any] = np.add.reduceat(parts, (np.cumsum(counts) - counts)[has_any])
        return _sealed(sums, lengths, None)


def _sealed(sums: np.ndarray, lengths: np.ndarray, epochs: np.ndarray | None) -> np.ndarray:
    """The hashes of rows from sums over their tokens."""
    hashes = sums + lengths.astype(np.uint64) * GOLDEN
    if epochs is not None:
        hashes += epochs.astype(np.int64).view(np.uint64)
    return mixed(hashes)


def span_hashes(stream: np.ndarray) -> np.ndarray:
    """Of the chosen spans of a stream of tokens, in order: equal ones begin wherever the same tokens stand."""
    hashes = np.asarray(stream).astype(np.uint64)
    length, power = 1, GOLDEN
    with np.errstate(over="ignore"):
        hashes = mixed(hashes + np.uint64(1))
        while length < SPAN:  # a span is two halves
            if len(hashes) <= length:
                return np.empty(0, dtype=np.uint64)
            hashes = hashes[:-length] + power * hashes[length:]
            length, power = 2 * length, power * power
        hashes = mixed(hashes)
    return hashes[hashes % np.uint64(ONE_IN) == 0]


def mixed(state: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: every bit of the input moves about half of the bits of the answer."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def jensen_shannon(a: np.ndarray, b: np.ndarray) -> float:
    """Of two vectors of counts, in bits: 0 is the same, 1 is nothing in common."""
    if a.sum() == 0 or b.sum() == 0:
        return float(a.sum() != b.sum())
    width = max(len(a), len(b))
    p, q = (np.pad(counts, (0, width - len(counts))) / counts.sum() for counts in (a, b))
    middle = (p + q) / 2
    bits = [side * np.log2(np.where(side > 0, side, 1) / np.where(side > 0, middle, 1)) for side in (p, q)]
    return float((bits[0] + bits[1]).sum() / 2)
