"""Roles and first values of parameters."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from trainbook.models.attention import HeadNorm, ResidualLinear, ValueEmbedding
from trainbook.models.core import Block, EmbeddingMix
from trainbook.models.positions import RelativeBias, Rotary
from trainbook.models.shape import Shape
from trainbook.roles import Grows, Kind, Role

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class OutputLinear(nn.Linear):
    """The matrix from the width to the vocabulary or the labels; its product, not its bias, is multiplied."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, multiplier: float = 1.0) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        # Before the product: x is far smaller than the logits.
        return super().forward(x if self.multiplier == 1.0 else x * self.multiplier)


def named_roles(module: nn.Module) -> dict[str, Role]:
    """What each parameter is, by its full name. Works for any module: a role follows from the layer that owns it."""
    roles: dict[str, Role] = {}
    seen: set[int] = set()
    blocks = tuple(f"{prefix}." for prefix, part in module.named_modules() if isinstance(part, Block))
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue  # tied: the first owner decides
            seen.add(id(parameter))
            full = f"{prefix}.{name}" if prefix else name
            role = _role(part, name, parameter)
            # What is added to the values of a block acts through that block alone.
            in_block = full.startswith(blocks) or isinstance(part, ValueEmbedding)
            roles[full] = replace(role, in_block=in_block, grows=_grows(part, role))
    return roles


def _role(part: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    fan_out = parameter.shape[0] if parameter.ndim else 1
    fan_in = math.prod(parameter.shape[1:]) if parameter.ndim > 1 else 1
    if isinstance(part, NORMS) or (parameter.ndim == 1 and type(part).__name__.endswith("Norm")):
        return Role(Kind.NORM, fan_in, fan_out)
    if isinstance(part, nn.Embedding):
        return Role(Kind.EMBEDDING, fan_in=fan_out, fan_out=fan_in)
    if isinstance(part, EmbeddingMix):
        return Role(Kind.SCALAR, fan_in, fan_out)
    if parameter.ndim < 2:
        return Role(Kind.BIAS, fan_in, fan_out)
    if type(part).__name__ == "Conv1D" and parameter.ndim == 2:  # GPT-2 of transformers: a transposed linear layer
        fan_in, fan_out = fan_out, fan_in
    kind = Kind.OUTPUT if isinstance(part, OutputLinear) or getattr(part, "is_output", False) else Kind.HIDDEN
    return Role(kind, fan_in, fan_out, residual=isinstance(part, ResidualLinear))


def _grows(part: nn.Module, role: Role) -> Grows:
    if isinstance(part, HeadNorm):
        return Grows.HEAD
    if isinstance(part, RelativeBias):
        return Grows.NUM_HEADS
    if role.kind is Kind.SCALAR or (isinstance(part, OutputLinear) and role.kind is Kind.BIAS):
        return Grows.NOT
    return Grows.WIDTH


@torch.no_grad()
def initialize(model: nn.Module, shape: Shape, seed: int) -> None:
    """First values: gains 1, shifts 0, and for matrices one of two rules.

    normal (GPT-2, BERT): N(0, initializer_range); in pre-norm stacks, what writes into the residual stream is shrunk by
    1/sqrt(2 x layers). fan_in (T5): N(0, 1/fan-in), embeddings N(0, 1); queries are smaller by sqrt(head_width) where
    attention has no scale of its own. Under muP these are the base's, and hidden matrices get smaller as they widen.
    By either rule, what writes into the residual stream may start at zero instead, and value embeddings do.

    Each parameter has a generator of its own, seeded by its name and drawn on the CPU, so that its first value depends
    neither on the order in which layers are built nor on the device. Norms and scalars get the type that the shape
    says.
    """
    roles = named_roles(model)
    owners = {f"{prefix}.weight" if prefix else "weight": part for prefix, part in model.named_modules()}
    for name, parameter in model.named_parameters():
        role = roles[name]
        if role.kind in (Kind.NORM, Kind.SCALAR) and shape.wide_norms:
            parameter.data = parameter.data.float()
        if role.kind is Kind.SCALAR:
            parameter.copy_(torch.tensor(EmbeddingMix.FIRST))
        elif role.kind is Kind.NORM:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        elif _starts_at_zero(role, owners.get(name), shape):
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


def _starts_at_zero(role: Role, owner: nn.Module | None, shape: Shape) -> bool:
    is_zeroed = role.residual and shape.residual_init == "zero"
    return role.kind is Kind.BIAS or isinstance(owner, ValueEmbedding) or is_zeroed


def _spread(role: Role, owner: nn.Module | None, shape: Shape) -> float:
    scaling = shape.scaling
    if shape.initializer == "fan_in":
        if isinstance(owner, RelativeBias):
            return shape.base_hidden_size**-0.5
        if role.kind is Kind.EMBEDDING:
            return 1.0
        return (role.fan_in if role.kind is Kind.HIDDEN else role.fan_in / scaling.width) ** -0.5
    spread = shape.initializer_range * (scaling.width**-0.5 if role.kind is Kind.HIDDEN else 1.0)
    # Where depth is corrected by a multiplier, first values are those of the base depth.
    layers = shape.num_hidden_layers / scaling.depth
    return spread / math.sqrt(2 * layers) if role.residual and shape.norm_position == "pre" else spread


def _shrink_queries(parameter: nn.Parameter, name: str, shape: Shape) -> None:
    rows = shape.num_attention_heads * shape.head_width
    if name.endswith(("attention.query_key_value.weight", "cross_attention.query.weight")):
        parameter[:rows] *= (shape.head_width / shape.scaling.head) ** -0.5
