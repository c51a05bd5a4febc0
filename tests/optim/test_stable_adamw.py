from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from trainbook.optim import apply_update
from trainbook.optim.optimizers import StableAdamW

YES = torch.tensor(True)


def made(shape: tuple[int, ...], scale: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * scale


def by_the_paper(weights: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    """Algorithm 2 of Wortsman et al. 2023, line by line: the betas are corrected, not the averages."""
    beta1, beta2, epsilon = 0.8, 0.9, 1e-3
    v, u = np.zeros_like(weights), np.zeros_like(weights)
    for t, g in enumerate(gradients, start=1):
        b1 = beta1 * (1 - beta1 ** (t - 1)) / (1 - beta1**t)
        b2 = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        v, u = b1 * v + (1 - b1) * g, b2 * u + (1 - b2) * g**2
        surprise = math.sqrt(np.mean(g**2 / np.maximum(u, epsilon**2)))
        eta = rate / max(1.0, surprise)
        weights = weights - eta * decay * weights - eta * v / (np.sqrt(u) + epsilon)
    return weights


def test_updates_are_those_of_the_paper_tensor_by_tensor():
    scales = [1, 1, 1, 30, 1, 0.2, 1, 100, 1, 1]
    shapes = [(4, 6), (7,)]
    gradients = [[made(shape, scale * (number + 1), step) for step, scale in enumerate(scales)] for number, shape in
                 enumerate(shapes)]  # fmt: skip
    starts = [made(shape, 1.0, 99) for shape in shapes]
    parameters = [nn.Parameter(torch.from_numpy(start.copy())) for start in starts]
    groups = [{"params": [parameters[0]], "weight_decay": 0.5}, {"params": [parameters[1]], "weight_decay": 0.0}]
    optimizer = StableAdamW(groups, torch.tensor(0.125), (0.8, 0.9), 1e-3)
    for step in range(len(scales)):
        for parameter, of_one in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(of_one[step].copy())
        apply_update(optimizer, YES)
    for parameter, start, of_one, decay in zip(parameters, starts, gradients, (0.5, 0.0), strict=True):
        expected = by_the_paper(start, of_one, 0.125, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-6, atol=1e-7)


def test_in_calm_times_it_is_adamw():
    """Gradients that shrink from step to step never exceed their average scale, so that nothing is held back."""
    ours, theirs = (nn.Parameter(torch.from_numpy(made((5, 5), 1.0, 3))) for _ in range(2))
    stable = StableAdamW([{"params": [ours], "weight_decay": 0.3}], torch.tensor(2.0**-6), (0.9, 0.95), 1e-8)
    adamw = torch.optim.AdamW([theirs], lr=2.0**-6, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)
    for step in range(12):
        gradient = torch.from_numpy(made((5, 5), 1.0, 4)) * 0.8**step
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        apply_update(stable, YES)
        adamw.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("beta2", [0.9, 0.95, 0.99, 0.999])
def test_after_a_sudden_growth_no_step_is_longer_than_the_rate(beta2: float):
    """AdamW's first step would be (1 - beta1) / sqrt(1 - beta2) of the rate, 3.2 times it at 0.999; here 1 - beta1."""
    parameter = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    optimizer = StableAdamW([{"params": [parameter]}], torch.tensor(1.0), (0.9, beta2), 1e-12)
    state = optimizer.state[parameter]
    state["step"].fill_(1e6)  # after a long quiet phase
    moved = []
    for _ in range(60):
        before = parameter.detach().clone()
        parameter.grad = torch.ones_like(parameter)
        apply_update(optimizer, YES)
        moved.append(float((before - parameter.detach()).max()))
    assert moved[0] == pytest.approx(0.1, rel=1e-6)
    assert max(moved) <= 1.0 + 1e-6


def test_it_needs_no_clipping_where_adamw_does():
    """One gradient a thousandfold as large, amid noise: how far the next steps move the weights."""
    ways = {}
    for kind in ("stable", "adamw"):
        parameter = nn.Parameter(torch.zeros(64, dtype=torch.float64))
        optimizer = (
            StableAdamW([{"params": [parameter]}], torch.tensor(1e-3), (0.9, 0.999), 1e-8)
            if kind == "stable"
            else torch.optim.AdamW([parameter], lr=torch.tensor(1e-3), betas=(0.9, 0.999), weight_decay=0.0, fused=True)
        )
        for step in range(220):
            parameter.grad = torch.from_numpy(made((64,), 1000.0 if step == 200 else 1.0, step))
            before = parameter.detach().clone()
            apply_update(optimizer, YES)
            if step == 200:
                ways[kind] = float((parameter.detach() - before).norm())
    assert ways["stable"] < 0.25 * ways["adamw"]
