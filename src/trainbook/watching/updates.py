"""What is measured around the optimizer's step of a row, all on the device."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from trainbook.loop.structure import learning_rate
from trainbook.watching.gradients import Gradients, ZeroCheck
from trainbook.watching.numbers import as_tensor


class UpdateMeter:
    def __init__(self, optimizer: Any, gradients: Gradients) -> None:
        self._optimizer, self._gradients = optimizer, gradients
        self._zero_check = ZeroCheck()
        self._unclipped: dict[str, Any] = {}  # what is measured of gradients, before clipping
        self._weights: list[Tensor] | None = None
        self._rate: Tensor | None = None

    def before_clipping(self) -> None:
        self._unclipped = self._gradients.measure()

    def begin(self) -> None:
        """Before the optimizer's step, if its row is due."""
        self._weights = self._gradients.before()
        self._rate = as_tensor(learning_rate(self._optimizer))  # before a scheduler moves it on

    def end(self, *, watches_next: bool) -> dict[str, Any] | None:
        """After any step: what was measured, if it was begun. Gradients are read here, since those of a closure come
        only during the step; it leaves them as they are. `watches_next`: whether the next step's row is due."""
        left_over, measured = self._zero_check.read(), None
        if self._weights is not None:
            now = self._gradients.measure()
            measured = {
                **now,
                **self._unclipped,
                **self._gradients.after(self._weights),
                "norm_at_step": now.get("grad_norm"),
                "left_over": left_over,
                "learning_rate": self._rate,
            }
            self._unclipped, self._weights = {}, None
        if watches_next and not _are_several():
            self._zero_check.arm(self._gradients.parameters)
        return measured

    def disarm(self) -> None:
        self._zero_check.disarm()


def _are_several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
