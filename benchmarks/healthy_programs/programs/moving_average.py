"""An exponential moving average of the weights is what is evaluated."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import trainbook

torch.manual_seed(0)
centres = 1.6 * torch.randn(5, 16)
y = torch.randint(0, 5, (3000,))
x = centres[y] + 1.4 * torch.randn(3000, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    average.eval()
    logits = average(x[2500:])
    return {
        "loss": nn.functional.cross_entropy(logits, y[2500:]),
        "accuracy": (logits.argmax(1) == y[2500:]).float().mean(),
    }


with trainbook.watch(model, optimizer, name="moving-average", total_steps=400) as watch:
    for step in range(1, 401):
        rows = torch.randint(0, 2500, (32,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        watch.step(loss, batch=(x[rows], y[rows]))
        if step % 40 == 0:
            watch.evaluation(evaluate)
