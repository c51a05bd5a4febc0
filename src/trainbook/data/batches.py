"""The samples of one batch, of any lengths, before a task turns them into tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
