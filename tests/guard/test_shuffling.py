from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trainbook.guard.shuffling import is_shuffled

DATA = TensorDataset(torch.zeros(8, 1))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(DATA)


class ByLength(BatchSampler):
    """Puts samples of like length together, whatever it draws them from."""


def distributed(*, shuffle: bool) -> DistributedSampler:
    return DistributedSampler(DATA, num_replicas=2, rank=0, shuffle=shuffle)


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(DATA, batch_size=2, shuffle=True), True),
        (DataLoader(DATA, batch_size=None, shuffle=True), True),
        (DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])), True),
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 8, 8)), True),
        (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, False)), True),
        (DataLoader(DATA, sampler=distributed(shuffle=True)), True),
        ([DataLoader(DATA, shuffle=True), DataLoader(DATA, shuffle=True)], True),
        (DataLoader(DATA, batch_size=2), False),
        (DataLoader(DATA, sampler=distributed(shuffle=False)), False),
        (DataLoader(DATA, batch_sampler=ByLength(RandomSampler(DATA), 2, False)), None),
        (DataLoader(DATA, sampler=SequentialSampler(DATA)), False),
        (DataLoader(Stream()), None),
        ({"one": DataLoader(DATA, shuffle=True), "other": DataLoader(DATA)}, None),
        ([], False),
        (None, None),
        ([torch.zeros(2)], False),
    ],
)
def test_what_is_drawn_at_random_what_has_one_order_and_what_nobody_can_tell(loader: Any, expected: bool | None):
    assert is_shuffled(loader) is expected


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_that_accelerate_leaves_out_or_shares_are_looked_through(shuffle: bool):
    data_loader = pytest.importorskip("accelerate.data_loader")
    batches = DataLoader(DATA, batch_size=2, shuffle=shuffle).batch_sampler
    assert batches is not None
    shared = data_loader.BatchSamplerShard(data_loader.SkipBatchSampler(batches, 1), 2, 0)
    assert is_shuffled(DataLoader(DATA, batch_sampler=shared)) is shuffle
