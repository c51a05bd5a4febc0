"""Recent training states in memory, for rollbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class SnapshotRing:
    """The last few snapshots, and one more: the newest up to a step that is known to be good."""

    def __init__(self, size: int = 3, device: torch.device | None = None) -> None:
        """`device`: where copies are kept; None: on the device of each tensor."""
        self.size, self.device = size, device
        self._kept: dict[int, Any] = {}

    @property
    def steps(self) -> list[int]:
        return sorted(self._kept)

    def take(self, step: int, state: Mapping[str, Any], *, spare: int | None = None) -> None:
        """Keep a copy and drop older ones, except the newest one up to step `spare`."""
        self._kept[step] = copied(state, self.device)
        spared = max((known for known in self._kept if spare is not None and known <= spare), default=None)
        others = [known for known in self.steps if known != spared]
        for known in others[: max(0, len(others) - self.size)]:
            del self._kept[known]

    def newest(self, at_most: int) -> tuple[int, Any] | None:
        fitting = [step for step in self._kept if step <= at_most]
        return (max(fitting), self._kept[max(fitting)]) if fitting else None

    def forget_after(self, step: int) -> None:
        self._kept = {known: state for known, state in self._kept.items() if known <= step}

    @property
    def bytes(self) -> int:
        return size_of(self._kept)

    def moved_to(self, device: torch.device) -> SnapshotRing:
        """Moved one by one, so there are never two copies of all of them."""
        moved = SnapshotRing(self.size, device)
        for step in self.steps:
            moved._kept[step] = copied(self._kept.pop(step), device)
        return moved


def copied(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone() if device is None else value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [copied(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def size_of(value: Any) -> int:
    """Bytes of the tensors in it."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(size_of(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(item) for item in value)
    return 0
