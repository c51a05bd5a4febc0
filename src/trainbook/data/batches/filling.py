"""Batches of samples, and how they are filled: padded, bucketed by length, or packed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainbook.data.prepare.hashes import generator


@dataclass
class Ragged:
    """Sequences of different lengths, one behind the other."""

    values: np.ndarray  # (sum of lengths,) int64
    lengths: np.ndarray  # (N,) int64

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    @property
    def which(self) -> np.ndarray:
        """Of each value: the number of its sequence."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def places(self) -> np.ndarray:
        """Of each value: its place within its sequence."""
        return places_in(self.lengths)

    def split(self) -> list[np.ndarray]:
        return np.split(self.values, np.cumsum(self.lengths)[:-1])

    def padded(self, width: int, fill: int = 0) -> np.ndarray:
        """(N, width) with `fill` behind the end of each."""
        columns = np.arange(width)
        rows = np.full((len(self), width), fill, dtype=self.values.dtype)
        rows[columns < self.lengths[:, None]] = self.values
        return rows

    @classmethod
    def gather(cls, stream: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Parts of a long array, one behind the other; without a loop over them."""
        lengths = lengths.astype(np.int64, copy=False)
        shifts = starts - (np.cumsum(lengths) - lengths)
        values = stream[np.repeat(shifts, lengths) + np.arange(lengths.sum())]
        return cls(values.astype(np.int64, copy=False), lengths)

    @classmethod
    def of(cls, parts: list[np.ndarray]) -> Ragged:
        values = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return cls(values.astype(np.int64, copy=False), np.array([len(part) for part in parts], dtype=np.int64))


def places_in(lengths: np.ndarray) -> np.ndarray:
    """0, 1, … for each of these lengths, one behind the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)


@dataclass
class Batch:
    """Samples in order of their rows. Each has a row of its own, unless the batch is packed: then rows hold several."""

    ids: np.ndarray  # (N,) int64: what the dataset can describe
    epochs: np.ndarray  # (N,) int64: the epoch of each sample, -1 in evaluation; with an id, what to draw chance from
    tokens: Ragged  # framed: with what the task puts before and after
    rows: np.ndarray  # (N,) int64: the row of each sample, from 0, never falling
    num_rows: int  # what a batch size counts
    width: int | None  # positions of a row, if it is settled; None: as many as the longest row of a micro-batch has
    epoch: float  # epochs consumed once this batch is; 0 in evaluation
    step: int = 0
    packed: bool = False
    equally_long: bool = False  # the samples of the set are, but perhaps for the last one of an evaluation
    targets: Ragged | None = None  # pairs: framed texts to produce
    labels: np.ndarray | None = None  # labelled: (N,) int64 classes or float32 numbers, (N, C) float32 flags
    marks: Ragged | None = (
        None  # one for each token: a tag's class, or 1 where a token is learned; -1: none, not learned
    )


# Orders in which samples of similar length come together.


# Sorting is within so many blocks: enough that a block's samples are alike, few enough that each epoch has other ones.
BLOCKS_PER_CHUNK = 128


