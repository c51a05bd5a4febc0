"""Models of data: a variational autoencoder, a flow, denoising diffusion, a masked autoencoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

WIDTH = 12


def mixed(seed: int, count: int, apart: Apart | None = None) -> Tensor:
    """Points of three sources on low-dimensional sheets."""
    fixed = Apart(seed)
    sheets = fixed.normal(3, 3, WIDTH)
    source = apart.integers(3, count) if apart else torch.randint(3, (count,))
    place = apart.normal(count, 3) if apart else torch.randn(count, 3)
    noise = apart.normal(count, WIDTH) if apart else torch.randn(count, WIDTH)
    return torch.einsum("nd,ndw->nw", place, sheets[source]) / 2 + 0.1 * noise


@family("variational autoencoder")
def vae_with_annealed_kl(seed: int, door: Door) -> float:
    """The weight of the KL term grows from 0 to 1 over 250 steps: the loss rises by design while the model learns."""
    encode, decode = mlp(WIDTH, 48, 8), mlp(4, 48, WIDTH)
    model = nn.ModuleList([encode, decode])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = encode(x).chunk(2, 1)
        hidden = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        rebuilt = ((decode(hidden) - x) ** 2).sum(1).mean() * 4
        return rebuilt, 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()

    def loss_of(step: int) -> Tensor:
        rebuilt, kl = parts(mixed(seed, 32))
        return rebuilt + min(1.0, step / 250) * kl

    run_steps(door, 600, model, optimizer, loss_of)
    return measured(model, lambda: sum(parts(mixed(seed, 1000, Apart(10_000 + seed))), torch.zeros(())))


@family("normalizing flow")
def coupling_flow(seed: int, door: Door) -> float:
    """Exact negative log-likelihood of data that lies close to sheets: it falls through zero and goes on falling."""
    nets = nn.ModuleList(mlp(WIDTH // 2, 32, WIDTH, activation=nn.Tanh) for _ in range(3))
    optimizer = torch.optim.Adam(nets.parameters(), 2e-3)

    def nll(x: Tensor) -> Tensor:
        log_volume = torch.zeros(len(x))
        for net in nets:
            first, second = x.chunk(2, 1)
            scale, shift = net(first).chunk(2, 1)
            scale = 2 * torch.tanh(scale / 2)
            x = torch.cat([second * scale.exp() + shift, first], 1)
            log_volume = log_volume + scale.sum(1)
        return (0.5 * (x**2).sum(1) + WIDTH / 2 * math.log(2 * math.pi) - log_volume).mean()

    run_steps(door, 450, nets, optimizer, lambda step: nll(mixed(seed, 32) / 5), clip=5.0)
    return measured(nets, lambda: nll(mixed(seed, 1000, Apart(10_000 + seed)) / 5))


@family("denoising diffusion")
def diffusion_b8(seed: int, door: Door) -> float:
    """The loss of a batch depends on the noise levels that it drew far more than on what the model has learned."""
    model = mlp(WIDTH + 2, 64, 64, WIDTH, activation=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss_at(x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        sigma = torch.exp(6 * level - 4)  # from 0.02 to 7
        noisy = (x + sigma * noise) / (1 + sigma**2).sqrt()
        guess = model(torch.cat([noisy, level, level**2], 1))
        return (((guess - x) / sigma.clamp(min=0.1)) ** 2).mean()

    def loss_of(step: int) -> Tensor:
        x = mixed(seed, 8)
        return loss_at(x, torch.rand(8, 1), torch.randn_like(x))

    run_steps(door, 600, model, optimizer, loss_of, clip=1.0)
    apart = Apart(10_000 + seed)
    x = mixed(seed, 1000, apart)
    return measured(model, lambda: loss_at(x, apart.uniform(1000, 1), apart.normal(1000, WIDTH)))


@family("masked autoencoder")
def masking_ramp(seed: int, door: Door) -> float:
    """Ever more of the input is hidden, from a tenth to seven tenths: the loss rises as the task gets harder."""
    model = mlp(2 * WIDTH, 64, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_at(x: Tensor, hidden: Tensor) -> Tensor:
        guess = model(torch.cat([x * ~hidden, hidden.float()], 1))
        return ((guess - x) ** 2)[hidden].mean()

    def loss_of(step: int) -> Tensor:
        x = mixed(seed, 16)
        return loss_at(x, torch.rand_like(x) < 0.1 + 0.6 * min(1.0, step / 500))

    run_steps(door, 600, model, optimizer, loss_of)
    apart = Apart(10_000 + seed)
    x = mixed(seed, 1000, apart)
    return measured(model, lambda: loss_at(x, apart.uniform(*x.shape) < 0.7))
