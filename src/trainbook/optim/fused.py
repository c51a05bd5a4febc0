"""PyTorch's fused AdamW.

Its kernel leaves parameters, averages and its own step count untouched when `found_inf` says so, which is how an update
is skipped: selected, never multiplied by zero. State is made at once, not at the first step: a checkpoint of step 0
holds it, and what does not fit into memory shows before training begins.

Keeps two averages: 8 bytes a parameter in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import AdamW


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
