"""Clipping: gradients are bounded by their global norm, and the bound may follow what norms have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trainbook.precision.zclip import ZClip


class Clipped(NamedTuple):
    """What clipping found and did, still on the device."""

    norm: Tensor  # of all gradients together, before clipping, in fp32
    per_tensor: list[Tensor]  # norms of the gradients one by one, before clipping, in fp32
    scaled: Tensor  # whether gradients were scaled down


def clipped_elsewhere(norm: Tensor, max_norm: float | None) -> Clipped:
    """By whoever has the gradients, with the same factor as here; only their global norm is known."""
    scaled = torch.zeros_like(norm, dtype=torch.bool) if max_norm is None else max_norm / (norm + 1e-6) < 1.0
    return Clipped(norm, [], scaled)


def clip_gradients(
    gradients: list[Tensor],
    max_norm: float | None,
    zclip: ZClip | None = None,
    norms_over_ranks: Callable[[Tensor], Tensor] = lambda norms: norms,
) -> Clipped:
    """One L2 norm over all gradients; all are scaled by min(1, bound / norm). The bound is the lower of those given."""
    # fp32 also where gradients are not
    together = norms_over_ranks(torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)))
    norms, total = list(together.unbind()), torch.linalg.vector_norm(together)
    bound: float | Tensor | None = max_norm
    if zclip is not None:
        bound = zclip.bound(total).float().clamp(max=torch.inf if max_norm is None else max_norm)
    if bound is None:
        return Clipped(total, norms, torch.zeros_like(total, dtype=torch.bool))
    # As PyTorch's clip_grad_norm_; below the bound the factor is exactly 1 and gradients keep their bits.
    factor = torch.clamp(bound / (total + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
    return Clipped(total, norms, factor < 1.0)
