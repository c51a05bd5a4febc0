"""What others do about spikes, each from its paper with the defaults that it recommends.

All of them skip an update whose loss or gradient is not finite, as loss scaling does: none of the papers speaks of it,
and without it one NaN would end every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ZClip:
    """Kumar and others 2025, https://arxiv.org/abs/2504.02507: a gradient norm whose z-score is above 2.5 is clipped to
    mean + 2.5 / z of 2.5 standard deviations; both are exponential averages that take the clipped norm in."""

    alpha, z_threshold, warmup = 0.97, 2.5, 25
    epsilon = 1e-6

    def __init__(self) -> None:
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def __call__(self, loss: Tensor, norm: Tensor, gradients: list[Tensor], ids: Any) -> bool:
        value = float(norm)
        if not (math.isfinite(value) and math.isfinite(float(loss))):
            return False
        if len(self.first) < self.warmup:
            self.first.append(value)
            self.mean = sum(self.first) / len(self.first)
            self.variance = sum((each - self.mean) ** 2 for each in self.first) / len(self.first)
            return True
        deviation = math.sqrt(self.variance)
        z = (value - self.mean) / (deviation + self.epsilon)
        if z > self.z_threshold:
            clipped = self.mean + self.z_threshold * deviation / (z / self.z_threshold)
            torch._foreach_mul_(gradients, clipped / value)
            value = clipped
        self.mean = self.alpha * self.mean + (1 - self.alpha) * value
        self.variance = self.alpha * self.variance + (1 - self.alpha) * (value - self.mean) ** 2
        return True


class AdaGC:
    """Wang and others 2025, https://arxiv.org/abs/2502.11034: each tensor's gradient is clipped to 1.05 times an
    exponential average (0.98) of its clipped norms; for the first 100 steps all are clipped together to norm 1, and the
    average is the least norm so far."""

    absolute, relative, beta, start = 1.0, 1.05, 0.98, 100

    def __init__(self) -> None:
        self.step = 0
        self.usual: dict[int, float] = {}

    def __call__(self, loss: Tensor, norm: Tensor, gradients: list[Tensor], ids: Any) -> bool:
        if not (math.isfinite(float(norm)) and math.isfinite(float(loss))):
            return False
        self.step += 1
        if self.step <= self.start:
            torch._foreach_mul_(gradients, min(self.absolute / max(float(norm), 1e-12), 1.0))
        own = [float(each) for each in torch._foreach_norm(gradients)]
        for place, (gradient, value) in enumerate(zip(gradients, own, strict=True)):
            usual = self.usual.get(place)
            if usual is None:
                self.usual[place] = min(value, self.absolute)
            elif self.step <= self.start:
                self.usual[place] = min(usual, value)
            else:
                if value > self.relative * usual:
                    gradient.mul_(self.relative * usual / value)
                    value = self.relative * usual
                self.usual[place] = self.beta * usual + (1 - self.beta) * value
        return True


class FixedThreshold:
    """A loss above mean + 3 standard deviations, exponential averages of all losses: the rule that people write
    themselves."""

    alpha, deviations, warmup = 0.99, 3.0, 25

    def __init__(self) -> None:
        self.seen = 0
        self.mean = self.variance = 0.0

    def __call__(self, loss: Tensor, norm: Tensor, gradients: list[Tensor], ids: Any) -> bool:
        value = float(loss)
        if not (math.isfinite(value) and math.isfinite(float(norm))):
            return False
        self.seen += 1
        is_far = self.seen > self.warmup and value > self.mean + self.deviations * math.sqrt(self.variance)
        weight = max(1 / self.seen, 1 - self.alpha)
        step = weight * (value - self.mean)
        self.mean += step
        self.variance = (1 - weight) * (self.variance + step * (value - self.mean + step))
        return not is_far


RIVALS: dict[str, Callable[[], Any]] = {"zclip": ZClip, "adagc": AdaGC, "fixed": FixedThreshold}
