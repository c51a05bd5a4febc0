"""Numbers on their way from a device to the host, which does not wait for them.

On CUDA they are gathered in one tensor, copied into pinned memory, and there once an event behind the copy is complete.
Everything that lies elsewhere is read at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Moment:
    """A point in the work of a device. On CUDA: an event behind all that was queued; elsewhere: now."""

    def __init__(self, device: torch.device) -> None:
        self._seconds = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))

    def has_come(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: Moment) -> float:
        """Of the device's time. Waits until both have come."""
        if self._event is None or earlier._event is None:
            return self._seconds - earlier._seconds
        earlier.wait()
        self.wait()
        return earlier._event.elapsed_time(self._event) / 1000


class Copy(Protocol):
    def is_complete(self) -> bool: ...

    def numbers(self) -> list[float]:
        """Waits until it is complete."""
        ...


class CopyAtOnce:
    def __init__(self, source: Tensor) -> None:
        self._numbers = source.tolist()

    def is_complete(self) -> bool:
        return True

    def numbers(self) -> list[float]:
        return self._numbers


class CopyFromCuda:
    def __init__(self, source: Tensor) -> None:
        self._pinned = _pinned(source)
        self._pinned.copy_(source, non_blocking=True)
        self._end = Moment(source.device)

    def is_complete(self) -> bool:
        return self._end.has_come()

    def numbers(self) -> list[float]:
        self._end.wait()  # until then the pinned memory holds anything
        return self._pinned.tolist()


def _pinned(source: Tensor) -> Tensor:
    return torch.empty(source.shape, dtype=source.dtype, pin_memory=True)


def start_copy(source: Tensor) -> Copy:
    return CopyFromCuda(source) if source.device.type == "cuda" else CopyAtOnce(source)


class PendingNumbers:
    """Tensors by name, and mappings of them, as Python numbers: a float for one without dimensions, else a list."""

    def __init__(self, values: Mapping[str, Tensor | Mapping[str, Tensor]]) -> None:
        self._keys = {name: list(value) if isinstance(value, Mapping) else None for name, value in values.items()}
        tensors = [
            each for value in values.values() for each in (value.values() if isinstance(value, Mapping) else (value,))
        ]
        self._sizes = [each.numel() if each.ndim else None for each in tensors]  # None: a plain number
        self._copies = [
            (places, start_copy(_gathered([[tensors[place] for place in alike] for alike in by_type.values()])))
            for by_type in _by_device_and_type(tensors).values()
            if (places := [place for alike in by_type.values() for place in alike])
        ]

    def have_arrived(self) -> bool:
        return all(copy.is_complete() for _, copy in self._copies)

    def read(self) -> dict[str, Any]:
        """Waits until they have arrived."""
        found: list[Any] = [None] * len(self._sizes)
        for places, copy in self._copies:
            numbers = iter(copy.numbers())
            for place in places:
                size = self._sizes[place]
                found[place] = next(numbers) if size is None else [next(numbers) for _ in range(size)]
        values = iter(found)
        return {
            name: next(values) if keys is None else {key: next(values) for key in keys}
            for name, keys in self._keys.items()
        }


def _by_device_and_type(tensors: list[Tensor]) -> dict[torch.device, dict[torch.dtype, list[int]]]:
    places: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.device, {}).setdefault(tensor.dtype, []).append(place)
    return places


@torch.no_grad()
def _gathered(groups: list[list[Tensor]]) -> Tensor:
    """All of them behind each other. Each group has one type, so that a few kernels do for any number of tensors."""
    return torch.cat([torch.cat([each.detach().reshape(-1) for each in group]).double() for group in groups])
