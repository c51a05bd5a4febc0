"""Rotary positions: each pair of channels turns by an angle that grows with the position."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, max_seq_length: int, theta: float) -> None:
        super().__init__()
        self.head_width, self.max_seq_length, self.theta = head_width, max_seq_length, theta
        # Not saved: computed from the shape, so also after a model was built on the meta device.
        self.register_buffer("cos", torch.empty(max_seq_length, head_width // 2), persistent=False)
        self.register_buffer("sin", torch.empty(max_seq_length, head_width // 2), persistent=False)
        self.fill_tables()

    def fill_tables(self) -> None:
        frequencies = self.theta ** -(torch.arange(0, self.head_width, 2, dtype=torch.float64) / self.head_width)
        angles = torch.outer(torch.arange(self.max_seq_length, dtype=torch.float64), frequencies)
        # Assigned, not copied: the tables stay fp32 when the weights are kept in another type.
        self.cos = angles.cos().float().to(self.cos.device)
        self.sin = angles.sin().float().to(self.sin.device)

    def forward(self, x_BHLW: Tensor, first_position: int) -> Tensor:
        end = first_position + x_BHLW.shape[2]
        cos, sin = self.cos[first_position:end], self.sin[first_position:end]
        left, right = x_BHLW.float().chunk(2, dim=-1)  # in fp32: angles at far positions need the bits
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(x_BHLW.dtype)
