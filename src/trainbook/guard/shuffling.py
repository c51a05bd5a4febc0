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


def is_shuffled(loader: Any) -> bool | None:
    """Whether a DataLoader draws its samples at random (True) or has the same order in every epoch (False); of several,
    whether all do. A list of batches has one order. None where nobody can tell: for other iterables, streams, and
    samplers of the user's own, which may put samples of like length together."""
    if isinstance(loader, Mapping):
        loader = list(loader.values())
    if isinstance(loader, (list, tuple)):
        answers = {is_shuffled(each) for each in loader if isinstance(each, DataLoader)} or {False}
        return answers.pop() if len(answers) == 1 else None
    sampler = _sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return True if isinstance(sampler, AT_RANDOM) else False if isinstance(sampler, SequentialSampler) else None


def _sampler_of(loader: Any) -> Any:
    """Of the samples, whatever makes batches of them."""
    sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if sampler is None else sampler
    while isinstance(sampler, BatchSampler):
        # accelerate has batch samplers that leave out some batches of another one; it may be anybody's.
        sampler = sampler.sampler if type(sampler) is BatchSampler else getattr(sampler, "batch_sampler", None)
    return sampler
