"""Training that is healthy and looks odd: catapults, sudden drops, alternation, noise in the network, loss scaling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

entropy = nn.functional.cross_entropy


@family("catapult")
def catapult(seed: int, door: Door) -> float:
    """A learning rate above the curvature's limit: the loss rises for some steps, and then settles where it is flat."""
    apart = Apart(seed)
    x, y = apart.normal(40, 10), 0.5 * apart.normal(40, 1)
    width = 256
    inner = nn.Parameter(torch.randn(10, width))
    outer = nn.Parameter(torch.randn(width, 1))
    model = nn.ParameterList([inner, outer])
    curvature = float(torch.linalg.eigvalsh(x @ x.T)[-1]) / 40 * 2 * 2
    optimizer = torch.optim.SGD(model.parameters(), 2.6 / curvature)

    def loss_of(step: int) -> Tensor:
        return nn.functional.mse_loss(x @ inner @ outer / width**0.5, y)

    run_steps(door, 400, model, optimizer, loss_of)
    return measured(model, lambda: loss_of(0))


@family("memorising with weight decay")
def modular_addition(seed: int, door: Door) -> float:
    """All samples in each step, strong weight decay: the loss falls by four orders of magnitude, and norms with it."""
    prime = 11
    pairs = torch.cartesian_prod(torch.arange(prime), torch.arange(prime))
    train = pairs[torch.argsort(Apart(seed).uniform(len(pairs)))[:96]]
    embed, net = nn.Embedding(prime, 24), mlp(48, 96, prime)
    model = nn.ModuleList([embed, net])
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.3, betas=(0.9, 0.98))

    def loss_at(rows: Tensor) -> Tensor:
        return entropy(net(embed(rows).flatten(1)), rows.sum(1) % prime)

    run_steps(door, 600, model, optimizer, lambda step: loss_at(train))
    return measured(model, lambda: loss_at(train))


@family("plateau, then a drop")
def parity_of_three_bits(seed: int, door: Door) -> float:
    """Nothing is learned for some hundred steps, and then everything at once."""
    model = mlp(12, 96, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.15, momentum=0.9)

    def loss_at(bits: Tensor) -> Tensor:
        signs = bits.float() * 2 - 1
        return nn.functional.softplus(-model(signs)[:, 0] * signs[:, :3].prod(1)).mean()

    run_steps(door, 700, model, optimizer, lambda step: loss_at(torch.randint(2, (32, 12))), clip=1.0)
    bits = Apart(10_000 + seed).integers(2, 1000, 12)
    return measured(model, lambda: loss_at(bits))


@family("batch norm and dropout")
def small_images(seed: int, door: Door) -> float:
    """Convolutions, batch norm, half of the features dropped, shifted images, batches of 8."""
    shapes = Apart(seed).normal(6, 1, 8, 8)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.5), nn.Linear(256, 6)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)

    def loss_at(label: Tensor, shift: int, noise: Tensor) -> Tensor:
        return entropy(model(shapes[label].roll(shift, 3) + 1.5 * noise), label)

    def loss_of(step: int) -> Tensor:
        return loss_at(torch.randint(6, (8,)), step % 3 - 1, torch.randn(8, 1, 8, 8))

    run_steps(door, 400, model, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    label, noise = apart.integers(6, 600), apart.normal(600, 1, 8, 8)
    return measured(model, lambda: loss_at(label, 0, noise))


@family("alternation")
def expectation_maximization(seed: int, door: Door) -> float:
    """Responsibilities are recomputed every 40 steps, and the weights are trained for them in between."""
    apart = Apart(seed)
    maps, source = apart.normal(3, 6, 1) * 2, apart.integers(3, 1200)
    x = apart.normal(1200, 6)
    y = torch.einsum("nd,ndo->no", x, maps[source])[:, 0] + 0.2 * apart.normal(1200)
    model = nn.Linear(6, 3)
    nn.init.normal_(model.weight)
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    weights = torch.full((1200, 3), 1 / 3)

    def loss_of(step: int) -> Tensor:
        if step % 40 == 0:
            with torch.no_grad():
                weights.copy_((-((model(x) - y[:, None]) ** 2)).softmax(1))
        rows = torch.randint(1200, (16,))
        return (weights[rows] * (model(x[rows]) - y[rows, None]) ** 2).sum(1).mean()

    run_steps(door, 600, model, optimizer, loss_of)
    return measured(model, lambda: ((model(x) - y[:, None]) ** 2).amin(1).mean())


@family("cyclic learning rate")
def triangular_cycles(seed: int, door: Door) -> float:
    """Up and down between two learning rates, five times, and the loss with them. Counts; the loss goes below zero."""
    true = Apart(seed).normal(6, 1) * 0.4
    model = mlp(6, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    schedule = lr_scheduler.CyclicLR(optimizer, 1e-3, 0.05, step_size_up=60)

    def loss_at(x: Tensor) -> Tensor:
        return nn.functional.poisson_nll_loss(model(x), torch.poisson((x @ true + 1).exp()))

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.randn(8, 6)), schedule=schedule, clip=2.0)
    return measured(model, lambda: loss_at(torch.randn(4000, 6)))


@family("sum of losses")
def auxiliary_losses_switched_on(seed: int, door: Door) -> float:
    """A second loss joins at step 200 and a third, ten times as large, at 400: the sum jumps and is learned down."""
    apart = Apart(seed)
    maps = apart.normal(3, 8, 2)
    body, heads = mlp(8, 48, 24), nn.ModuleList(nn.Linear(24, 2) for _ in range(3))
    model = nn.ModuleList([body, heads])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scales = (1.0, 1.0, 10.0)

    def loss_at(x: Tensor, count: int) -> Tensor:
        hidden = torch.relu(body(x))
        return torch.stack(
            [scales[n] * ((heads[n](hidden) - torch.tanh(x @ maps[n])) ** 2).mean() for n in range(count)]
        ).sum()

    run_steps(door, 650, model, optimizer, lambda step: loss_at(torch.randn(16, 8), min(3, 1 + step // 200)), clip=5.0)
    x = Apart(10_000 + seed).normal(1000, 8)
    return measured(model, lambda: loss_at(x, 3))


@family("adversarial training")
def adversarial_from_step_250(seed: int, door: Door) -> float:
    """Inputs are moved against the model from step 250 on: the loss doubles for good, and that is wanted."""
    centres = Apart(seed).normal(5, 10)
    model = mlp(10, 48, 5)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        label = torch.randint(5, (16,))
        x = centres[label] + 0.6 * torch.randn(16, 10)
        if step >= 250:
            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(entropy(model(x), label), x)
            x = (x + 0.5 * slope.sign()).detach()
        return entropy(model(x), label)

    run_steps(door, 550, model, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    label = apart.integers(5, 1000)
    x = centres[label] + 0.6 * apart.normal(1000, 10)
    return measured(model, lambda: entropy(model(x), label))


@family("heavy tails")
def insurance_claims_b1(seed: int, door: Door) -> float:
    """Targets are exponentials of exponentials: one sample in hundreds costs more than all others together."""
    true = Apart(seed).normal(6, 1) * 0.3
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(1, 6)
        y = (x @ true) + torch.distributions.Exponential(1.5).sample((1, 1)).exp()
        return nn.functional.mse_loss(model(x), y)

    run_steps(door, 600, model, optimizer, loss_of, clip=1.0)
    x = Apart(10_000 + seed).normal(1000, 6)
    return measured(model, lambda: ((model(x) - x @ true) ** 2).mean())
