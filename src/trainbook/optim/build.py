"""The optimizer that a configuration names."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.optim import AdamW, Optimizer

from trainbook.knobs.sections.optimizer import OptimizerKnobs as OptimizerKnobs
from trainbook.optim.optimizers import Lion, Muon, Sgd, StableAdamW, low_bit_adamw
from trainbook.optim.selective import fused_adamw, step_fused


def build_optimizer(
    groups: list[dict],
    knobs: OptimizerKnobs,
    rate: Tensor,
    norms_of_whole: Callable[[Tensor], Tensor] = lambda norms: norms,
    size_of_whole: Callable[[Tensor], int] = Tensor.numel,
) -> Optimizer:
    """All groups share one rate, a tensor on the device: the schedule moves it without the host knowing.

    `norms_of_whole`, `size_of_whole`: of tensors that ranks hold slices of.
    """
    betas = (knobs.beta1, knobs.beta2)
    match knobs.type:
        case "adamw":
            return fused_adamw(groups, rate, betas, knobs.epsilon)
        case "adamw_8bit" | "paged_adamw_8bit":
            return low_bit_adamw(groups, rate, betas, knobs.epsilon, paged=knobs.type == "paged_adamw_8bit")
        case "stable_adamw":
            return StableAdamW(groups, rate, betas, knobs.epsilon, norms_of_whole, size_of_whole)
        case "lion":
            return Lion(groups, rate, betas)
        case "muon":
            return Muon(groups, rate, momentum=knobs.momentum, betas=betas, epsilon=knobs.epsilon)
        case "sgd":
            return Sgd(groups, rate, knobs.momentum)


def apply_update(optimizer: Optimizer, apply: Tensor) -> None:
    """Update the parameters if `apply` (a boolean on the device) holds; otherwise nothing changes, to the bit."""
    if isinstance(optimizer, AdamW):
        step_fused(optimizer, apply)
    else:
        optimizer.step_if(apply)  # pyright: ignore[reportAttributeAccessIssue] # ours, and the 8-bit ones
