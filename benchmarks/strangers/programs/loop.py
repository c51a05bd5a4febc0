"""A plain PyTorch loop that logs a table, with whatever mistakes its author made in it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from strangers import core
from strangers.job import Job
from strangers.programs.habits import Habit
from strangers.programs.watched import place
from trainbook.watching import Watch, watch


def train(job: Job, folder: Path) -> dict[str, Any]:
    """Gives what there is to know of the run: where its record is, and how well the model does."""
    if job.style == "lightning":
        from strangers.programs import lightning_loop

        return lightning_loop.train(job, folder)
    network = core.build(job)
    untrained = copy.deepcopy(network) if job.evaluates_copy else network
    optimizer = core.make_optimizer(job, network)
    with watch(network, optimizer, total_steps=job.steps, **place(folder)) as watching:
        return train_plainly(job, folder, network, untrained, optimizer, watching)


def train_plainly(
    job: Job,
    folder: Path,
    network: nn.Module,
    untrained: nn.Module,
    optimizer: torch.optim.Optimizer,
    watching: Watch,
) -> dict[str, Any]:
    habit = Habit.of(job, Random(f"habit {job.family} {job.seed}"))
    loss_of = core.TrainingLoss(job)
    x, y = core.tensors(job.train)
    rows = core.batch_rows(job, np.random.default_rng(job.seed))
    best = math.inf
    evaluated: dict[str, float] = {}
    batch: Any = None
    network.train()
    for step in range(1, job.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = job.rate * job.factor(step - 1)
        if job.gradients == "zeroed":
            optimizer.zero_grad()
        losses = []
        loss = torch.zeros(())
        for _ in range(job.accumulation):
            chosen = torch.from_numpy(next(rows))
            batch = x[chosen], y[chosen]
            loss = loss_of(network, *batch)
            if job.accumulation > 1:
                watching.add_loss(loss)
            if loss.requires_grad:
                (loss if job.undivided else loss / job.accumulation).backward()
            losses.append(float(loss.detach()))
        norm = _norm_and_clip(network, job.clip)
        if job.gradients == "lost":
            optimizer.zero_grad()
        optimizer.step()
        watching.step(None if job.accumulation > 1 else loss, batch=batch, grad_norm=norm)
        is_epoch_end = step % job.steps_per_epoch == 0
        numbers = {"loss": float(np.mean(losses)), "lr": optimizer.param_groups[0]["lr"], "norm": norm}
        habit.train_step(step, numbers, is_epoch_end)
        if is_epoch_end if habit.by_epoch else step % job.eval_every == 0 or step == job.steps:
            evaluated = _evaluated(job, untrained if job.evaluates_copy else network, watching)
            habit.evaluation(step, evaluated)
            best = min(best, evaluated["loss"])
        if job.forgets and step % max(8, job.steps_per_epoch) == 0 and step < job.steps:
            network, optimizer = _anew(job, network, optimizer)
    record = habit.write(folder, job)
    return {"record": record.name, "best": best, "last": evaluated, "true": core.true_score(job, network)}


def _evaluated(job: Job, network: nn.Module, watching: Watch) -> dict[str, float]:
    found: list[dict[str, float]] = []

    def evaluate() -> dict[str, float]:
        found.append(core.evaluate(job, network, job.valid))
        return found[-1]

    watching.evaluation(evaluate)
    return found[0]


def _norm_and_clip(network: nn.Module, clip: float | None) -> float:
    gradients = [each for each in network.parameters() if each.grad is not None]
    if not gradients:
        return 0.0
    return float(nn.utils.clip_grad_norm_(gradients, math.inf if clip is None else clip))


def _anew(job: Job, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    if job.forgets == "weights":
        network = core.build(job)
        network.train()
    return network, core.make_optimizer(job, network)
