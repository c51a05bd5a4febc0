"""A device whose copies to the host arrive late, where there is none."""

from __future__ import annotations

import pytest
from torch import Tensor


class LateCopy:
    def __init__(self, source: Tensor, device: LateDevice) -> None:
        self._numbers, self._device, self.has_ended = source.tolist(), device, False

    def is_complete(self) -> bool:
        return self.has_ended

    def numbers(self) -> list[float]:
        if self._device.is_lost:
            raise RuntimeError("device-side assert")
        self._device.waits += not self.has_ended
        self.has_ended = True
        return self._numbers


class LateDevice:
    """A copy is complete once the device was told to catch up, or when it was waited for, which is counted."""

    def __init__(self) -> None:
        self.copies: list[LateCopy] = []
        self.waits = 0
        self.is_lost = False

    def start_copy(self, source: Tensor) -> LateCopy:
        self.copies.append(LateCopy(source, self))
        return self.copies[-1]

    def catch_up(self) -> None:
        for copy in self.copies:
            copy.has_ended = True


@pytest.fixture
def late_device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    monkeypatch.setattr("trainbook.watching.pending.start_copy", device.start_copy)
    return device
