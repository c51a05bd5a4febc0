"""Which samples make which batch: a pure function of the seed and the step, so any step can be asked for directly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np

from trainbook.data.batches.filling import Batch, bucketed_order, pack
from trainbook.data.prepare.hashes import generator
from trainbook.data.samples.base import Samples
from trainbook.data.sources.values import Ranges
from trainbook.errors import DataError

Padding = Literal["longest", "max_length", "bucketed", "packed"]

# Samples that are drawn to take the place of one that is kept out, before all that are left are listed.
TRIES = 64


class BatchPlan:
    """Global sample number g = step * B + i is sample g % n of epoch g // n: batches run on across epochs.

    With `total_samples`, the last planned step is short, so that a run of so many epochs sees exactly them. Steps after
    it, which a run takes to make up for updates it rejected, are full again.

    Packed, a sample is a row of documents: the rows are made once, their order is drawn anew each epoch. Bucketed, an
    epoch's order is made of blocks of `micro_batch` samples. To go on in the middle of an epoch, a run must ask for the
    blocks that it began with, even if its micro-batches are of another size by now.

    Samples can be kept out. Their places in the order are given to others, and all other places stay as they are, so a
    batch is a function of the seed, the step and what is kept out, and of nothing else.
    """

    def __init__(
        self,
        dataset: Samples,
        global_batch_size: int,
        seed: int,
        shuffle: bool,
        total_samples: int | None = None,
        padding: Padding = "longest",
        micro_batch: int | None = None,
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
        self.padding: Padding = "longest" if dataset.equally_long and padding != "max_length" else padding
        self.block = micro_batch or global_batch_size
        self.shift = 0  # samples by which batches begin later than step x size: after a change of the batch's size
        self.num_samples = dataset.num_samples
        if self.padding in ("bucketed", "packed"):
            self._all = dataset.ids(np.arange(dataset.num_samples), np.zeros(dataset.num_samples, dtype=np.int64))
        if self.padding == "packed":
            self._rows = pack(
                dataset.positions(self._all),
                dataset.frame.max_positions,
                seed,
                target_lengths=dataset.target_lengths(self._all),
                target_capacity=dataset.frame.max_target_positions,
                shuffle=shuffle,
            )
            self.num_samples = len(self._rows)
        self._orders: dict[int, np.ndarray] = {}
        self.keep_out(())

    @property
    def steps_per_epoch(self) -> int:
        return self.num_steps(1)

    def num_steps(self, epochs: float) -> int:
        """Steps that it takes to see so many epochs; the last one may reach beyond them."""
        return math.ceil(samples_in_epochs(self.num_samples, epochs) / self.global_batch_size)

    def batch_size(self, step: int) -> int:
        """Samples of the global batch at this step."""
        if self.total_samples is not None:
            remaining = self.total_samples - self.first_sample(step)
            if 0 < remaining < self.global_batch_size:
                return remaining
        return self.global_batch_size

    def share(self, step: int, rank: int, world: int) -> int:
        """How many samples of the batch at this step are this rank's: as many as the others', or one less."""
        return (self.batch_size(step) + world - 1 - rank) // world

    def first_sample(self, step: int) -> int:
        """How many samples come before this step's. The last planned step may be short: the steps after it begin where
        it ended, whichever step a run was resumed at."""
        first = self.shift + step * self.global_batch_size
        if self.total_samples is not None and first > self.total_samples:
            first -= (first - self.total_samples) % self.global_batch_size
        return first

    def keep_out(self, ids: Iterable[int]) -> None:
        """From now on no batch has these samples, or any that shares tokens with them; in place of what was said
        before. Batches that were made ahead of time, and plans in other processes, do not hear of it."""
        kept_out = np.unique(np.fromiter(ids, dtype=np.int64))
        if len(kept_out) and kept_out[0] < 0:
            raise ValueError(f"ids must be >= 0, but got {kept_out[0]}")
        self._kept_out = Ranges.of(*self.dataset.extent(kept_out)) | self.dataset.filtered
        if self.padding == "packed":
            self._is_out = self._kept_out.touch(*self.dataset.extent(self._all))
            members_left = np.concatenate([[0], np.cumsum(~self._is_out[self._rows.members])])[self._rows.starts]
            self._is_empty = np.diff(members_left) == 0
        if len(self._kept_out) and not self._something_is_left(epoch=0):
            raise self._nothing_left()

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """A rank's share of the batch at this step (0 is the first); the shares in order of rank are the whole."""
        numbers = self.first_sample(step) + np.arange(self.batch_size(step), dtype=np.int64)
        consumed = (int(numbers[-1]) + 1) / self.num_samples
        epochs, positions = np.divmod(np.array_split(numbers, world)[rank], self.num_samples)
        indices = self._indices(epochs, positions)
        if len(self._kept_out):
            indices = self._without_kept_out(indices, epochs, positions)
        if self.padding == "packed":
            return self._packed(indices, epochs, consumed, step)
        ids = self.dataset.ids(indices, epochs)
        width = self.dataset.frame.max_positions if self.padding == "max_length" else None
        return _batch(self.dataset, ids, epochs, np.arange(len(ids)), len(ids), width, consumed, step)

    def alone(self, ids: np.ndarray, epochs: np.ndarray) -> Batch:
        """These samples, kept out or not, each in a row of its own also where the plan packs; rows are as wide as in
        training where that width is settled. With the epoch in which a sample was met, chance falls as it did there."""
        ids, epochs = np.asarray(ids, dtype=np.int64), np.asarray(epochs, dtype=np.int64)
        width = self.dataset.frame.max_positions if self.padding in ("max_length", "packed") else None
        batch = _batch(self.dataset, ids, epochs, np.arange(len(ids)), len(ids), width, epoch=0.0, step=0)
        batch.packed = self.padding == "packed"
        return batch

    def _packed(self, indices: np.ndarray, epochs: np.ndarray, consumed: float, step: int) -> Batch:
        sizes = self._rows.sizes(indices)
        members = [self._rows.members[self._rows.starts[row] : self._rows.starts[row + 1]] for row in indices]
        chosen = np.concatenate([*members, np.empty(0, dtype=np.int64)])
        rows, epochs = np.repeat(np.arange(len(indices)), sizes), np.repeat(epochs, sizes)
        if len(self._kept_out):
            stays = ~self._is_out[chosen]
            chosen, rows, epochs = chosen[stays], rows[stays], epochs[stays]
        width = self.dataset.frame.max_positions
        batch = _batch(self.dataset, self._all[chosen], epochs, rows, len(indices), width, consumed, step)
        batch.packed = True
        return batch

    def _without_kept_out(self, indices: np.ndarray, epochs: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The same with another index at each place whose sample is kept out, or whose row has nothing left in it."""
        indices = indices.copy()
        for place in np.flatnonzero(self._is_kept_out(indices, epochs)):
            indices[place] = self._another(int(epochs[place]), int(positions[place]))
        return indices

    def _another(self, epoch: int, position: int) -> int:
        """Drawn for this place alone, so that it stays when more is kept out later, unless it is kept out itself."""
        draw = generator("substitute", self.seed, epoch, position)
        candidates = draw.integers(self.num_samples, size=TRIES)
        fine = candidates[~self._is_kept_out(candidates, np.full(TRIES, epoch))]
        if len(fine) == 0:
            everything = np.arange(self.num_samples)
            left = everything[~self._is_kept_out(everything, np.full(self.num_samples, epoch))]
            if len(left) == 0:
                raise self._nothing_left()
            fine = left[[draw.integers(len(left))]]
        return int(fine[0])

    def _is_kept_out(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        if self.padding == "packed":
            return self._is_empty[indices]
        return self._kept_out.touch(*self.dataset.extent(self.dataset.ids(indices, epochs)))

    def _something_is_left(self, epoch: int) -> bool:
        chunk = 1 << 16
        for start in range(0, self.num_samples, chunk):
            indices = np.arange(start, min(start + chunk, self.num_samples))
            if not self._is_kept_out(indices, np.full(len(indices), epoch)).all():
                return True
        return False

    def _nothing_left(self) -> DataError:
        return DataError(
            "nothing is left to train on: every sample is quarantined, or shares tokens with one that is. Look at the "
            "samples in the run's quarantine.jsonl and in data.quarantine. When so many are bad, the cause is usually "
            "the run (a learning rate that is too high, a tokenizer that does not fit) or the whole source."
        )

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
            self._orders[epoch] = self._draw(epoch)
        return self._orders[epoch]

    def _draw(self, epoch: int) -> np.ndarray:
        draw = generator("order", self.seed, epoch)
        if self.padding != "bucketed":
            return draw.permutation(self.num_samples)
        lengths, target_lengths = self.dataset.positions(self._all), self.dataset.target_lengths(self._all)
        return bucketed_order(lengths, target_lengths, self.block, epoch * self.num_samples, draw)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}


def samples_in_epochs(num_samples: int, epochs: float) -> int:
    """The whole number of samples nearest to so many epochs: what `total_samples` should be for them."""
    return max(1, math.floor(epochs * num_samples + 0.5))


def evaluation_order(dataset: Samples, max_samples: int | None = None, padding: Padding = "longest") -> np.ndarray:
    """The indices of the samples in the order in which they are evaluated: long ones first, unless all are padded to
    one width. So little is padded, and memory that is not enough is noticed at once."""
    count = dataset.num_samples if max_samples is None else min(max_samples, dataset.num_samples)
    # Spread over the whole set: its first samples are often of one kind.
    indices = np.arange(count) * dataset.num_samples // max(1, count)
    if padding == "max_length":
        return indices
    lengths = dataset.lengths(dataset.ids(indices, np.zeros_like(indices)))
    return indices[np.argsort(-lengths, kind="stable")]


def eval_batches(
    dataset: Samples,
    batch_size: int,
    max_samples: int | None = None,
    rank: int = 0,
    world: int = 1,
    padding: Padding = "longest",
) -> Iterator[Batch]:
    """So many samples from all over the set, or all of it, each once, in evaluation order; the last batch is short.

    With several ranks, each batch is shared among them. Every sample has a row of its own: what is packed for training
    is sorted here, so that `max_samples` means samples and little is padded all the same.
    """
    order = evaluation_order(dataset, max_samples, padding)
    width = dataset.frame.max_positions if padding == "max_length" else None
    for start in range(0, len(order), batch_size):
        indices = np.array_split(order[start : start + batch_size], world)[rank]
        ids = dataset.ids(indices, np.zeros_like(indices))
        yield _batch(dataset, ids, np.full(len(ids), -1), np.arange(len(ids)), len(ids), width, epoch=0.0, step=0)


def num_eval_batches(dataset: Samples, batch_size: int, max_samples: int | None = None) -> int:
    count = dataset.num_samples if max_samples is None else min(max_samples, dataset.num_samples)
    return -(-count // batch_size)


def _batch(
    dataset: Samples,
    ids: np.ndarray,
    epochs: np.ndarray,
    rows: np.ndarray,
    num_rows: int,
    width: int | None,
    epoch: float,
    step: int,
) -> Batch:
    return Batch(
        ids=ids,
        epochs=epochs,
        tokens=dataset.read(ids),
        rows=rows,
        num_rows=num_rows,
        width=width,
        epoch=epoch,
        step=step,
        targets=dataset.read_targets(ids),
        labels=dataset.labels(ids),
        marks=dataset.read_marks(ids),
        equally_long=dataset.equally_long,
    )
