"""Optimizers and their parameter groups, from roles."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from trainbook.knobs.sections.optimizer import Optimizer as OptimizerKnobs
from trainbook.roles import Kind, Role


def is_decayed(role: Role, decay_embeddings: bool) -> bool:
    """Weight decay shrinks matrices; norms and biases have no business being near zero. Embeddings are a choice."""
    if role.kind is Kind.EMBEDDING:
        return decay_embeddings
    return role.is_matrix


def parameter_groups(module: nn.Module, roles: dict[str, Role], knobs: OptimizerKnobs) -> list[dict]:
    """Two groups, decayed and not; a tied parameter appears once; order follows the module."""
    decayed, rest = [], []
    for name, parameter in module.named_parameters():  # tied parameters are listed once
        if parameter.requires_grad:
            (decayed if is_decayed(roles[name], knobs.decay_embeddings) else rest).append((name, parameter))
    groups = [
        {"params": [p for _, p in decayed], "names": [n for n, _ in decayed], "weight_decay": knobs.weight_decay},
        {"params": [p for _, p in rest], "names": [n for n, _ in rest], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(groups: list[dict], knobs: OptimizerKnobs, rate: Tensor) -> Optimizer:
    """All groups share one rate, a tensor on the device: the schedule moves it without the host knowing.

    The fused kernels leave parameters, moments and Adam's own step count untouched when `found_inf` says so, which is
    how an update is skipped: selected, never multiplied by zero.
    """
    if knobs.type == "sgd":
        optimizer = SGD(groups, lr=rate, momentum=knobs.momentum, fused=True)
        if knobs.momentum > 0:
            # SGD would make these at its first step without filling them, and a skipped first step leaves them so.
            for parameter in (parameter for group in groups for parameter in group["params"]):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    return AdamW(groups, lr=rate, betas=(knobs.beta1, knobs.beta2), eps=knobs.epsilon, fused=True)


def apply_update(optimizer: Optimizer, apply: Tensor) -> None:
    """Update the parameters if `apply` (a boolean on the device) holds; otherwise nothing changes."""
    optimizer.found_inf = (~apply).float()  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()


def optimizer_state(optimizer: Optimizer) -> dict:
    """Moments by parameter name: what a checkpoint holds. Rates, betas and decay come from the configuration."""
    state = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            state[name] = dict(optimizer.state[parameter])
    return state


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, state: dict) -> None:
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            optimizer.state[parameter] = {
                key: value.to(parameter.device) if isinstance(value, Tensor) else value
                for key, value in state[name].items()
            }
