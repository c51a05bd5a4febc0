"""Whether a loader shuffles: then no healthy stretch of batches is different from the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

AT_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def is_shuffled(loader: Any) -> bool:
    """Whether a DataLoader draws its samples at random; of several, whether all do. False where nobody can tell: for
    other iterables, streams, and samplers of the user's own, which may put samples of like length together."""
    if isinstance(loader, Mapping):
        loader = list(loader.values())
    if isinstance(loader, (list, tuple)):
        return bool(loader) and all(is_shuffled(each) for each in loader)
    sampler = _sampler_of(loader)
    return isinstance(sampler, AT_RANDOM) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)


def is_in_order(loader: Any) -> bool:
    """Whether every epoch has the same order: that of a list of batches, or of a DataLoader that does not shuffle.
    False where nobody can tell."""
    if isinstance(loader, Mapping):
        loader = list(loader.values())
    if isinstance(loader, (list, tuple)):
        return all(is_in_order(each) for each in loader if isinstance(each, DataLoader))
    sampler = _sampler_of(loader)
    return isinstance(sampler, SequentialSampler) or (isinstance(sampler, DistributedSampler) and not sampler.shuffle)


def _sampler_of(loader: Any) -> Any:
    """Of the samples, whatever makes batches of them."""
    sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if sampler is None else sampler
    while isinstance(sampler, BatchSampler):
        # accelerate has batch samplers that leave out some batches of another one; it may be anybody's.
        sampler = sampler.sampler if type(sampler) is BatchSampler else getattr(sampler, "batch_sampler", None)
    return sampler
