"""`trainbook.fit` with a loss of one's own: a quantile for a delivery time, summed over targets."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
x = torch.rand(3200, 6)
minutes = 1 + 2 * x[:, 0] + x[:, 1] * x[:, 2] + (0.2 + 0.5 * x[:, 3]) * torch.rand(3200)
batches = [(x[start : start + 40], minutes[start : start + 40, None]) for start in range(0, 3200, 40)]
model = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))


def pinball(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    late = batch[1] - model(batch[0])
    return torch.maximum(0.9 * late, -0.1 * late).sum()


trainbook.fit(
    model,
    batches[:64],
    eval_data=batches[64:],
    loss=pinball,
    count_targets=lambda batch: len(batch[0]),
    name="fit-own-loss",
    max_steps=320,
    learning_rate=3e-3,
    eval_steps=40,
    device="cpu",
    quiet=True,
)
