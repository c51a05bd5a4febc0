"""Rotary positions: each pair of channels turns by an angle that grows with the position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rotation:
    """How fast each pair of channels turns: by theta alone, or slowed down for longer texts."""

    theta: float = 10000.0
    scaling: str = "none"  # none | linear | llama3 | yarn
    factor: float = 1.0
    original_positions: int = 0  # llama3, yarn: the length before scaling
    low_frequency: float = 1.0  # llama3: turns over that length, below which a pair is slowed down in full
    high_frequency: float = 4.0  # llama3: above which it stays as it is
    beta_fast: float = 32.0  # yarn: the same two, the other way round
    beta_slow: float = 1.0
    attention_factor: float | None = None  # yarn: of turned queries and keys; None: 0.1 ln(factor) + 1

    def frequencies(self, head_width: int) -> Tensor:
        """Angles per position, in fp64."""
        plain = self.theta ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
        slowed = plain / self.factor
        if self.scaling == "none":
            return plain
        if self.scaling == "linear":
            return slowed
        kept = self._kept_by_llama3(plain) if self.scaling == "llama3" else self._kept_by_yarn(head_width)
        return slowed * (1 - kept) + plain * kept

    def _kept_by_llama3(self, plain: Tensor) -> Tensor:
        """The share of its own frequency that a pair keeps, by its turns over the original length."""
        turns = self.original_positions * plain / (2 * math.pi)
        return ((turns - self.low_frequency) / (self.high_frequency - self.low_frequency)).clamp(0, 1)

    def _kept_by_yarn(self, head_width: int) -> Tensor:
        """The same by the number of the pair, between those that turn beta_fast and beta_slow times."""

        def pair_with(turns: float) -> float:
            per_turn = math.log(self.original_positions / (turns * 2 * math.pi))
            return head_width * per_turn / (2 * math.log(self.theta))

        first = max(math.floor(pair_with(self.beta_fast)), 0)
        last = min(math.ceil(pair_with(self.beta_slow)), head_width - 1)
        width = (last - first) or 0.001  # as in transformers
        return 1 - ((torch.arange(head_width // 2, dtype=torch.float64) - first) / width).clamp(0, 1)

    @property
    def magnitude(self) -> float:
        """What turned queries and keys are multiplied by."""
        if self.scaling != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor


PLAIN_ROTATION = Rotation()


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, max_seq_length: int, rotation: Rotation) -> None:
        super().__init__()
        self.head_width, self.max_seq_length, self.rotation = head_width, max_seq_length, rotation
        # Not saved: computed from the shape, so also after a model was built on the meta device.
        self.register_buffer("cos", torch.empty(max_seq_length, head_width // 2), persistent=False)
        self.register_buffer("sin", torch.empty(max_seq_length, head_width // 2), persistent=False)
        self.fill_tables()

    def fill_tables(self) -> None:
        positions = torch.arange(self.max_seq_length, dtype=torch.float64)
        angles = torch.outer(positions, self.rotation.frequencies(self.head_width))
        # Assigned, not copied: the tables stay fp32 when the weights are kept in another type.
        self.cos = (angles.cos() * self.rotation.magnitude).float().to(self.cos.device)
        self.sin = (angles.sin() * self.rotation.magnitude).float().to(self.sin.device)

    def forward(self, x_BHLW: Tensor, first_position: int) -> Tensor:
        end = first_position + x_BHLW.shape[2]
        cos, sin = self.cos[first_position:end], self.sin[first_position:end]
        left, right = x_BHLW.float().chunk(2, dim=-1)  # in fp32: angles at far positions need the bits
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(x_BHLW.dtype)
