"""Cosine with warm restarts: the learning rate jumps up three times, and the loss with it."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
x = torch.randn(2400, 2)
y = ((3 * x[:, 0]).sin() > x[:, 1]).long()
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=100, eta_min=1e-4)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    logits = model(x[2000:])
    return {
        "loss": nn.functional.cross_entropy(logits, y[2000:]),
        "accuracy": (logits.argmax(1) == y[2000:]).float().mean(),
    }


with trainbook.watch(model, optimizer, name="warm-restarts", total_steps=400) as watch:
    for step in range(1, 401):
        rows = torch.randint(0, 2000, (40,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watch.step(loss, batch=(x[rows], y[rows]))
        if step % 25 == 0:
            watch.evaluation(evaluate)
