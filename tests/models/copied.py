"""A model m times as wide whose every neuron is one of a smaller model's, copied m times: under muP it computes, and
keeps computing while it learns, exactly what the smaller one does. So every rule of muP has an exact test."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainbook.models import named_roles
from trainbook.models.attention import HeadNorm
from trainbook.models.shape import Shape
from trainbook.optim.groups import row_parts
from trainbook.roles import Kind


@torch.no_grad()
def copy_neurons(small: nn.Module, wide: nn.Module, times: int, *, within_heads: bool = False) -> None:
    """`within_heads`: heads get wider; otherwise there are more of them."""
    roles, into = named_roles(small), dict(wide.named_parameters())
    heads = Heads(small.body.shape, times) if within_heads else None  # pyright: ignore
    for name, parameter in small.named_parameters():
        owner = small.get_submodule(name.rpartition(".")[0])
        into[name].copy_(_copied(small, owner, name, parameter, roles[name].kind, times, heads))


class Heads:
    """Copies inside each head, not of whole heads."""

    def __init__(self, shape: Shape, times: int) -> None:
        self.width, self.times = shape.head_width, times

    def spread(self, values: Tensor) -> Tensor:
        rest = values.shape[1:]
        by_head = values.reshape(-1, self.width, *rest)
        return by_head.repeat(1, self.times, *[1 for _ in rest]).reshape(-1, *rest)


def _copied(
    module: nn.Module, owner: nn.Module, name: str, values: Tensor, kind: Kind, times: int, heads: Heads | None
) -> Tensor:
    if isinstance(owner, HeadNorm):
        return values.repeat(times) if heads else values
    if name == "head.bias" or kind is Kind.SCALAR:
        return values
    if name.endswith("relative_bias.weight"):
        return values if heads else values.repeat(1, times)
    if heads and "value_embeddings" in name:
        return heads.spread(values.T).T
    if kind in (Kind.EMBEDDING, Kind.OUTPUT):
        return values.repeat(1, times)
    is_attention = "attention." in name and "norm" not in name
    parts = row_parts(module, name.replace(".bias", ".weight"), nn.Parameter(values))
    outward = is_attention and ".output." not in name
    rows = [heads.spread(part) if heads and outward else torch.cat([part] * times) for part in values.split(parts)]
    result = torch.cat(rows)
    if values.ndim == 1:
        return result
    inward = is_attention and ".output." in name
    result = heads.spread(result.T).T if heads and inward else torch.cat([result] * times, 1)
    return result / times
