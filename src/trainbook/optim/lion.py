"""Lion (Chen et al. 2023, arXiv 2302.06675): every weight moves by exactly the rate, in the direction of a sign.

Keeps one average: 4 bytes a parameter in fp32, half of AdamW's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainbook.optim.selective import SelectiveOptimizer, average, gradients_of, keep_if, wide


class Lion(SelectiveOptimizer):
    def __init__(self, groups: list[dict], rate: Tensor, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": rate, "betas": betas, "weight_decay": 0.0})
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        beta1, beta2 = group["betas"]
        kept = [self.state[parameter]["exp_avg"] for parameter in parameters]
        averages, gradients, weights = wide(kept), gradients_of(parameters), wide(parameters)
        # The sign is of a mix that leans on the new gradient (beta1); what is remembered leans on the past (beta2).
        change = average(averages, gradients, beta1)
        torch._foreach_sign_(change)
        torch._foreach_add_(change, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(change, group["lr"])
        keep_if(apply, torch._foreach_sub(weights, change), parameters)
        keep_if(apply, average(averages, gradients, beta2), kept)
