"""One trunk, a classification head and a regression head, a weighted sum of two losses."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import trainbook

torch.manual_seed(0)
x = torch.randn(2400, 16)
kind = ((x[:, :4] * x[:, 4:8]).sum(1) + x[:, 8] > 0).long()
size = (x[:, 9:12].sum(1) + 0.2 * torch.randn(2400)) / 1.75
train = DataLoader(TensorDataset(x[:2000], kind[:2000], size[:2000]), batch_size=40, shuffle=True)
valid = x[2000:], kind[2000:], size[2000:]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 96), nn.GELU(), nn.Linear(96, 64), nn.GELU())
        self.kind, self.size = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x)
        return self.kind(hidden), self.size(hidden).squeeze(-1)


def losses(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    x, kind, size = batch
    logits, guess = model(x)
    return F.cross_entropy(logits, kind) + 0.5 * F.smooth_l1_loss(guess, size), logits


model = TwoHeads()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    model.eval()
    loss, logits = losses(model, valid)
    model.train()
    return {"loss": loss, "accuracy": (logits.argmax(1) == valid[1]).float().mean()}


with trainbook.watch(model, optimizer, name="multi-task") as watch:
    for _epoch in range(7):
        for batch in train:
            loss, _ = losses(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss, batch=batch)
        watch.evaluation(evaluate)
