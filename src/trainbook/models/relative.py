"""Relative positions as T5 has them: a learned number for each head and distance, added to the attention logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

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
