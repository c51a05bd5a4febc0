"""Two samples fit into memory: a small learning rate, group norm, and the guard beside the record."""

import torch
from torch import nn

import trainbook

torch.manual_seed(0)
x = torch.randn(1200, 1, 10, 10)
y = (x[:, 0, :5].mean((1, 2)) > x[:, 0, 5:].mean((1, 2))).long()
x[torch.arange(1200), 0, 5 * (1 - y)] += 1.0
train_x, train_y, valid_x, valid_y = x[:1000], y[:1000], x[1000:], y[1000:]
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(5),
    nn.Flatten(),
    nn.Linear(200, 2),
)
optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
guard = trainbook.Guard(model, optimizer, shuffled=True)


@torch.no_grad()
def evaluate() -> dict[str, torch.Tensor]:
    logits = model(valid_x)
    return {
        "loss": nn.functional.cross_entropy(logits, valid_y),
        "accuracy": (logits.argmax(1) == valid_y).float().mean(),
    }


with trainbook.watch(model, optimizer, name="tiny-batch", settings={"batch_size": 2}) as watch:
    for _epoch in range(2):
        for number, rows in enumerate(torch.randperm(1000).split(2), 1):
            loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            if guard.accepts(loss, norm):
                optimizer.step()
            watch.step(loss, batch=(train_x[rows], train_y[rows]), grad_norm=norm)
            if number % 125 == 0:
                guard.end_trial()
                watch.evaluation(evaluate)
