"""Stochastic gradient descent with momentum.

Not PyTorch's fused one: on a CPU its kernel leaves most 16-bit weights as they are (PyTorch 2.12 and 2.13).

Keeps one sum of gradients (4 bytes a parameter in fp32), or nothing without momentum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainbook.optim.selective import SelectiveOptimizer, gradients_of, keep_if, wide


class Sgd(SelectiveOptimizer):
    def __init__(self, groups: list[dict], rate: Tensor, momentum: float) -> None:
        super().__init__(groups, {"lr": rate, "momentum": momentum, "weight_decay": 0.0})
        if momentum > 0:
            for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        weights, momentum = wide(parameters), group["momentum"]
        change = torch._foreach_add(gradients_of(parameters), weights, alpha=group["weight_decay"])
        if momentum > 0:
            kept = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_add_(change, wide(kept), alpha=momentum)
            keep_if(apply, change, kept)
        keep_if(apply, torch._foreach_sub(weights, torch._foreach_mul(change, group["lr"])), parameters)
