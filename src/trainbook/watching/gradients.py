"""Gradients and updates around the step of an optimizer, on the device; read when a row is due."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trainbook.loop.step_metrics import layer_norms, sampled, update_sizes


class Gradients:
    """Norms of the gradients that an optimizer is about to use, and of what it made of them."""

    def __init__(self, names: Sequence[str], parameters: Sequence[Tensor]) -> None:
        self.names, self.parameters = list(names), list(parameters)
        self._sizes = [parameter.numel() for parameter in parameters]

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """`grad_norm`, `grad_norms`, and `zero_gradients`: the share of parameters in tensors without any."""
        having = [place for place, parameter in enumerate(self.parameters) if _is_dense(parameter.grad)]
        if not having:
            return {"zero_gradients": torch.ones(())}
        gradients = [self.parameters[place].grad for place in having]
        norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32))  # pyright: ignore
        sizes = _on_device(tuple(self._sizes[place] for place in having), norms.device)
        return {
            "grad_norm": torch.linalg.vector_norm(norms.double()),
            "grad_norms": layer_norms([self.names[place] for place in having], norms.unbind()),
            "zero_gradients": 1 - (sizes * (norms != 0)).sum() / max(1, sum(self._sizes)),
        }

    def before(self) -> list[Tensor]:
        return sampled(self.parameters)

    def after(self, before: list[Tensor]) -> dict[str, Any]:
        return update_sizes(before, self.parameters, self.names)


@lru_cache(maxsize=4)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(sizes, dtype=torch.float32).to(device, non_blocking=True)


def _is_dense(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.layout is torch.strided


class ZeroCheck:
    """Whether the gradients of one update still hold those of the update before: nobody set them to zero.

    Between two steps of the optimizer, each gradient that arrives at one small parameter is compared with what the
    parameter has afterwards. If they are the same once, there was nothing before it.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._arrived: Tensor | None = None
        self._was_clear: Tensor | None = None

    def arm(self, parameters: Sequence[Tensor]) -> None:
        """After a step: watch the smallest parameter that had a gradient in it."""
        self.disarm()
        had = [each for each in parameters if _is_dense(each.grad) and each.requires_grad and each.numel() > 0]
        if not had:
            return
        parameter: Any = min(had, key=lambda each: each.numel())
        self._handles = [
            parameter.register_hook(self._note_arrival),
            parameter.register_post_accumulate_grad_hook(self._compare),
        ]

    def read(self) -> Tensor | None:
        """Before the next step: True on the device if gradients were left over. None: no gradient arrived."""
        was_clear = self._was_clear
        self.disarm()
        return None if was_clear is None else ~was_clear

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._arrived, self._was_clear = [], None, None

    def _note_arrival(self, gradient: Tensor) -> None:
        self._arrived = gradient.detach()

    @torch.no_grad()
    def _compare(self, parameter: Tensor) -> None:
        if self._arrived is None or parameter.grad is None:
            return
        # The same numbers, NaN and zeros included: zeros alone tell nothing.
        is_same = ((parameter.grad == self._arrived) | self._arrived.isnan()).all()
        self._was_clear = is_same if self._was_clear is None else self._was_clear | is_same
        self._arrived = None
