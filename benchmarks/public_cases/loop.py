"""A plain PyTorch loop, watched, with the places at which people make their mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from strangers.data.table import Table, split
from torch import Tensor, nn
from torch.nn import functional as F

from public_cases.cases import Run, Score

Pair = tuple[Tensor, Tensor]


def halves(table: Table, num_valid: int, rng: np.random.Generator) -> tuple[Pair, Pair]:
    """The training and the validation split, as tensors. A language model's inputs are its targets."""
    train, valid = split(table, num_valid, rng)
    return tensors(train), tensors(valid)


def tensors(table: Table) -> Pair:
    x = torch.from_numpy(table.x)
    return x, x if table.y is None else torch.from_numpy(table.y)


def usual(model: nn.Module, x: Tensor, y: Tensor) -> Pair:
    """Outputs and targets."""
    return model(x), y


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Pair:
    return model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()


@dataclass
class Loop:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: Pair
    valid: Pair
    pair: Callable[[nn.Module, Tensor, Tensor], Pair] = usual
    criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    steps: int = 200
    batch_size: int = 32
    eval_every: int = 20
    clip: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # what the author tells `watch`
    seed: int = 0
    factor: Callable[[int], float] | None = None  # of the learning rate at a step, counted from 1
    rows: Callable[[int], Tensor] | None = None  # of a step's batch
    change: Callable[[int, Tensor, Tensor], Pair] | None = None  # of a batch
    before_update: Callable[[int], None] | None = None  # after the backward pass
    zeroes: bool = True
    evaluates_first: bool = False  # before the first step, too
    evaluate: Callable[[], Score] | None = None
    true_score: Callable[[], Score] | None = None  # how good the model really is, where the usual score does not say
    start: int = 0
    until: int | None = None  # where the program is interrupted

    def run(self, run: Run) -> Score:
        """Train, and say how good the model is: on the validation split, with the loss as it should be."""
        import trainbook

        guard = None
        if run.is_guarded:
            guard = trainbook.Guard(self.model, self.optimizer, shuffled=True)
        torch.manual_seed(self.seed + 1000 + self.start)
        watching = trainbook.watch(
            self.model,
            self.optimizer,
            total_steps=self.steps,
            start_step=self.start,
            settings={"batch_size": self.batch_size, **self.settings},
            **run.place,
        )
        with watching:
            self._steps(watching, guard)
        if guard is not None:
            guard.end_trial()
        found = self.score()
        return found if guard is None else {**found, "guard_events": float(len(guard.events))}

    def _steps(self, watching: Any, guard: Any) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        order = Order(len(self.train[0]), self.batch_size, self.seed)
        order.skip(self.start)
        if self.evaluates_first:
            watching.evaluation(self.evaluate or self.evaluated)
        self.model.train()
        for step in range(self.start + 1, (self.until or self.steps) + 1):
            chosen = order.next() if self.rows is None else self.rows(step)
            x, y = self.train[0][chosen], self.train[1][chosen]
            if self.change is not None:
                x, y = self.change(step, x, y)
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * (1.0 if self.factor is None else self.factor(step))
            if self.zeroes:
                self.optimizer.zero_grad()
            loss = self.criterion(*self.pair(self.model, x, y))
            if loss.requires_grad:
                loss.backward()
            if self.before_update is not None:
                self.before_update(step)
            norm = norm_and_clip(self.model, self.clip)
            if guard is None or guard.accepts(loss, norm):
                self.optimizer.step()
            watching.step(loss, batch=(x, y), grad_norm=norm)
            if step % self.eval_every == 0 or step == self.steps:
                watching.evaluation(self.evaluate or self.evaluated)

    def evaluated(self) -> Score:
        return evaluated(self.model, self.valid, self.pair, self.criterion)

    def score(self) -> Score:
        if self.true_score is not None:
            return self.true_score()
        criterion = F.mse_loss if self.valid[1].is_floating_point() else F.cross_entropy
        return evaluated(self.model, self.valid, self.pair, criterion)


class Order:
    """Which rows come at which step: every epoch in a new order."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self.count, self.batch_size, self.rng = rows, batch_size, np.random.default_rng(seed)
        self.left = np.empty(0, dtype=np.int64)

    def next(self) -> Tensor:
        if len(self.left) < self.batch_size:
            self.left = self.rng.permutation(self.count)
        chosen, self.left = self.left[: self.batch_size], self.left[self.batch_size :]
        return torch.from_numpy(chosen)

    def skip(self, steps: int) -> None:
        for _ in range(steps):
            self.next()


def norm_and_clip(model: nn.Module, clip: float | None) -> float:
    gradients = [each for each in model.parameters() if each.grad is not None]
    if not gradients:
        return 0.0
    return float(nn.utils.clip_grad_norm_(gradients, math.inf if clip is None else clip))


@torch.no_grad()
def evaluated(model: nn.Module, data: Pair, pair: Callable, criterion: Callable) -> Score:
    was_training = model.training
    model.eval()
    outputs, targets = pair(model, *data)
    found = {"loss": float(criterion(outputs, targets))}
    if not targets.is_floating_point() and outputs.ndim == 2:
        counted = targets != -100
        found["accuracy"] = float((outputs.argmax(-1) == targets)[counted].float().mean())
    model.train(was_training)
    return found
