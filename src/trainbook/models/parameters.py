"""Roles and first values of parameters."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from trainbook.models.attention import ResidualLinear
from trainbook.models.relative import RelativeBias
from trainbook.models.rotary import Rotary
from trainbook.models.shape import Shape
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
    if isinstance(part, NORMS) or (parameter.ndim == 1 and type(part).__name__.endswith("Norm")):
        return Role(Kind.NORM, fan_in, fan_out)
    if isinstance(part, nn.Embedding):
        return Role(Kind.EMBEDDING, fan_in=fan_out, fan_out=fan_in)
    if parameter.ndim < 2:
        return Role(Kind.BIAS, fan_in, fan_out)
    if type(part).__name__ == "Conv1D" and parameter.ndim == 2:  # GPT-2 of transformers: a transposed linear layer
        fan_in, fan_out = fan_out, fan_in
    kind = Kind.OUTPUT if isinstance(part, OutputLinear) or getattr(part, "is_output", False) else Kind.HIDDEN
    return Role(kind, fan_in, fan_out, residual=isinstance(part, ResidualLinear))


@torch.no_grad()
def initialise(model: nn.Module, shape: Shape, seed: int) -> None:
    """First values: gains 1, shifts 0, and for matrices one of two rules.

    normal (GPT-2, BERT): N(0, initializer_range); in pre-norm stacks, what writes into the residual stream is shrunk by
    1/sqrt(2 x layers). fan_in (T5): N(0, 1/fan-in), embeddings N(0, 1); queries are smaller by sqrt(head_width) where
    attention has no scale of its own.

    Each parameter has a generator of its own, seeded by its name and drawn on the CPU, so that its first value depends
    neither on the order in which layers are built nor on the device. Norms get the type that the shape says.
    """
    roles = named_roles(model)
    owners = {f"{prefix}.weight" if prefix else "weight": part for prefix, part in model.named_modules()}
    for name, parameter in model.named_parameters():
        role = roles[name]
        if role.kind is Kind.NORM:
            if shape.wide_norms:
                parameter.data = parameter.data.float()
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        elif role.kind is Kind.BIAS:
            parameter.zero_()
        else:
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            first_values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(first_values * _spread(role, owners.get(name), shape))
            if shape.initializer == "fan_in" and shape.attention_scale == "none":
                _shrink_queries(parameter, name, shape)
    for part in model.modules():
        if isinstance(part, Rotary):
            part.fill_tables()


def _spread(role: Role, owner: nn.Module | None, shape: Shape) -> float:
    if shape.initializer == "fan_in":
        if isinstance(owner, RelativeBias):
            return shape.hidden_size**-0.5
        return 1.0 if role.kind is Kind.EMBEDDING else role.fan_in**-0.5
    shrinks = role.residual and shape.norm_position == "pre"
    return shape.initializer_range / math.sqrt(2 * shape.num_hidden_layers) if shrinks else shape.initializer_range


def _shrink_queries(parameter: nn.Parameter, name: str, shape: Shape) -> None:
    rows = shape.num_attention_heads * shape.head_width
    if name.endswith(("attention.query_key_value.weight", "cross_attention.query.weight")):
        parameter[:rows] *= shape.head_width**-0.5
