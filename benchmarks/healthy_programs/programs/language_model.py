"""A character model of the source of a module, with a transformer from torch.nn, warm-up and cosine."""

import argparse
import math
from pathlib import Path

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
text = Path(argparse.__file__).read_text(encoding="utf-8")[:90_000]
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
train, valid = data[:80_000], data[80_000:]
context, width = 32, 64


class CharModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(letters), width)
        self.position = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(letters))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def batch(source: torch.Tensor, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, len(source) - context - 1, (size,), generator=generator)
    return (
        torch.stack([source[start : start + context] for start in starts]),
        torch.stack([source[start + 1 : start + context + 1] for start in starts]),
    )


model = CharModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
steps, warmup = 350, 30
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
)
drawing = torch.Generator().manual_seed(1)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    model.eval()
    inputs, targets = batch(valid, 100, torch.Generator().manual_seed(2))
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    model.train()
    return {"loss": loss}


with trainbook.watch(model, optimizer, name="language-model", total_steps=steps) as watch:
    for step in range(1, steps + 1):
        inputs, targets = batch(train, 24, drawing)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        watch.step(loss, batch=(inputs, targets), grad_norm=norm)
        if step % 50 == 0:
            watch.evaluation(evaluate)