def bucketed_order(
    lengths: np.ndarray,
    target_lengths: np.ndarray | None,
    block: int,
    first: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """All samples in blocks of similar length, the blocks in random order.

    Blocks begin where the number of a sample, counted from the start of training, is a multiple of their size; `first`
    is the number of the first one here. What is before the first such number, and behind the last, is drawn at random:
    the blocks there are shared with the neighbouring epochs.
    """
    count = len(lengths)
    head = min(-first % block, count)
    num_blocks = (count - head) // block
    shuffled = generator.permutation(count)
    middle = shuffled[head : head + num_blocks * block]
    chunks = np.repeat(_groups(num_blocks, BLOCKS_PER_CHUNK), block)
    middle = middle[np.lexsort((lengths[middle], chunks))]
    if target_lengths is not None:
        # Of each chunk strips of similar length, sorted by the length of the targets: blocks are alike in both.
        strips = np.repeat(_groups(num_blocks, math.isqrt(BLOCKS_PER_CHUNK)), block)
        middle = middle[np.lexsort((target_lengths[middle], strips, chunks))]
    blocks = middle.reshape(num_blocks, block)[generator.permutation(num_blocks)]
    return np.concatenate([shuffled[:head], blocks.reshape(-1), shuffled[head + num_blocks * block :]])


def _groups(count: int, size: int) -> np.ndarray:
    """The group of each of so many blocks: groups of at least this size, none of them much smaller than another."""
    return np.arange(count) * max(1, count // size) // max(1, count)


# Documents of any lengths put into rows of one length, with little left free.


# Within a chunk long documents are placed first: small pieces fill what they leave. Rows stay open from chunk to chunk.
CHUNK = 1 << 14
# Rows are found by the share of them that is free, in so many steps, or in positions where those are fewer.
SHARES = 2048
# With targets, rows that may have too little room for one of the two are tried first: so many of them.
TRIES = 12


@dataclass(frozen=True)
class PackedRows:
    """Which documents each row holds, by their index."""

    members: np.ndarray  # one row's behind the other's
    starts: np.ndarray  # where each row begins among the members, and the end: one more than there are rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Documents of each row."""
        return self.starts[rows + 1] - self.starts[rows]


def pack(
    lengths: np.ndarray,
    capacity: int,
    seed: int,
    *,
    target_lengths: np.ndarray | None = None,
    target_capacity: int = 0,
    shuffle: bool = True,
) -> PackedRows:
    """Each document into the row that it leaves least room in; a new row where none has enough.

    A document must fit into an empty row. Without `shuffle` the chunks follow the order of the documents.
    """
    if len(lengths) and (int(lengths.max()) > capacity or int(lengths.min()) < 1):
        raise ValueError(f"lengths must be between 1 and {capacity}, but are {lengths.min()} to {lengths.max()}")
    if target_lengths is None:
        target_lengths, target_capacity = lengths, capacity  # a second limit that is met whenever the first is
    elif int(target_lengths.max(initial=0)) > target_capacity:
        raise ValueError(f"target lengths must be at most {target_capacity}, but reach {target_lengths.max()}")
    rows = np.empty(len(lengths), dtype=np.int64)
    place = _OpenRows(capacity, target_capacity)
    least, enough = np.sort(place.shares(lengths, target_lengths), axis=0)
    order = generator("packing", seed).permutation(len(lengths)) if shuffle else np.arange(len(lengths))
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        chunk = chunk[np.argsort(-enough[chunk], kind="stable")]
        documents = np.stack([column[chunk] for column in (lengths, target_lengths, least, enough)], axis=1)
        rows[chunk] = [place(*document) for document in documents.tolist()]
    members = np.argsort(rows, kind="stable")
    return PackedRows(
        members, np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=place.count))]).astype(np.int64)
    )


class _OpenRows:
    """Rows by the share of them that is free, of positions or of positions for targets, whichever is less.

    A bit of `occupied` stands for each share that some row has: a search is a few operations on one large number.
    """

    def __init__(self, capacity: int, target_capacity: int) -> None:
        self.capacity, self.target_capacity = capacity, target_capacity
        self.steps = min(capacity, SHARES)
        self.by_share: list[list[tuple[int, int, int]]] = [[] for _ in range(self.steps + 1)]  # row, room for both
        self.occupied = 0
        self.count = 0

    def shares(self, lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """What each document needs of an empty row, rounded up: it fits where this much is free."""
        capacities = np.array([[self.capacity], [self.target_capacity]])
        return -(-np.stack([lengths, target_lengths]) * self.steps // capacities)

    def __call__(self, length: int, target: int, least: int, enough: int) -> int:
        """The row for a document, which has less room from now on. It may fit where the least of its two shares is
        free, and fits where both are."""
        row, room, target_room = self._take(length, target, least, enough)
        room, target_room = room - length, target_room - target
        free = min(room * self.steps // self.capacity, target_room * self.steps // self.target_capacity)
        if free > 0:
            self.by_share[free].append((row, room, target_room))
            self.occupied |= 1 << free
        return row

    def _take(self, length: int, target: int, least: int, enough: int) -> tuple[int, int, int]:
        share = least - 1
        for _ in range(TRIES):
            share = self._next(share + 1)
            if share is None or share >= enough:
                break
            if found := self._pop(share, length, target):
                return found
        share = self._next(enough)
        if share is not None and (found := self._pop(share, length, target)):
            return found
        self.count += 1
        return self.count - 1, self.capacity, self.target_capacity

    def _next(self, share: int) -> int | None:
        """The smallest share that some row has free, from this one on."""
        candidates = self.occupied >> share
        return share + (candidates & -candidates).bit_length() - 1 if candidates else None

    def _pop(self, share: int, length: int, target: int) -> tuple[int, int, int] | None:
        rows = self.by_share[share]
        _, room, target_room = rows[-1]
        if room < length or target_room < target:
            return None
        if len(rows) == 1:
            self.occupied ^= 1 << share
        return rows.pop()
