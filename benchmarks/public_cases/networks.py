"""A small transformer whose parts can be broken one at a time, in the ways that DEFault++ breaks pretrained ones."""

from __future__ import annotations

import torch
from strangers.data.tokens import PAD
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        gamma = 0.05 if self.fault == "gamma" else 1.0
        x = self._joined(x, self._attention(gamma * self.norms[0](x), shown))
        return self._joined(x, self._feed(gamma * self.norms[1](x)))

    def _joined(self, x: Tensor, branch: Tensor) -> Tensor:
        return branch if self.fault == "residual-drop" else x + branch

    def _attention(self, x: Tensor, shown: Tensor) -> Tensor:
        rows, length, width = x.shape

        def by_head(part: nn.Linear) -> Tensor:
            return part(x).view(rows, length, self.heads, -1).transpose(1, 2)

        q, k, v = by_head(self.query), by_head(self.key), by_head(self.value)
        if self.fault == "zero-query":
            q = 0 * q
        if self.fault == "tied-heads":
            q, k, v = (each[:, :1].expand_as(each) for each in (q, k, v))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        if self.fault == "score-scale":
            scores = 10 * scores
        weights = scores.masked_fill(~shown, float("-inf")).softmax(-1)
        if self.fault == "kernel-dropout":
            weights = F.dropout(weights, 0.3, training=True)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))

    def _feed(self, x: Tensor) -> Tensor:
        hidden = self.up(x).relu()
        if self.fault == "neuron-drop":
            kept = torch.arange(hidden.shape[-1]) % 5 >= 2  # two of five are gone
            hidden = hidden * kept
        return self.down(hidden)


class Transformer(nn.Module):
    """Causal with an answer at each place, or with one answer for the whole text, from its first place."""

    def __init__(
        self,
        vocab: int,
        outputs: int,
        *,
        causal: bool,
        each: bool = True,
        fault: str = "",
        width: int = 32,
        depth: int = 2,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.causal, self.fault = causal, fault
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.1 * torch.randn(64, width))
        self.blocks = nn.ModuleList([Block(width, heads, fault) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.pooler = None if each else nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden = self._embedded(input_ids)
        shown = self._shown(input_ids, input_ids != PAD if attention_mask is None else attention_mask.bool())
        for block in self.blocks:
            hidden = block(hidden, shown)
        hidden = self.norm(hidden)
        if self.pooler is not None:
            hidden = self.pooler(hidden[:, 0]).tanh()
            if self.fault == "pooler-zero":
                hidden = 0 * hidden
        logits = self.head(hidden)
        if self.fault == "output-rows":
            dropped = torch.arange(logits.shape[-1]) % 5 == 0
            logits = logits.masked_fill(dropped, -5.0)
        return logits

    def _embedded(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        if self.fault == "embedding-zero":
            hidden = hidden * (x % 4 != 0)[..., None]  # one of four tokens
        if self.fault == "positions-missing":
            return hidden
        return hidden + self.positions[: x.shape[1]]

    def _shown(self, x: Tensor, is_token: Tensor) -> Tensor:
        """(B or 1, 1, L, L): which places each place may look at."""
        length = x.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        if not self.causal:
            if self.fault == "variant-causal":
                return earlier[None, None]
            if self.fault == "padding-shown":
                return torch.ones_like(earlier)[None, None]
            return is_token[:, None, None, :] | torch.eye(length, dtype=torch.bool)
        if self.fault == "mask-broken":
            later = torch.rand(length, length, generator=torch.Generator().manual_seed(1)) < 0.5
            return (earlier | later)[None, None]
        if self.fault == "mask-over":
            return torch.eye(length, dtype=torch.bool)[None, None]
        return earlier[None, None]
