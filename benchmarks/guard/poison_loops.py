"""Bad data in plain PyTorch loops, under any policy. Sample ids are known: nothing is drawn twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from guard.door import Door
from guard.family import Apart, measured, mlp
from guard.poison import bad_rows, bad_steps, kinds_in, placements_in, spoilt

STEPS, BATCH, AFTER = 500, 16, 100


class Program(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    draw: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    classes: int | None
    clip: float | None


def regression(seed: int) -> Program:
    directions = Apart(seed).normal(8, 3)
    model = mlp(8, 48, 1, activation=nn.Tanh)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8)
        return x, torch.tanh(x @ directions).sum(1, keepdim=True) + 0.2 * torch.randn(count, 1)

    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), draw, nn.functional.mse_loss, None, None)


def classification(seed: int) -> Program:
    centres = Apart(seed).normal(6, 10) * 1.3
    model = mlp(10, 48, 6)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        label = torch.randint(6, (count,))
        return centres[label] + 0.9 * torch.randn(count, 10), label

    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, optimizer, draw, nn.functional.cross_entropy, 6, 1.0)


PROGRAMS = {"regression": regression, "classification": classification}


def programs_in(half: str) -> dict[str, Callable[[int], Program]]:
    if half != "held-out":
        return PROGRAMS
    from guard.held_out.bad_data_programs import PROGRAMS as MORE

    return PROGRAMS | MORE


def tasks(half: str, seeds: list[int], policies: list[str]) -> list[tuple[str, str, str, int, str]]:
    """All of a half: the clean twins first, then every kind of bad data everywhere, all under every policy."""
    found = [(name, "clean", "", seed, policy) for name in programs_in(half) for seed in seeds for policy in policies]
    for name in programs_in(half):
        for kind in kinds_in(half):
            for placement in placements_in(half):
                found += [(name, kind, placement, seed, policy) for seed in seeds for policy in policies]
    return found


def run_poisoned(task: tuple[str, str, str, int, str]) -> dict[str, Any]:
    """One run, in a process of the pool."""
    from trainbook.errors import Diverged

    torch.set_num_threads(1)
    name, kind, placement, seed, policy = task
    torch.manual_seed(5000 + seed)
    make = PROGRAMS.get(name) or programs_in("held-out")[name]
    program, apart = make(seed), torch.Generator().manual_seed(seed)
    bad = set(bad_steps(placement, seed, STEPS)) if placement else set()
    door, quality, started = Door(policy), math.nan, time.process_time()
    gate = door("loss", program.model, program.optimizer, clip=program.clip)
    try:
        for step in range(1, STEPS + 1):
            program.optimizer.zero_grad()
            x, y = program.draw(BATCH)
            if step in bad:
                rows = bad_rows(placement, BATCH)
                x[rows], y[rows] = spoilt(kind, x[rows], y[rows], apart, classes=program.classes)
            loss = program.loss(program.model(x), y)
            loss.backward()
            ids = torch.arange((step - 1) * BATCH, step * BATCH)
            if gate.step(loss, program.model.parameters(), ids if policy.startswith("guard") else None):
                program.optimizer.step()
        torch.manual_seed(9000 + seed)
        x, y = program.draw(2000)
        quality = measured(program.model, lambda: program.loss(program.model(x), y))
    except Diverged:
        pass  # the door has been told
    return {
        **{"program": name, "kind": kind, "placement": placement, "seed": seed, "policy": policy},
        **counted(bad, set(door.rejected_at.get("loss", [])), set(door.damped_at.get("loss", [])), door.updates),
        **{"quality": quality, "stopped": any(event["kind"] == "stop" for event in door.events)},
        "rollbacks": sum(event["kind"] == "rollback" for event in door.events),
        "seconds": round(time.process_time() - started, 3),
    }


def counted(bad: set[int], rejected: set[int], damped: set[int], updates: int) -> dict[str, int]:
    """Steps: bad ones that were met, kept out and scaled down to less than half; good ones soon after a bad one, and of
    these those that were kept out."""
    met = {step for step in bad if step <= updates}
    after = {step for each in met for step in range(each + 1, each + AFTER + 1) if step <= updates} - bad
    return {
        "bad": len(met),
        "bad_rejected": len(met & rejected),
        "bad_damped": len(met & (rejected | damped)),
        "after": len(after),
        "after_rejected": len(after & rejected),
        "good": updates - len(met),
        "good_rejected": len(rejected - bad),
    }
