"""How the programs read a data set that fits in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def shuffled_epochs(rows: int, batch: int) -> Iterator[Tensor]:
    """Row numbers, shuffled anew in each epoch. The last batch of an epoch has what is left: DataLoader's default."""
    while True:
        yield from torch.randperm(rows).split(batch)
