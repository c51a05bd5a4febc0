"""What a rank holds of a tensor, and what a checkpoint holds of one: so a state is saved and loaded part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """A box of a larger tensor. Ranks that hold the same box of it hold the same values."""

    values: Tensor
    offsets: tuple[int, ...]  # where the box begins
    whole: torch.Size  # the shape of the larger tensor


@runtime_checkable
class Unread(Protocol):
    """A tensor that lies on the disk: each rank reads the box that it needs."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def ndim(self) -> int: ...

    def read(self, offsets: Sequence[int] | None = None, sizes: Sequence[int] | None = None) -> Tensor:
        """The box that begins at `offsets`; everything, if nothing is said."""
        ...


def read_whole(value: Any) -> Any:
    """What lies on the disk; anything else as it is."""
    return value.read() if isinstance(value, Unread) else value
