"""Small networks as people write them themselves. Each maps a batch of inputs to outputs, one row for each target."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from strangers.data.tokens import PAD

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU}


class MLP(nn.Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int = 64,
        depth: int = 2,
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "",
        mean: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale  # of the targets
        layers: list[nn.Module] = []
        for number in range(depth):
            layers.append(nn.Linear(width if number else inputs, width))
            if norm:
                layers.append(nn.BatchNorm1d(width) if norm == "batch" else nn.LayerNorm(width))
            layers += [ACTIVATIONS[activation](), nn.Dropout(dropout)]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.mean + self.scale * self.head(self.trunk(x.flatten(1)))


class ConvNet(nn.Module):
    def __init__(
        self, outputs: int, width: int = 16, norm: str = "batch", dropout: float = 0.0, activation: str = "relu"
    ) -> None:
        super().__init__()

        def block(inputs: int, channels: int) -> list[nn.Module]:
            norms = [nn.BatchNorm2d(channels)] if norm else []
            return [nn.Conv2d(inputs, channels, 3, padding=1), *norms, ACTIVATIONS[activation]()]

        self.trunk = nn.Sequential(
            *block(1, width),
            nn.MaxPool2d(2),
            *block(width, 2 * width),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(8 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class Recurrent(nn.Module):
    """An LSTM or GRU over tokens or numbers; answers once, or at each place."""

    def __init__(
        self,
        outputs: int,
        width: int = 48,
        kind: str = "gru",
        vocab: int = 0,
        each: bool = False,
        dropout: float = 0.0,
        depth: int = 1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width) if vocab else nn.Linear(1, width)
        self.trunk = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind](width, width, depth, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        states = self.dropout(self.trunk(self.dropout(self.embedding(x)))[0])
        return self.head(states if self.each else states[:, -1])


class Bag(nn.Module):
    """The mean of the tokens' embeddings, and layers above it."""

    def __init__(self, outputs: int, vocab: int, width: int = 48, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=PAD)
        self.trunk = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.embedding(x).mean(1)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, is_post: bool) -> None:
        super().__init__()
        self.heads, self.is_post = heads, is_post
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor, is_causal: bool) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(rows, length, width)))

    def forward(self, x: Tensor, is_causal: bool) -> Tensor:
        if self.is_post:
            x = self.norms[0](x + self.attend(x, is_causal))
            return self.norms[1](x + self.dropout(self.feed(x)))
        x = x + self.attend(self.norms[0](x), is_causal)
        return x + self.dropout(self.feed(self.norms[1](x)))


class Encoder(nn.Module):
    """A transformer over tokens: causal with an answer at each place, or with one answer from the mean."""

    def __init__(
        self,
        outputs: int,
        vocab: int,
        width: int = 32,
        depth: int = 2,
        heads: int = 2,
        each: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
        longest: int = 128,
        post: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.1 * torch.randn(longest, width))
        self.dropout = nn.Dropout(dropout)
        self.trunk = nn.ModuleList([Block(width, heads, dropout, post) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.each, self.causal = each, causal

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.embedding(x) + self.positions[: x.shape[1]])
        for block in self.trunk:
            hidden = block(hidden, self.causal)
        hidden = self.norm(hidden)
        return self.head(hidden if self.each else hidden.mean(1))


class Factors(nn.Module):
    """Two embeddings and their product."""

    def __init__(self, entries: int, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(entries, width)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(math.sqrt(width)) / 1.5)
        self.head = nn.Linear(width, 1)
        nn.init.ones_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        pair = self.embedding(x)
        return self.head(pair[:, 0] * pair[:, 1])


class ForTrainbook(nn.Module):
    """One of these networks, called as Trainbook calls a model of the user's own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.network(input_ids)
