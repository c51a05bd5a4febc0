"""Classification: balanced, with a rare hard class, with wrong labels, separable, sorted by class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, family, measured, mlp, run_steps

CLASSES, WIDTH = 5, 10
entropy = nn.functional.cross_entropy


def blobs(seed: int, count: int, *, spread: float, apart: Apart) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class."""
    centres = Apart(seed).normal(CLASSES, WIDTH)
    labels = apart.integers(CLASSES, count)
    return centres[labels] + spread * apart.normal(count, WIDTH), labels


@family("classification")
def balanced_classes(seed: int, door: Door) -> float:
    x, y = blobs(seed, 4000, spread=1.0, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=1.0, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 48, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (32,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 500, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("classification, imbalanced")
def rare_hard_class(seed: int, door: Door) -> float:
    """Two per cent belong to a class that lies inside another one: most batches have none of it."""
    apart = Apart(20_000 + seed)

    def draw(count: int, source: Apart) -> tuple[Tensor, Tensor]:
        x, y = blobs(seed, count, spread=0.4, apart=source)
        rare = source.uniform(count) < 0.02
        return x, torch.where(rare, (y + 1) % CLASSES, y)

    x, y = draw(6000, apart)
    held_x, held_y = draw(1500, Apart(30_000 + seed))
    model = mlp(WIDTH, 64, 64, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (8,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 700, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("classification, wrong labels")
def wrong_labels_b4(seed: int, door: Door) -> float:
    """Three labels in ten are drawn at random, in the whole data set."""
    x, y = blobs(seed, 4000, spread=0.6, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=0.6, apart=Apart(30_000 + seed))
    draw = Apart(40_000 + seed)
    y = torch.where(draw.uniform(len(y)) < 0.3, draw.integers(CLASSES, len(y)), y)
    model = mlp(WIDTH, 32, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (4,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 600, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("loss near zero")
def separable_classes(seed: int, door: Door) -> float:
    """The loss falls to about 1e-4, and single batches differ by orders of magnitude."""
    x, y = blobs(seed, 2000, spread=0.25, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=0.25, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 64, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (16,))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 700, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("data in blocks")
def sorted_by_class(seed: int, door: Door) -> float:
    """Nobody shuffled: 25 batches of one class, then 25 of the next, several times over."""
    held_x, held_y = blobs(seed, 1000, spread=0.8, apart=Apart(30_000 + seed))
    x, y = blobs(seed, 4000, spread=0.8, apart=Apart(20_000 + seed))
    of_class = [x[y == label] for label in range(CLASSES)]
    model = mlp(WIDTH, 48, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)

    def loss_of(step: int) -> Tensor:
        label = step // 25 % CLASSES
        rows = torch.randint(len(of_class[label]), (16,))
        return entropy(model(of_class[label][rows]), torch.full((16,), label))

    run_steps(door, 750, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))


@family("batch-size ramp")
def batch_ramp_2_to_64(seed: int, door: Door) -> float:
    """The batch doubles every 100 steps: the noise of the loss shrinks each time."""
    x, y = blobs(seed, 6000, spread=1.0, apart=Apart(20_000 + seed))
    held_x, held_y = blobs(seed, 1000, spread=1.0, apart=Apart(30_000 + seed))
    model = mlp(WIDTH, 48, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> Tensor:
        rows = torch.randint(len(x), (2 << min(step // 100, 5),))
        return entropy(model(x[rows]), y[rows])

    run_steps(door, 700, model, optimizer, loss_of)
    return measured(model, lambda: entropy(model(held_x), held_y))
