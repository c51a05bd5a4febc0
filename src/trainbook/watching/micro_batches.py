"""The loss of an update from those of its micro-batches, whether the loop divided them before it told them or not.

The usual loop divides each loss by the number of micro-batches, so that gradients add up to those of the whole batch:
`loss = loss / 4; watch.add_loss(loss); loss.backward()`. The mean of what was told is then too low, by that number. The
graph of a loss tells whether it was multiplied by a number after it was computed. If that number is one over the number
of micro-batches, and nothing divided the loss again before its backward pass, the losses are parts of a mean.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from trainbook.loop.objective import SAME
from trainbook.watching.numbers import scalar

SAME_FACTOR = 1e-3
NOT_LESSENED = 0.99  # of the gradient that reaches a loss: it is 1, or the scale of the loss, unless it is divided
DEEPEST = 6  # nodes from the loss


class MicroBatchLosses:
    """Since the last update. Nothing here waits for the device."""

    def __init__(self) -> None:
        self.divisor = 1  # that losses were seen to be divided by before they were told
        self._losses: list[Tensor] = []
        self._factors: list[float] = []
        self._gradients: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._losses)

    def add(self, loss: Tensor) -> None:
        """Before its backward pass."""
        factor = factor_in(loss)
        self._losses.append(scalar(loss).clone())  # `loss /= 4` may follow
        self._factors.append(factor)
        if factor < 1 and loss.requires_grad:
            # It appends to the list of the present update, and holds nothing of the watch.
            loss.register_hook(_Noted(self._gradients))

    def mean(self) -> Tensor:
        """Over micro-batches, of their losses as they were before they were divided. Forgets them."""
        losses, factors, gradients = self._losses, self._factors, self._gradients
        self._losses, self._factors, self._gradients = [], [], []
        if len(losses) > 1 and all(_is_one_of(factor, len(losses)) for factor in factors):
            self.divisor = len(losses)
        values = torch.stack([each.float() for each in losses])
        if self.divisor == 1 or not all(_is_one_of(factor, self.divisor) for factor in factors):
            return values.mean()
        if not gradients:
            return values.mean() * self.divisor
        is_divided = torch.stack([each.float().reshape(()) for each in gradients]).amin() >= NOT_LESSENED
        return torch.where(is_divided, values.mean() * self.divisor, values.mean())


class _Noted:
    def __init__(self, gradients: list[Tensor]) -> None:
        self._gradients = gradients

    def __call__(self, gradient: Tensor) -> None:
        self._gradients.append(gradient.detach().clone())


def factor_in(loss: Tensor) -> float:
    """The number that a loss was multiplied by after it was computed, as its graph tells it before a backward pass; 1
    where it tells nothing, as of a compiled one or of a number on a device that would have to be waited for."""
    with suppress(Exception):  # whatever is odd about somebody's graph
        return _factor(loss.grad_fn, DEEPEST)
    return 1.0


def _factor(node: Any, deepest: int) -> float:
    if node is None or not deepest:
        return 1.0
    name, ahead = node.name(), [each for each, _ in node.next_functions if each is not None]
    if name in {"DivBackward0", "MulBackward0"} and len(ahead) == 1:
        number = node._saved_other
        if number is None or number.numel() != 1 or number.device.type != "cpu":
            return 1.0
        factor = float(number) if name == "MulBackward0" else 1 / float(number)
        return factor * _factor(ahead[0], deepest - 1) if math.isfinite(factor) else 1.0
    if name in {"AddBackward0", "SubBackward0"} and ahead:
        factors = [_factor(each, deepest - 1) for each in ahead]
        return factors[0] if all(abs(each - factors[0]) <= SAME_FACTOR for each in factors) else 1.0
    if name in SAME | {"NegBackward0", "MeanBackward0", "SumBackward0"} and len(ahead) == 1:
        return _factor(ahead[0], deepest - 1)
    return 1.0


def _is_one_of(factor: float, count: int) -> bool:
    return abs(abs(factor) * count - 1) <= SAME_FACTOR
