"""Documents of any lengths put into rows of one length, with little left free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainbook.data.seeding import generator

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
