"""Regression at batches of 1 to 64, with Gaussian noise and with heavy tails; a loss that goes to zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, Family, family, measured, mlp, run_steps

Noise = Callable[[Tensor], Tensor]  # like a tensor


def gaussian(like: Tensor) -> Tensor:
    return torch.randn_like(like)


def student(like: Tensor, freedom: float) -> Tensor:
    """Student's t, without sampling from a distribution object for each batch."""
    chi = torch._standard_gamma(torch.full_like(like, freedom / 2)) * 2
    return torch.randn_like(like) / (chi / freedom).sqrt()


def outliers(like: Tensor, share: float, size: float) -> Tensor:
    return torch.randn_like(like) * torch.where(torch.rand_like(like) < share, size, 1.0)


def linear(seed: int, door: Door, *, batch: int, noise: Noise, steps: int = 600, clip: float | None = None) -> float:
    """One linear layer, the first thing that anybody tries."""
    true = Apart(seed).normal(8, 1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2 if clip else 1e-3)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(batch, 8)
        y = x @ true
        return nn.functional.mse_loss(model(x), y + noise(y))

    run_steps(door, steps, model, optimizer, loss_of, clip=clip)
    x = Apart(10_000 + seed).normal(1024, 8)
    return measured(model, lambda: nn.functional.mse_loss(model(x), x @ true))


def curved(seed: int, door: Door, *, batch: int, noise: Noise, loss: type[nn.Module] = nn.MSELoss) -> float:
    """A small network on a curved function, with SGD and momentum."""
    directions = Apart(seed).normal(8, 3)
    function = lambda x: torch.sin(x @ directions).sum(1, keepdim=True)  # noqa: E731
    model, criterion = mlp(8, 32, 1, activation=nn.Tanh), loss()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(batch, 8)
        y = function(x)
        return criterion(model(x), y + 0.5 * noise(y))

    run_steps(door, 500, model, optimizer, loss_of, clip=5.0)
    x = Apart(10_000 + seed).normal(1024, 8)
    return measured(model, lambda: nn.functional.mse_loss(model(x), function(x)))


ALL = [
    *(
        Family(f"regression-gaussian-b{batch}", "regression", partial(linear, batch=batch, noise=gaussian))
        for batch in (1, 2, 4, 16, 64)
    ),
    Family(
        "regression-outliers-b1",
        "regression with heavy tails",
        partial(linear, batch=1, noise=partial(outliers, share=0.01, size=30.0)),
    ),
    Family(
        "regression-student3-b4",
        "regression with heavy tails",
        partial(linear, batch=4, noise=partial(student, freedom=3.0)),
    ),
    Family(
        "regression-cauchy-clipped-b16",
        "regression with heavy tails",
        partial(linear, batch=16, noise=partial(student, freedom=1.2), clip=1.0),
    ),
    Family("curved-gaussian-b16", "regression", partial(curved, batch=16, noise=gaussian)),
    Family(
        "curved-huber-student2-b2",
        "regression with heavy tails",
        partial(curved, batch=2, noise=partial(student, freedom=2.0), loss=nn.SmoothL1Loss),
    ),
]


@family("loss near zero")
def memorised_to_zero(seed: int, door: Door) -> float:
    """32 samples without noise, learned until the loss is a millionth of the first one."""
    apart = Apart(seed)
    x, y = apart.normal(32, 6), apart.normal(32, 1)
    model = mlp(6, 128, 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(32, (8,))
        return nn.functional.mse_loss(model(x[rows]), y[rows])

    run_steps(door, 800, model, optimizer, loss_of)
    return measured(model, lambda: nn.functional.mse_loss(model(x), y))


@family("negative loss")
def gaussian_density(seed: int, door: Door) -> float:
    """The negative log-likelihood of a predicted mean and scale: it begins above zero and ends far below."""
    true = Apart(seed).normal(6, 1)
    model = mlp(6, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def nll(x: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = model(x).split(1, dim=1)
        log_scale = log_scale.clamp(-5, 5)
        return (log_scale + 0.5 * ((y - mean) / log_scale.exp()) ** 2).mean()

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 6)
        return nll(x, x @ true + 0.05 * torch.randn(32, 1))

    run_steps(door, 700, model, optimizer, loss_of, clip=10.0)
    apart = Apart(10_000 + seed)
    x = apart.normal(1024, 6)
    return measured(model, lambda: nll(x, x @ true + 0.05 * apart.normal(1024, 1)))
