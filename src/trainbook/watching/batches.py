"""What a batch of anybody's shows by itself: how many samples, whether it came before, its labels. No host sync: what
lies on a device is hashed there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trainbook.loop.batch_size import rows_of
from trainbook.loop.sample_facts import TARGETS

MOST_SAMPLED = 1024  # numbers of a tensor that tell it from others
MOST_TENSORS = 3
MOST_ROWS = 512


def num_samples(batch: Any) -> int | None:
    return rows_of(batch)


def labels_of(batch: Any) -> Tensor | None:
    """The whole numbers that a model is to predict, in a batch with usual names, or the last of a pair."""
    if isinstance(batch, Mapping):
        found = next((batch[name] for name in TARGETS if name in batch), None)
    else:
        found = batch[-1] if isinstance(batch, (list, tuple)) and len(batch) == 2 else None
    is_usable = isinstance(found, Tensor) and not found.is_floating_point() and not found.is_complex()
    return found if is_usable else None


def fingerprint(batch: Any) -> int | Tensor | None:
    """The same for the same batch: a number, or a tensor on the batch's device. None: nothing in it can be hashed."""
    tensors = [each for each, _ in zip(_tensors(batch), range(MOST_TENSORS), strict=False)]
    if not tensors:
        return None
    if all(each.device.type == "cpu" for each in tensors):
        checksum = 0
        for each in tensors:
            checksum = zlib.crc32(_some(each).contiguous().view(torch.uint8).numpy().data, checksum)
        return checksum
    return torch.stack([_weighed(_some(each)) for each in tensors if each.device.type != "cpu"]).sum()


@torch.no_grad()
def duplicate_rows(batch: Any) -> Tensor | None:
    """The share of rows of the batch's first tensor that equal another one before it."""
    first = next((each for each in _tensors(batch) if each.ndim > 1 and len(each) > 1), None)
    if first is None:
        return None
    rows = first[:MOST_ROWS].reshape(min(len(first), MOST_ROWS), -1)
    step = -(-rows.shape[1] // MOST_SAMPLED)
    sums = _weighed(rows[:, ::step]).sort().values
    return (sums[1:] == sums[:-1]).double().mean() * (len(sums) - 1) / len(sums)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        if batch.numel() > 0 and batch.layout is torch.strided and not batch.is_complex():
            yield batch.detach()
    elif isinstance(batch, Mapping):
        yield from _tensors(list(batch.values()))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors(part)


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat[:: -(-flat.numel() // MOST_SAMPLED)]


def _weighed(values: Tensor) -> Tensor:
    """A sum over the last dimension in which each place counts differently."""
    return (values.double() * _weights(values.shape[-1], values.device)).sum(-1)


@lru_cache(maxsize=8)
def _weights(length: int, device: torch.device) -> Tensor:
    return torch.arange(1, length + 1, dtype=torch.double, device=device).sqrt()
