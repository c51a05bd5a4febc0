"""Sequences: a recurrent net at the edge, packed rows with accumulation, loss scaling, larger text models, recipes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from guard.char_gpt import CharGPT, text, text_loss, windows
from guard.door import Door
from guard.family import Apart, Family, family, measured, run_steps
from guard.own_runs import fit, recipe


@family("clipped recurrence")
def adding_problem(seed: int, door: Door) -> float:
    """A plain recurrent net with large weights: its gradients explode now and then, and are clipped."""
    cell, out = nn.RNN(2, 24, batch_first=True), nn.Linear(24, 1)
    dict(cell.named_parameters())["weight_hh_l0"].data.copy_(torch.eye(24) * 1.1)
    model = nn.ModuleList([cell, out])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def loss_at(count: int) -> Tensor:
        values, marks = torch.rand(count, 12), torch.zeros(count, 12)
        marks.scatter_(1, torch.rand(count, 12).topk(2).indices, 1.0)
        hidden = cell(torch.stack([values, marks], 2))[0][:, -1]
        return nn.functional.mse_loss(out(hidden)[:, 0], (values * marks).sum(1))

    run_steps(door, 400, model, optimizer, lambda step: loss_at(16), clip=0.5)
    return measured(model, lambda: loss_at(1000))


@family("accumulation and packing")
def packed_documents(seed: int, door: Door) -> float:
    """Four micro-batches a step, each a mean over as many targets as happen to fit: unequal lengths, unequal noise."""
    stream = text(slice(0, 14_000))
    model = CharGPT(24, 1, 48)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    policy = door("loss", model, optimizer, clip=1.0)
    for _ in range(160):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            length = int(torch.randint(3, 48, ()))
            loss = text_loss(model, windows(stream, max(1, 48 // length // 2), length)) / 4
            loss.backward()
            total = total + loss.detach()
        if policy.step(total, model.parameters()):
            optimizer.step()
    rows = windows(text(slice(14_000, None)), 64, 40, Apart(seed))
    return measured(model, lambda: text_loss(model, rows))


@family("loss scaling")
def scaled_loss_with_overflows(seed: int, door: Door) -> float:
    """fp16's loss scaling: the scale doubles every 50 steps until gradients overflow, and such steps are left out."""
    true = Apart(seed).normal(8, 1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=50)
    policy = door("loss", model, optimizer, scaler)
    for _ in range(500):
        optimizer.zero_grad()
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(x), torch.tanh(x @ true) + 0.2 * torch.randn(16, 1))
        scaler.scale(loss).backward()
        for weight in model.parameters():  # what half precision would make of them
            assert weight.grad is not None
            weight.grad = weight.grad.half().float()
        scaler.unscale_(optimizer)
        if policy.step(loss, model.parameters()):
            scaler.step(optimizer)
        scaler.update()
    x = Apart(10_000 + seed).normal(1000, 8)
    return measured(model, lambda: nn.functional.mse_loss(model(x), torch.tanh(x @ true)))


def char_gpt(seed: int, door: Door, *, width: int, layers: int, batch: int, length: int, steps: int) -> float:
    """Larger than the one of the other half, with dropout."""
    stream = text(slice(0, 14_000))
    model = CharGPT(width, layers, length, heads=4, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
    run_steps(
        *(door, steps, model, optimizer, lambda step: text_loss(model, windows(stream, batch, length))),
        schedule=schedule,
        clip=1.0,
    )
    rows = windows(text(slice(14_000, None)), 48, length, Apart(seed))
    return measured(model, lambda: text_loss(model, rows))


@family("fit")
def fit_text_b2(seed: int, door: Door) -> float:
    """`trainbook.fit` on a language model of one's own, two rows a batch."""
    stream = text(slice(0, 14_000))
    model = CharGPT(24, 1, 24)
    data = list(windows(stream, 400, 24, Apart(seed)).split(2))
    rows = windows(text(slice(14_000, None)), 48, 24, Apart(10_000 + seed))
    return fit(
        *(seed, door, model, data, text_loss),
        lambda: measured(model, lambda: text_loss(model, rows)),
        **{"training.max_steps": 200, "optimizer.learning_rate": 3e-3},
    )


ALL = [
    Family("char-gpt-medium-b16", "text", partial(char_gpt, width=48, layers=2, batch=16, length=32, steps=150)),
    Family("char-gpt-large-b4", "text", partial(char_gpt, width=96, layers=3, batch=4, length=48, steps=110)),
    Family(
        "recipe-bert-tiny-masked",
        "recipe",
        partial(
            recipe,
            name="bert-tiny",
            overrides=("training.max_steps=200", "batch.global_batch_size=8", "schedule.warmup_steps=20"),
        ),
    ),
    Family(
        "recipe-t5-tiny",
        "recipe",
        partial(
            recipe,
            name="t5-tiny",
            overrides=("training.max_steps=200", "batch.global_batch_size=8", "schedule.warmup_steps=20"),
        ),
    ),
]
