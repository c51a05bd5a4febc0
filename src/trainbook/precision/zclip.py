"""ZClip (arXiv 2504.02507): gradients are bounded where their norm is an outlier among recent norms.

The mean and the variance of the norm are exponential averages. A norm more than `threshold` deviations above the mean
is cut to mean + threshold^2 / z x deviation, z being how many deviations it is: the more extreme, the closer to the
mean. The averages take in what was let through; `max_grad_norm`, applied beside it, does not count there, else norms
that it always bounds would look alike and each real one like an outlier.

All of it on the device: an update never waits to learn whether it was clipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        """Take in the norm of an update, unless that was rejected: selected, for a NaN would stay for ever."""
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
