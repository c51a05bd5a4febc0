"""Four micro-batches to an update, each divided by four."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
x = torch.randn(3000, 12)
y = (torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(3000))[:, None]
model = nn.Sequential(nn.Linear(12, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
micro_batches = 4

with trainbook.watch(
    model, optimizer, name="accumulation", settings={"gradient_accumulation_steps": micro_batches}
) as watch:
    for step in range(1, 301):
        for _ in range(micro_batches):
            rows = torch.randint(0, 2600, (16,))
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            watch.add_loss(loss)
            (loss / micro_batches).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        watch.step(grad_norm=norm)
        if step % 30 == 0:
            with torch.no_grad():
                watch.evaluation(loss=nn.functional.mse_loss(model(x[2600:]), y[2600:]))
