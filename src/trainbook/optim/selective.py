"""Optimizers whose update may be refused: computed on the device, then kept or not, and the host never learns which."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

# PyTorch's fused AdamW: its kernel skips weights, averages and step count if `found_inf` is set.


def fused_adamw(groups: list[dict], rate: Tensor, betas: tuple[float, float], epsilon: float) -> AdamW:
    optimizer = AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True)
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def step_fused(optimizer: AdamW, apply: Tensor) -> None:
    optimizer.found_inf = (~apply).float()  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()


# What our own optimizers share.


Tensors = list[Tensor] | tuple[Tensor, ...]
BUCKET = 2**25  # numbers updated at a time: few kernels for small tensors, and little memory for intermediate results


class SelectiveOptimizer(Optimizer):
    """Subclasses update some parameters of a group; `keep_if` is their last act."""

    @torch.no_grad()
    def step_if(self, apply: Tensor) -> None:
        for group in self.param_groups:
            for parameters in in_buckets([each for each in group["params"] if each.grad is not None]):
                self.update(group, parameters, apply)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        raise NotImplementedError


def in_buckets(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for parameter in parameters:
        if bucket and sum(each.numel() for each in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def wide(tensors: Tensors) -> list[Tensor]:
    """Updates of 16-bit weights are computed in fp32 and rounded once, at the end. Others are left as they are."""
    return [tensor.float() if tensor.itemsize < 4 else tensor for tensor in tensors]


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    return wide([parameter.grad for parameter in parameters if parameter.grad is not None])


def average(averages: Tensors, values: Tensors, beta: float) -> list[Tensor]:
    """beta x average + (1 - beta) x value, as new tensors."""
    moved = torch._foreach_mul(averages, beta)
    torch._foreach_add_(moved, values, alpha=1.0 - beta)
    return list(moved)


def keep_if(apply: Tensor, fresh: Tensors, kept: Tensors) -> None:
    """Selected, never multiplied by zero: a fresh value may be NaN, and the kept one stays as it is, to the bit."""
    torch._foreach_copy_(kept, [torch.where(apply, new, old) for new, old in zip(fresh, kept, strict=True)])
