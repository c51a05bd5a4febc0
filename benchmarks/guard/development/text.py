"""Text models: a small one in plain PyTorch, one through `fit`, one through a recipe."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.char_gpt import CharGPT, text, text_loss, windows
from guard.door import Door
from guard.family import Apart, Family, family, measured, run_steps
from guard.own_runs import fit, recipe

LENGTH = 32


@family("text")
def char_gpt_small(seed: int, door: Door) -> float:
    """One block of width 32, batches of 8, warm-up and cosine."""
    stream = text(slice(0, 14_000))
    model = CharGPT(32, 1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.95))
    warm = lr_scheduler.LinearLR(optimizer, 0.05, total_iters=40)
    schedule = lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 260)], [40])
    run_steps(
        *(door, 300, model, optimizer, lambda step: text_loss(model, windows(stream, 8, LENGTH))),
        schedule=schedule,
        clip=1.0,
    )
    rows = windows(text(slice(14_000, None)), 64, LENGTH, Apart(seed))
    return measured(model, lambda: text_loss(model, rows))


@family("text")
def char_gpt_b2_high_rate(seed: int, door: Door) -> float:
    """Batches of 2, a constant learning rate that is rather too high, no warm-up, no clipping."""
    stream = text(slice(0, 14_000))
    model = CharGPT(32, 1, LENGTH)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    run_steps(door, 400, model, optimizer, lambda step: text_loss(model, windows(stream, 2, LENGTH)))
    rows = windows(text(slice(14_000, None)), 64, LENGTH, Apart(seed))
    return measured(model, lambda: text_loss(model, rows))


@family("fit")
def fit_regression_b4(seed: int, door: Door) -> float:
    """`trainbook.fit` on a noisy regression with batches of 4."""
    apart = Apart(seed)
    true = apart.normal(8, 1)
    x = apart.normal(1600, 8)
    y = x @ true + apart.normal(1600, 1)
    data = [(x[at : at + 4], y[at : at + 4]) for at in range(0, 1600, 4)]
    model = nn.Linear(8, 1)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    held = Apart(10_000 + seed).normal(1024, 8)
    return fit(
        *(seed, door, model, data, loss),
        lambda: measured(model, lambda: nn.functional.mse_loss(model(held), held @ true)),
        **{"training.max_steps": 300, "optimizer.learning_rate": 1e-3, "schedule.type": "constant"},
    )


ALL = [
    Family(
        "recipe-gpt-tiny",
        "recipe",
        partial(
            recipe,
            name="gpt-tiny",
            overrides=("training.max_steps=200", "batch.global_batch_size=8", "schedule.warmup_steps=20"),
        ),
    ),
    Family(
        "recipe-gpt-tiny-b2-constant",
        "recipe",
        partial(
            recipe,
            name="gpt-tiny",
            overrides=(
                *("training.max_steps=200", "batch.global_batch_size=2", "schedule.type=constant"),
                *("optimizer.learning_rate=1e-2", "batch.max_grad_norm=null", "schedule.warmup_steps=20"),
            ),
        ),
    ),
]
