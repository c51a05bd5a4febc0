"""Roles and first values of parameters."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from trainbook.models.core import ResidualLinear, Transformer
from trainbook.models.rotary import Rotary
from trainbook.roles import Kind, Role

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class OutputLinear(nn.Linear):
    """The matrix from the width to the vocabulary or the labels."""


def named_roles(module: nn.Module) -> dict[str, Role]:
    """What each parameter is, by its full name. Works for any module: a role follows from the layer that owns it."""
    roles: dict[str, Role] = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue  # tied: the first owner decides
            seen.add(id(parameter))
            roles[f"{prefix}.{name}" if prefix else name] = _role(part, name, parameter)
    return roles


def _role(part: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    fan_out = parameter.shape[0] if parameter.ndim else 1
    fan_in = math.prod(parameter.shape[1:]) if parameter.ndim > 1 else 1
    if isinstance(part, NORMS):
        return Role(Kind.NORM, fan_in, fan_out)
    if isinstance(part, nn.Embedding):
        return Role(Kind.EMBEDDING, fan_in=fan_out, fan_out=fan_in)
    if parameter.ndim < 2:
        return Role(Kind.BIAS, fan_in, fan_out)
    kind = Kind.OUTPUT if isinstance(part, OutputLinear) else Kind.HIDDEN
    return Role(kind, fan_in, fan_out, residual=isinstance(part, ResidualLinear))


@torch.no_grad()
def initialise(model: nn.Module, body: Transformer, seed: int) -> None:
    """GPT-2's first values: N(0, initializer_range); residual outputs shrunk by 1/sqrt(2 x layers); gains 1, shifts 0.

    Each parameter has a generator of its own, seeded by its name and drawn on the CPU, so that its first value depends
    neither on the order in which layers are built nor on the device.
    """
    std, depth = body.shape.initializer_range, body.shape.num_hidden_layers
    roles = named_roles(model)
    for name, parameter in model.named_parameters():
        role = roles[name]
        if role.kind is Kind.NORM:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        elif role.kind is Kind.BIAS:
            parameter.zero_()
        else:
            scale = std / math.sqrt(2 * depth) if role.residual else std
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    for part in model.modules():
        if isinstance(part, Rotary):
            part.fill_tables()
