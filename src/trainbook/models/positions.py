"""Positions inside attention: rotary, and T5's relative bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Relative positions as T5 has them: a learned number for each head and distance, added to the attention logits.


NUM_BUCKETS = 32
MAX_DISTANCE = 128


def distance_buckets(distances: Tensor, *, both_ways: bool) -> Tensor:
    """Key position minus query position to a bucket: near ones exactly, far ones on a log scale, the farthest together.

    A reader of both directions spends half of its buckets on what lies ahead; a causal one has nothing there.
    """
    buckets = NUM_BUCKETS
    offset = torch.zeros_like(distances)
    if both_ways:
        buckets //= 2
        offset = (distances > 0).long() * buckets
        distances = distances.abs()
    else:
        distances = -distances.clamp(max=0)
    exact = buckets // 2
    far = torch.log(distances.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (buckets - exact)
    far = (exact + far.long()).clamp(max=buckets - 1)
    return offset + torch.where(distances < exact, distances, far)


class RelativeBias(nn.Embedding):
    """One table for all layers of a stack."""

    def __init__(self, num_heads: int, *, both_ways: bool) -> None:
        super().__init__(NUM_BUCKETS, num_heads)
        self.both_ways = both_ways

    def forward(self, queries: int, keys: int, first_query: int = 0) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(1, H, queries, keys)"""
        device = self.weight.device
        query_positions = torch.arange(first_query, first_query + queries, device=device)[:, None]
        distances = torch.arange(keys, device=device)[None, :] - query_positions
        return super().forward(distance_buckets(distances, both_ways=self.both_ways)).permute(2, 0, 1).unsqueeze(0)


# Rotary positions: each pair of channels turns by an angle that grows with the position.


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
