"""Where each sample's positions go in the rectangle that a device computes on: a row each, or several to a row."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data.batches.filling import Batch, Ragged, places_in
from trainbook.data.sources.records import row_hashes, with_numbers


@dataclass(frozen=True)
class RowLayout:
    num_rows: int
    width: int
    lengths: np.ndarray  # positions of each sample
    rows: np.ndarray  # of each sample, within this layout
    starts: np.ndarray  # column of each sample's first position
    packed: bool
    equally_long: bool = False

    @classmethod
    def of(
        cls,
        lengths: np.ndarray,
        rows: np.ndarray,
        num_rows: int,
        width: int | None,
        packed: bool,
        equally_long: bool = False,
    ) -> RowLayout:
        ends = np.cumsum(lengths)
        # Samples come in order of their rows: what a row holds before a sample is what came since the row began.
        first_of_row = np.searchsorted(rows, rows)
        before_row = ends[first_of_row] - lengths[first_of_row]
        starts = ends - lengths - before_row
        needed = int((starts + lengths).max(initial=1))
        if width is not None and needed > width:
            raise ValueError(f"a row of {width} positions cannot hold {needed} tokens")
        return cls(num_rows, width or needed, lengths, rows, starts, packed, equally_long)

    @property
    def cells(self) -> np.ndarray:
        """The flat index in the rectangle of each position of each sample, one sample behind the other."""
        return np.repeat(self.rows * self.width + self.starts, self.lengths) + self.inner_positions

    @property
    def inner_positions(self) -> np.ndarray:
        """Of each position of each sample: its place within the sample."""
        return places_in(self.lengths)

    @property
    def first_cells(self) -> np.ndarray:
        return self.rows * self.width + self.starts

    @property
    def is_full(self) -> bool:
        return not self.packed and int(self.lengths.sum()) == self.num_rows * self.width

    def place(self, values: np.ndarray, fill: int) -> Tensor:
        """(rows, width): the values of all samples in their cells, `fill` elsewhere."""
        rectangle = np.full(self.num_rows * self.width, fill, dtype=np.int64)
        rectangle[self.cells] = values
        return torch.from_numpy(rectangle.reshape(self.num_rows, self.width))

    def document_ids(self) -> Tensor:
        """1, 2, … for the samples of a row, 0 for padding."""
        number = np.arange(len(self.rows)) - np.searchsorted(self.rows, self.rows) + 1
        return self.place(np.repeat(number, self.lengths), 0)

    def positions(self) -> Tensor:
        return self.place(self.inner_positions, 0)

    def masks(self, *, causal: bool, prefix: str = "") -> dict[str, Tensor]:
        """What the model must be told of documents and padding; nothing where there is nothing to tell."""
        if self.packed:
            return {f"{prefix}document_ids": self.document_ids(), f"{prefix}positions": self.positions()}
        # Behind a causal mask, padding on the right is never seen. Texts of any length get their mask also where they
        # happen to fill the rectangle: a compiled model would be compiled once more without it.
        unneeded = causal or (self.equally_long and self.is_full)
        return {} if unneeded else {f"{prefix}document_ids": self.document_ids()}


@dataclass(frozen=True)
class MicroBatchPart:
    """The samples of one micro-batch."""

    batch: Batch
    samples: slice
    rows: np.ndarray  # of each sample, from 0
    num_rows: int

    def take(self, ragged: Ragged) -> Ragged:
        lengths = ragged.lengths[self.samples]
        begin = int(ragged.lengths[: self.samples.start].sum())
        return Ragged(ragged.values[begin : begin + int(lengths.sum())], lengths)

    def layout(self, lengths: np.ndarray, width: int | None) -> RowLayout:
        return RowLayout.of(lengths, self.rows, self.num_rows, width, self.batch.packed, self.batch.equally_long)

    @property
    def ids(self) -> np.ndarray:
        return self.batch.ids[self.samples]

    @property
    def epochs(self) -> np.ndarray:
        return self.batch.epochs[self.samples]


def parts(batch: Batch, rows_each: int) -> Iterator[MicroBatchPart]:
    """The micro-batches of a batch: so many rows each, the last one perhaps fewer."""
    for first in range(0, batch.num_rows, rows_each):
        last = min(first + rows_each, batch.num_rows)
        begin, end = (int(at) for at in np.searchsorted(batch.rows, [first, last]))
        yield MicroBatchPart(batch, slice(begin, end), batch.rows[begin:end] - first, last - first)


# What a step is fed: one global batch, already cut into micro-batches, with its targets counted on the host.


@dataclass
class StepBatch:
    """One step's share of the global batch on this rank.

    The number of targets is counted where the batch is made, so the step can divide by it without asking the device.
    """

    micro_batches: list[Any]
    num_targets: int
    num_tokens: int
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of the samples
    epoch: float = 0.0
    num_rows: int = 0  # of the global batch; what a batch size counts: samples, or packed rows of them
    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))  # of the samples, in their epochs
    num_idle: int = (
        0  # of the micro-batches, the last ones: computed along with other ranks that have more, not counted
    )

    @classmethod
    def of(cls, batch: Batch, micro_batches: list[Any], num_targets: int, num_tokens: int) -> StepBatch:
        hashes = with_numbers(row_hashes(batch.tokens, batch.epochs), batch.labels)
        return cls(micro_batches, num_targets, num_tokens, batch.ids, batch.epoch, batch.num_rows, hashes)

    def pin_memory(self) -> StepBatch:
        self.micro_batches = [_move(micro, lambda tensor: tensor.pin_memory()) for micro in self.micro_batches]
        return self


def _move(value: Any, how: Any) -> Any:
    if isinstance(value, Tensor):
        return how(value)
    if isinstance(value, MutableMapping):
        moved = copy(value)  # of the same kind: some are also read by attribute, such as a tokenizer's batch
        for key, item in value.items():
            moved[key] = _move(item, how)
        return moved
    if isinstance(value, (list, tuple)):
        moved = [_move(item, how) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors of a batch, in whatever mapping or list they come, on the device. Pinned ones are not waited for."""
    return _move(value, lambda tensor: tensor.to(device, non_blocking=True))
