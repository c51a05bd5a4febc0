"""A program that only the held-out half spoils."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guard.family import Apart
from guard.poison_loops import Program


def images(seed: int) -> Program:
    """Convolutions and batch norm: bad inputs also reach the running averages."""
    shapes = Apart(seed).normal(5, 36)
    model = nn.Sequential(
        *(nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        nn.Linear(128, 5),
    )

    def draw(count: int) -> tuple[Tensor, Tensor]:
        label = torch.randint(5, (count,))
        return shapes[label] + 1.2 * torch.randn(count, 36), label

    return Program(model, torch.optim.AdamW(model.parameters(), 3e-3), draw, nn.functional.cross_entropy, 5, 1.0)


PROGRAMS = {"images": images}
