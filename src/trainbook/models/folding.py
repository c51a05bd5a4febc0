"""Multipliers put into the weights, for formats that have none: the same function, with other numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainbook.models.parameters import OutputLinear
from trainbook.models.shape import Shape

# The norm whose answer the head reads, by the kind of head that shares the embedding; it is read by nothing else.
NORMS_BEFORE_HEADS = ("transform_norm", "body.decoder.final_norm", "body.final_norm")
INPUTS = ("token_embedding", "position_embedding", "type_embedding")


@torch.no_grad()
def folded_parameters(task: nn.Module, shape: Shape, *, head_multiplier: float = 1.0) -> dict[str, Tensor]:
    """The parameters of a task of ours by name, such that multipliers are 1 and attention has the usual scale.

    `head_multiplier`: what the format multiplies logits by itself. Where a type of 16 bits would round
    products, all of them are fp32.
    """
    given: dict[str, Tensor] = dict(task.named_parameters())
    parameters = dict(given)
    factors: set[float] = set()

    def multiply(name: str, factor: float, rows: slice = slice(None)) -> None:
        if name in parameters and factor != 1.0:
            factors.add(factor)
            parameters[name] = parameters[name].detach().float().clone()
            parameters[name][rows] *= factor

    head: OutputLinear = task.head  # pyright: ignore[reportAssignmentType]
    is_tied = "head.weight" not in parameters
    embedding, logits = shape.embedding_multiplier, head.multiplier / head_multiplier
    for name in INPUTS:
        multiply(f"body.{name}.weight", embedding)
    if is_tied:
        norm = next(name for name in NORMS_BEFORE_HEADS if f"{name}.weight" in parameters)
        for kind in ("weight", "bias"):
            multiply(f"{norm}.{kind}", logits / embedding)  # the shared matrix already has the embedding's
    else:
        multiply("head.weight", logits)
    usual = 1.0 if shape.attention_scale == "none" else shape.head_width**-0.5
    queries = slice(shape.num_attention_heads * shape.head_width)
    for name in list(parameters):
        if name.endswith(("attention.query_key_value.weight", "attention.query_key_value.bias")):
            multiply(name, shape.softmax_scale / usual, queries)
        elif name.endswith(("cross_attention.query.weight", "cross_attention.query.bias")):
            multiply(name, shape.softmax_scale / usual)
        elif (".blocks." in name and ".output." in name) or ".feed_forward.down." in name:
            multiply(name, shape.scaling.branch_multiplier)
    if all(math.frexp(factor)[0] == 0.5 for factor in factors):  # powers of two: no type rounds their products
        return {name: tensor.to(given[name].dtype) for name, tensor in parameters.items()}
    return {name: tensor.float() for name, tensor in parameters.items()}  # all alike: a format states one type
