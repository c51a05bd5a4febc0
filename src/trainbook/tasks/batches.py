"""What a step is fed: one global batch, already cut into micro-batches, with its targets counted on the host."""

from __future__ import annotations

from collections.abc import MutableMapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data.batches import Batch
from trainbook.data.row_hashes import row_hashes


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
        hashes = row_hashes(batch.tokens, batch.epochs)
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
