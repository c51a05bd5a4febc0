"""Learning rates that move by design, or are high and still stable."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.development.classification import CLASSES, WIDTH, blobs, entropy
from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps


@family("warm restarts")
def cosine_with_restarts(seed: int, door: Door) -> float:
    """Every 150 steps the learning rate is back at its highest: the loss jumps up and comes down further."""
    x, y = blobs(seed, 400, spread=1.2, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=1.2, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 64, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 150, eta_min=1e-4)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (64,))
        return entropy(model(x[rows]), y[rows], label_smoothing=0.1)

    run_steps(door, 600, model, optimizer, loss_of, schedule=schedule)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("step decay")
def step_decay(seed: int, door: Door) -> float:
    """A tenth of the learning rate at step 250: the loss drops within a few steps, and so does its noise."""
    true = Apart(seed).normal(12, 1)
    model = mlp(12, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    schedule = lr_scheduler.MultiStepLR(optimizer, [250, 450])

    def loss_of(step: int) -> Tensor:
        x = torch.randn(8, 12)
        return nn.functional.mse_loss(model(x), torch.tanh(x @ true) + 0.1 * torch.randn(8, 1))

    run_steps(door, 600, model, optimizer, loss_of, schedule=schedule, clip=1.0)
    x = Apart(10_000 + seed).normal(1024, 12)
    return measured(model, lambda: nn.functional.mse_loss(model(x), torch.tanh(x @ true)))


@family("one-cycle")
def one_cycle(seed: int, door: Door) -> float:
    """Warm-up to a learning rate at which the loss rises for a while, then down to nothing."""
    x, y = blobs(seed, 2000, spread=1.0, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=1.0, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 64, 64, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.6, total_steps=520)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (32,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 500, model, optimizer, loss_of, schedule=schedule, clip=2.0)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("edge of stability")
def edge_of_stability(seed: int, door: Door) -> float:
    """All data in each step: no noise, but at a high learning rate the loss goes up and down as it falls."""
    apart = Apart(20_000 + seed)
    x = apart.normal(96, 5)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    model = mlp(5, 40, 40, 1, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), 0.12)
    run_steps(door, 700, model, optimizer, lambda step: nn.functional.mse_loss(model(x), y))
    return measured(model, lambda: nn.functional.mse_loss(model(x), y))


@family("fine-tuning")
def finetune_low_rate(seed: int, door: Door) -> float:
    """A trained network goes on at a low learning rate, on batches of 4: there is next to nothing left to learn."""
    x, y = blobs(seed, 3000, spread=0.9, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=0.9, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 48, CLASSES)
    before = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        before.zero_grad()
        rows = torch.randint(len(x), (128,))
        entropy(model(x[rows]), y[rows]).backward()
        before.step()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (4,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 500, model, optimizer, loss_of, clip=1.0)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("fine-tuning")
def head_first_then_all(seed: int, door: Door) -> float:
    """The body is frozen for 250 steps; then it is trained too, and the gradient norm is another one."""
    x, y = blobs(seed, 3000, spread=0.9, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=0.9, apart=Apart(30_000 + seed))
    body, head = mlp(WIDTH, 64, 64), nn.Linear(64, CLASSES)
    model = nn.Sequential(body, nn.ReLU(), head)
    body.requires_grad_(False)
    optimizer = torch.optim.Adam(
        [{"params": list(body.parameters()), "lr": 1e-3}, {"params": list(head.parameters()), "lr": 3e-3}]
    )

    def loss_of(step: int) -> Tensor:
        if step == 250:
            body.requires_grad_(True)
        rows = torch.randint(len(x), (16,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 500, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))
