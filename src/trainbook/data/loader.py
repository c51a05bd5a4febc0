"""Which samples make which batch: a pure function of the seed and the step, so any step can be asked for directly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainbook.data.datasets import Samples
from trainbook.data.seeding import generator

Padding = Literal["longest", "max_length"]


@dataclass
class Batch:
    ids: np.ndarray  # (B,) int64: what the dataset can describe
    tokens: np.ndarray  # (B, width) int64, padded with 0 on the right
    lengths: np.ndarray  # (B,) int64: tokens that are not padding
    epoch: float  # epochs consumed once this batch is; 0 in evaluation
    step: int = 0  # with an id: what a task may draw random numbers from; 0 in evaluation


class BatchPlan:
    """Global sample number g = step * B + i is sample g % n of epoch g // n: batches run on across epochs.

    With `total_samples`, the last planned step is short, so that a run of so many epochs sees exactly them. Steps after
    it, which a run takes to make up for updates it rejected, are full again.
    """

    def __init__(
        self,
        dataset: Samples,
        global_batch_size: int,
        seed: int,
        shuffle: bool,
        total_samples: int | None = None,
        padding: Padding = "longest",
    ) -> None:
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size must be >= 1, but got {global_batch_size}")
        if total_samples is not None and total_samples < 1:
            raise ValueError(f"total_samples must be >= 1, but got {total_samples}")
        self.dataset = dataset
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.total_samples = total_samples
        self.padding: Padding = padding
        self.shift = 0  # samples by which batches begin later than step x size: after a change of the batch's size
        self._orders: dict[int, np.ndarray] = {}

    @property
    def steps_per_epoch(self) -> int:
        return self.num_steps(1)

    def num_steps(self, epochs: float) -> int:
        """Steps that it takes to see so many epochs; the last one may reach beyond them."""
        return math.ceil(samples_in_epochs(self.dataset.num_samples, epochs) / self.global_batch_size)

    def batch_size(self, step: int) -> int:
        """Samples of the global batch at this step."""
        if self.total_samples is not None:
            remaining = self.total_samples - self.first_sample(step)
            if 0 < remaining < self.global_batch_size:
                return remaining
        return self.global_batch_size

    def first_sample(self, step: int) -> int:
        """How many samples come before this step's."""
        return self.shift + step * self.global_batch_size

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """A rank's share of the batch at this step (0 is the first); the shares in order of rank are the whole."""
        numbers = self.first_sample(step) + np.arange(self.batch_size(step), dtype=np.int64)
        epochs, positions = np.divmod(numbers, self.dataset.num_samples)
        ids = self.dataset.ids(self._indices(epochs, positions), epochs)
        consumed = int(numbers[-1]) + 1
        return _share(self.dataset, ids, rank, world, self.padding, consumed / self.dataset.num_samples, step)

    def _indices(self, epochs: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if not self.shuffle:
            return positions
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = self._order(int(epoch))[positions[chosen]]
        return indices

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            # A batch reaches into the next epoch at times, so the epoch before it is still wanted.
            self._orders = {known: order for known, order in self._orders.items() if abs(known - epoch) == 1}
            self._orders[epoch] = generator("order", self.seed, epoch).permutation(self.dataset.num_samples)
        return self._orders[epoch]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}


def samples_in_epochs(num_samples: int, epochs: float) -> int:
    """The whole number of samples nearest to so many epochs: what `total_samples` should be for them."""
    return max(1, math.floor(epochs * num_samples + 0.5))


def eval_batches(
    dataset: Samples,
    batch_size: int,
    max_samples: int | None = None,
    rank: int = 0,
    world: int = 1,
    padding: Padding = "longest",
) -> Iterator[Batch]:
    """Every sample once, in order; the last batch is short. With several ranks, each batch is shared among them."""
    num_samples = dataset.num_samples if max_samples is None else min(max_samples, dataset.num_samples)
    for start in range(0, num_samples, batch_size):
        indices = np.arange(start, min(start + batch_size, num_samples), dtype=np.int64)
        ids = dataset.ids(indices, np.zeros_like(indices))
        yield _share(dataset, ids, rank, world, padding, epoch=0.0, step=0)


def _share(
    dataset: Samples, ids: np.ndarray, rank: int, world: int, padding: Padding, epoch: float, step: int
) -> Batch:
    lengths = dataset.lengths(ids)
    # The longest of the whole batch, not of the share: every rank gets the same shape.
    width = dataset.max_seq_length + 1 if padding == "max_length" else int(lengths.max())
    mine = np.array_split(np.arange(len(ids)), world)[rank]
    return Batch(ids[mine], dataset.read(ids[mine], width), lengths[mine].astype(np.int64), epoch, step)
