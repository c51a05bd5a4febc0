"""Slices of tensors, as ranks and checkpoints hold them: for saving and loading a sharded state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """A rectangular slice of a larger tensor. Ranks that hold the same slice hold the same values."""

    values: Tensor
    offsets: tuple[int, ...]  # where the box begins
    whole: torch.Size  # the shape of the larger tensor


@runtime_checkable
class Unread(Protocol):
    """A tensor on disk: each rank reads the slice that it needs."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def ndim(self) -> int: ...

    def read(self, offsets: Sequence[int] | None = None, sizes: Sequence[int] | None = None) -> Tensor:
        """The slice that begins at `offsets`; the whole tensor by default."""
        ...


def read_whole(value: Any) -> Any:
    """Read a tensor that is on disk; return anything else as it is."""
    return value.read() if isinstance(value, Unread) else value
