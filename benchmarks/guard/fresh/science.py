"""Equations, graphs, molecules, signals, and models of how data come about."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

functional = nn.functional


def slope_of(values: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(values.sum(), at, create_graph=True)[0]


def energy_distance(made: Tensor, real: Tensor) -> float:
    between = torch.cdist(made, real).mean() * 2
    return float(between - torch.cdist(made, made).mean() - torch.cdist(real, real).mean())


@family("physics-informed network")
def heat_equation(seed: int, door: Door) -> float:
    """The equation's residual at random points, and ten times the errors at the start and at both ends."""
    decay = 0.05 * math.pi**2
    model = mlp(2, 32, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_of(step: int) -> Tensor:
        inside = torch.rand(64, 2).requires_grad_()  # place, time
        first = slope_of(model(inside), inside)
        second = slope_of(first[:, 0], inside)[:, 0]
        place, time = torch.rand(32, 1), torch.rand(32, 1)
        start = model(torch.cat([place, torch.zeros(32, 1)], 1)) - (math.pi * place).sin()
        ends = model(torch.cat([(place > 0.5).float(), time], 1))
        return ((first[:, 1] - 0.05 * second) ** 2).mean() + 10 * (start**2).mean() + 10 * (ends**2).mean()

    run_steps(door, 500, model, optimizer, loss_of, schedule=schedule)
    points = Apart(10_000 + seed).uniform(1000, 2)
    exact = (math.pi * points[:, :1]).sin() * (-decay * points[:, 1:]).exp()
    return measured(model, lambda: functional.mse_loss(model(points), exact))


@family("neural differential equation")
def spiral_as_an_equation(seed: int, door: Door) -> float:
    """Runge-Kutta through a network; the stretch of the path that is predicted grows from 4 steps to 16."""
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    model = mlp(2, 32, 2, activation=nn.Tanh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def path(slope: Callable[[Tensor], Tensor], x: Tensor, length: int, h: float = 0.1) -> Tensor:
        found = []
        for _ in range(length):
            one = slope(x)
            two = slope(x + h / 2 * one)
            three = slope(x + h / 2 * two)
            x = x + h / 6 * (one + 2 * two + 2 * three + slope(x + h * three))
            found.append(x)
        return torch.stack(found)

    def loss_at(x: Tensor, length: int, noise: float) -> Tensor:
        real = path(lambda place: (place**3 / 2) @ turn, x, length)
        return (path(lambda place: model(place**3), x, length) - real - noise * torch.randn_like(real)).abs().mean()

    run_steps(
        *(door, 240, model, optimizer),
        lambda step: loss_at(2 * torch.rand(16, 2) - 1, 4 * (1 + step // 60), 0.02),
    )
    x = 2 * Apart(10_000 + seed).uniform(200, 2) - 1
    return measured(model, lambda: loss_at(x, 16, 0.0))


@family("L-BFGS")
def small_network_by_lbfgs(seed: int, door: Door) -> float:
    """The whole data set in each step, a line search, and a loss without any noise."""
    apart = Apart(seed)
    true, x = apart.normal(20, 4), apart.normal(1500, 20)
    label = (x @ true + 2 * apart.normal(1500, 4)).argmax(1)
    model = mlp(20, 16, 4, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    policy = door("loss", model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        decay = torch.stack([each.pow(2).sum() for each in model.parameters()]).sum()
        loss = functional.cross_entropy(model(x[:1000]), label[:1000]) + 2e-3 * decay
        loss.backward()
        return loss

    for _ in range(150):
        if policy.step(closure(), model.parameters()):
            optimizer.step(closure)
    return measured(model, lambda: functional.cross_entropy(model(x[1000:]), label[1000:]))


@family("graph network")
def papers_that_cite_each_other(seed: int, door: Door) -> float:
    """Two graph convolutions over all nodes in each step; 30 of 300 have a label; dropout is all the noise."""
    apart = Apart(seed)
    topic = apart.integers(5, 300)
    same = (topic[:, None] == topic).float()
    edges = (apart.uniform(300, 300) < 0.004 + 0.046 * same).float().triu(1)
    edges = edges + edges.T + torch.eye(300)
    degree = edges.sum(1).rsqrt()
    spread = degree[:, None] * edges * degree
    words = (apart.uniform(300, 60) < 0.04 + 0.25 * (topic[:, None] == torch.arange(60) % 5)).float()
    words = words / words.sum(1, keepdim=True).clamp(min=1)
    first, second, drop = nn.Linear(60, 16), nn.Linear(16, 5), nn.Dropout(0.5)
    model = nn.ModuleList([first, second, drop])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)

    def loss_at(nodes: slice) -> Tensor:
        hidden = torch.relu(spread @ first(drop(words)))
        return functional.cross_entropy((spread @ second(drop(hidden)))[nodes], topic[nodes])

    run_steps(door, 300, model, optimizer, lambda step: loss_at(slice(0, 30)))
    return measured(model, lambda: loss_at(slice(30, None)))


@family("energies and forces")
def energies_and_forces(seed: int, door: Door) -> float:
    """Four atoms in a plane: at first the forces weigh a hundred times the energy, at the end as much as it."""
    model = mlp(6, 64, 64, 1, activation=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.996)
    one, other = torch.triu_indices(4, 4, 1)
    grid = torch.tensor([[0.0, 0.0], [0.0, 1.2], [1.2, 0.0], [1.2, 1.2]])

    def distances(place: Tensor) -> Tensor:
        return (place[:, one] - place[:, other]).norm(dim=2)

    def real(place: Tensor) -> Tensor:
        return ((1 - (-1.5 * (distances(place) - 1.2)).exp()) ** 2).sum(1)

    def errors(noise: Tensor) -> tuple[Tensor, Tensor]:
        place = (grid + 0.1 * noise).requires_grad_()
        with torch.enable_grad():
            wanted, given = real(place), model(1 / distances(place))[:, 0]
            forces = slope_of(given, place) - slope_of(wanted, place)
        return ((given - wanted) ** 2).mean(), (forces**2).mean()

    def loss_of(step: int) -> Tensor:
        energy, force = errors(torch.randn(16, 4, 2))
        return energy + 100 ** (1 - step / 500) * force

    run_steps(door, 500, model, optimizer, loss_of, schedule=schedule, clip=100.0)
    noise = Apart(10_000 + seed).normal(500, 4, 2)
    return measured(model, lambda: torch.stack(errors(noise)).sum())


@family("implicit picture")
def picture_from_coordinates(seed: int, door: Door) -> float:
    """A network of sines is the picture: 128 random pixels an update; the error falls by orders of magnitude."""
    apart = Apart(seed)
    waves, phases = 6 * apart.normal(8, 2), 6.3 * apart.uniform(8)
    first, second, out = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 1)
    nn.init.uniform_(first.weight, -0.5, 0.5)
    for layer in (second, out):
        nn.init.uniform_(layer.weight, -((6 / 64) ** 0.5) / 10, (6 / 64) ** 0.5 / 10)
    model = nn.ModuleList([first, second, out])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def loss_at(place: Tensor) -> Tensor:
        light = (place @ waves.T + phases).sin().mean(1, keepdim=True)
        return functional.mse_loss(out((10 * second((10 * first(place)).sin())).sin()), light)

    run_steps(door, 600, model, optimizer, lambda step: loss_at(2 * torch.rand(128, 2) - 1))
    place = 2 * Apart(10_000 + seed).uniform(2000, 2) - 1
    return measured(model, lambda: loss_at(place))


def moons(count: int) -> Tensor:
    angle, lower = math.pi * torch.rand(count), (torch.rand(count) < 0.5).float()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    return torch.where(lower[:, None] > 0, torch.tensor([1.0, 0.4]) - upper, upper) + 0.08 * torch.randn(count, 2)


@family("energy-based model")
def energy_by_contrast(seed: int, door: Door) -> float:
    """Data against what Langevin steps make of a buffer. The loss is a difference around zero: it says little."""
    model = mlp(2, 64, 64, 1, activation=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, betas=(0.0, 0.999))
    buffer = 4 * torch.rand(1000, 2) - 2

    def moved(x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x)
            x = x - 0.02 * slope.clamp(-5, 5) + 0.1 * torch.randn_like(x)
        return x.detach()

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(1000, (64,))
        begin = torch.where(torch.rand(64, 1) < 0.05, 4 * torch.rand(64, 2) - 2, buffer[rows])
        buffer[rows] = made = moved(begin, 10)
        real, false = model(moons(64)), model(made)
        return real.mean() - false.mean() + 0.1 * (real**2 + false**2).mean()

    run_steps(door, 280, model, optimizer, loss_of, clip=1.0)
    return energy_distance(moved(4 * torch.rand(800, 2) - 2, 200), moons(800))


@family("flow matching")
def straight_flows(seed: int, door: Door) -> float:
    """The speed from noise to data at a random time: even a perfect model has a loss far above zero."""
    model = mlp(3, 64, 64, 2, activation=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 700)

    def loss_of(step: int) -> Tensor:
        noise, data, time = torch.randn(32, 2), moons(32), torch.randn(32, 1).sigmoid()
        return functional.mse_loss(model(torch.cat([(1 - time) * noise + time * data, time], 1)), data - noise)

    run_steps(door, 700, model, optimizer, loss_of, schedule=schedule)
    with torch.no_grad():
        x = torch.randn(800, 2)
        for step in range(30):
            x = x + model(torch.cat([x, torch.full((800, 1), step / 30)], 1)) / 30
    return energy_distance(x, moons(800))


@family("vector quantization")
def codebook_autoencoder(seed: int, door: Door) -> float:
    """A code of two symbols out of sixteen, straight-through: the commitment grows while the codebook spreads out."""
    apart = Apart(seed)
    centres = 1.5 * apart.normal(12, 16)
    encode, decode = mlp(16, 48, 8), mlp(8, 48, 16)
    codes = nn.Parameter(torch.rand(16, 4) / 8 - 1 / 16)
    model = nn.ModuleList([encode, decode, nn.ParameterList([codes])])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def loss_at(which: Tensor, noise: Tensor) -> Tensor:
        x = centres[which] + 0.3 * noise
        found = encode(x).view(-1, 4)
        chosen = codes[torch.cdist(found, codes).argmin(1)]
        commitment = functional.mse_loss(chosen, found.detach()) + 0.25 * functional.mse_loss(found, chosen.detach())
        through = found + (chosen - found).detach()
        return functional.mse_loss(decode(through.view(-1, 8)), x) + commitment

    run_steps(door, 600, model, optimizer, lambda step: loss_at(torch.randint(12, (32,)), torch.randn(32, 16)))
    apart = Apart(10_000 + seed)
    which, noise = apart.integers(12, 1000), apart.normal(1000, 16)
    return measured(model, lambda: loss_at(which, noise))
