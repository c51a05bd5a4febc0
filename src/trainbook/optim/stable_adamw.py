"""StableAdamW (arXiv 2304.13013): AdamW whose rate shrinks, tensor by tensor, while the second average lags.

After gradients grow suddenly, AdamW divides by yesterday's scale and takes steps several times too long. Here the root
mean square of gradient / scale, which is about 1 in calm times, says so at once, and the tensor's rate (of its decay
too) is divided by it where it exceeds 1. With that, clipping by a global norm is not needed.

Keeps the two averages of AdamW: 8 bytes a parameter in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trainbook.optim.selective import SelectiveOptimizer, average, gradients_of, keep_if, wide


class StableAdamW(SelectiveOptimizer):
    def __init__(
        self,
        groups: list[dict],
        rate: Tensor,
        betas: tuple[float, float],
        epsilon: float,
        norms_of_whole: Callable[[Tensor], Tensor] = lambda norms: norms,
        size_of_whole: Callable[[Tensor], int] = Tensor.numel,
    ) -> None:
        """`norms_of_whole` and `size_of_whole`: of tensors that ranks hold slices of, from those of the slices."""
        super().__init__(groups, {"lr": rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0})
        self.norms_of_whole, self.size_of_whole = norms_of_whole, size_of_whole
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                # In bf16 an average with beta2 .999 would stand still: what is added is less than its last bit.
                "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
            }

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        (beta1, beta2), epsilon = group["betas"], group["eps"]
        steps, kept, kept_squares = (
            [self.state[parameter][key] for parameter in parameters] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        gradients, weights = gradients_of(parameters), wide(parameters)
        averages = average(wide(kept), gradients, beta1)
        squares = average(wide(kept_squares), torch._foreach_mul(gradients, gradients), beta2)

        updates = torch.stack(steps) + 1  # of each parameter, with this one
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, _one_minus_power(beta2, updates).sqrt().unbind())
        norms = torch._foreach_norm(torch._foreach_div(gradients, torch._foreach_maximum(scales, epsilon)))
        surprise = list(self.norms_of_whole(torch.stack(norms)).unbind())
        torch._foreach_div_(surprise, [math.sqrt(self.size_of_whole(parameter)) for parameter in parameters])
        torch._foreach_maximum_(surprise, 1.0)

        torch._foreach_add_(scales, epsilon)
        change = torch._foreach_div(averages, scales)
        torch._foreach_div_(change, _one_minus_power(beta1, updates).unbind())
        torch._foreach_add_(change, weights, alpha=group["weight_decay"])
        torch._foreach_div_(change, surprise)
        torch._foreach_mul_(change, group["lr"])
        keep_if(apply, torch._foreach_sub(weights, change), parameters)
        keep_if(apply, averages, kept)
        keep_if(apply, squares, kept_squares)
        torch._foreach_copy_(steps, torch.where(apply, updates, updates - 1).unbind())


def _one_minus_power(beta: float, updates: Tensor) -> Tensor:
    """1 - beta^updates without the loss of digits: what an average that began at zero is divided by."""
    return -torch.expm1(updates * (math.log(beta) if beta > 0 else -math.inf))
