"""Gradient clipping: gradients are bounded by their global norm, and the bound may follow what norms have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# ZClip (arXiv 2504.02507): gradients are bounded where their norm is an outlier among recent norms.


WARMUP = 25  # updates whose plain mean and variance the averages start from; until then nothing is an outlier
SMALLEST_DEVIATION = 1e-6


class ZClip:
    def __init__(self, device: torch.device, *, threshold: float, alpha: float) -> None:
        self.threshold, self.alpha = threshold, alpha
        self.seen = torch.zeros((), dtype=torch.int64, device=device)  # norms that entered the averages
        self.mean, self.variance = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))

    def bound(self, norm: Tensor) -> Tensor:
        """The largest norm to let through; infinite where this one is no outlier."""
        deviation = self.variance.sqrt()
        z = (norm.double() - self.mean) / (deviation + SMALLEST_DEVIATION)
        is_outlier = (self.seen >= WARMUP) & (z > self.threshold)
        return torch.where(is_outlier, self.mean + self.threshold**2 / z * deviation, torch.inf)

    def update(self, norm: Tensor, applied: Tensor) -> None:
        """Take in the norm of an accepted update. Selected, not multiplied by 0: a NaN would stay forever."""
        value = torch.minimum(norm.double(), self.bound(norm))
        enters = applied & torch.isfinite(norm)
        # In warm-up each of the values weighs the same: the step to a running mean is 1 / (how many there are).
        share = torch.where(self.seen < WARMUP, 1.0 / (self.seen.double() + 1.0), 1.0 - self.alpha)
        difference = value - self.mean
        mean = self.mean + share * difference
        # A running variance is about the old mean and the new one; the average of squares is about the new one.
        square = (value - mean) * torch.where(self.seen < WARMUP, difference, value - mean)
        variance = self.variance + share * (square - self.variance)
        self.mean.copy_(torch.where(enters, mean, self.mean))
        self.variance.copy_(torch.where(enters, variance, self.variance))
        self.seen += enters

    def state_dict(self) -> dict[str, Tensor]:
        return {"seen": self.seen, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.seen.copy_(state["seen"])
        self.mean.copy_(state["mean"])
        self.variance.copy_(state["variance"])


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
