"""Representations from two noisy views of each sample, with InfoNCE."""

import torch
from torch import nn
from torch.nn import functional as F

import trainbook

torch.manual_seed(0)
mixing = torch.randn(6, 32)
train, valid = torch.randn(4000, 6) @ mixing, torch.randn(500, 6) @ mixing

encoder = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 32))
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)


def view(x: torch.Tensor) -> torch.Tensor:
    return (x + torch.randn_like(x)) * (torch.rand_like(x) > 0.1)


def info_nce(x: torch.Tensor, temperature: float = 0.2) -> torch.Tensor:
    one, other = (F.normalize(encoder(view(x)), dim=1) for _ in range(2))
    return F.cross_entropy(one @ other.T / temperature, torch.arange(len(x)))


with trainbook.watch(encoder, optimizer, name="contrastive", total_steps=300) as watch:
    for step in range(1, 301):
        batch = train[torch.randint(0, len(train), (64,))]
        loss = info_nce(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watch.step(loss, batch=batch)
        if step % 50 == 0:
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(7)
                watch.evaluation(loss=info_nce(valid[:64]))
