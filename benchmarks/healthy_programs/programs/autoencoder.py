"""A denoising autoencoder of waves."""

import math

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
times = torch.linspace(0, 2 * math.pi, 40)
waves = torch.sin(torch.randint(1, 4, (2500, 1)) * times + 2 * math.pi * torch.rand(2500, 1))
train, valid = waves[:2200], waves[2200:]
model = nn.Sequential(
    nn.Linear(40, 48), nn.ELU(), nn.Linear(48, 6), nn.ELU(), nn.Linear(6, 48), nn.ELU(), nn.Linear(48, 40)
)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
noise = 0.2 * torch.randn_like(valid)

with trainbook.watch(model, optimizer, name="autoencoder") as watch:
    for _epoch in range(10):
        for rows in torch.randperm(len(train)).split(44):
            clean = train[rows]
            loss = nn.functional.mse_loss(model(clean + 0.2 * torch.randn_like(clean)), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss, batch=clean)
        with torch.no_grad():
            watch.evaluation(loss=nn.functional.mse_loss(model(valid + noise), valid))
