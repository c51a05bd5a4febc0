"""A GPT of a few thousand weights in plain PyTorch, and the text that it learns."""

from __future__ import annotations

import inspect
import textwrap

import torch
from torch import Tensor, nn

from guard.family import Apart

VOCABULARY = 96


def text(part: slice = slice(None)) -> Tensor:
    """Printable characters of a module of Python's library: at hand everywhere."""
    codes = [min(max(ord(each) - 31, 0), VOCABULARY - 1) for each in inspect.getsource(textwrap)]
    return torch.tensor(codes)[part]


class CharGPT(nn.Module):
    """Pre-norm blocks, learned positions."""

    def __init__(self, width: int, layers: int, length: int, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(width),
                    nn.Linear(width, 3 * width),
                    nn.Linear(width, width),
                    nn.LayerNorm(width),
                    nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
                ]
            )
            for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.05)

    def forward(self, symbols: Tensor) -> Tensor:
        rows, length = symbols.shape
        x = self.tokens(symbols) + self.places(torch.arange(length))
        for before, qkv, mix, between, feed in self.blocks:  # type: ignore[misc]
            parts = qkv(before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.dropout(mix(mixed.transpose(1, 2).reshape(rows, length, -1)))
            x = x + self.dropout(feed(between(x)))
        return self.out(self.norm(x))


def windows(stream: Tensor, count: int, length: int, apart: Apart | None = None) -> Tensor:
    """Rows of length + 1 from random places."""
    places = apart.integers(len(stream) - length, count) if apart else torch.randint(len(stream) - length, (count,))
    return stream[places[:, None] + torch.arange(length + 1)]


def text_loss(model: nn.Module, rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
