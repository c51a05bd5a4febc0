"""A job: everything that one training needs, whoever put it together (a configuration, or a user's own module)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.guard import Guard
from trainbook.knobs.config import Config
from trainbook.knobs.derive import warmup_steps
from trainbook.loop.state import RateTable, TrainState
from trainbook.models import named_roles
from trainbook.optim import build_optimizer, parameter_groups, shares
from trainbook.parallel import SingleDevice
from trainbook.precision import Precision
from trainbook.tasks import StepBatch


@dataclass
class Job:
    config: Config
    state: TrainState
    total_updates: int
    feed: Callable[[int, int], Generator[StepBatch]]  # the batches of steps [start, stop)
    evaluate: Callable[[], dict[str, float]] | None
    steps_per_epoch: Fraction  # not always whole: batches run on over the end of an epoch; a float would miss ends
    data_fingerprint: str = ""
    write_files: Callable[[Path], None] = lambda folder: None  # what readers of the run need, such as its tokenizer

    @property
    def eval_steps(self) -> int:
        return self.config.evaluation.eval_steps or max(1, math.ceil(self.total_updates / 10))

    def evaluation_is_due(self, step: int) -> bool:
        if self.evaluate is None or self.config.evaluation.eval_strategy == "no":
            return False
        if self.config.evaluation.eval_strategy == "epoch":
            return math.floor(step / self.steps_per_epoch) > math.floor((step - 1) / self.steps_per_epoch)
        return step % self.eval_steps == 0

    def checkpoint_is_due(self, step: int) -> bool:
        save_steps = self.config.checkpoint.save_steps
        if save_steps is not None:
            return step % save_steps == 0
        # With each evaluation; where those are rare or none, still ten times in a run.
        by_steps = self.evaluate is not None and self.config.evaluation.eval_strategy == "steps"
        return self.evaluation_is_due(step) or (not by_steps and step % self.eval_steps == 0)


def build_state(
    config: Config,
    task: nn.Module,
    losses: Callable[[Any], dict[str, Tensor]],
    total_updates: int,
    precision: Precision,
    device: torch.device,
) -> TrainState:
    """The training state of any module; `losses` gives its named loss sums for a micro-batch."""
    warmup = warmup_steps(config, total_updates)
    # Known only now for a run of epochs or tokens. A ratio is rounded up, and may fill a run of one update.
    if config.schedule.warmup_steps is not None and warmup >= total_updates:
        message = f"warm-up must be shorter than the run, but it is {warmup:,} of {total_updates:,} updates."
        raise ConfigError([Problem("configuration", "schedule.warmup_steps", message)])
    rates = RateTable(config.optimizer.learning_rate, shares(config.schedule, total_updates, warmup), device)
    groups = parameter_groups(task, named_roles(task), config.optimizer)
    if not groups:
        raise UserError("the model has nothing to train: no parameter of it requires a gradient.")
    saved = task.state_dict()
    task.train()
    return TrainState(
        task=task,
        losses=losses,
        optimizer=build_optimizer(groups, config.optimizer, rates.rate),
        rates=rates,
        precision=precision,
        strategy=SingleDevice(),
        # fp16 overflows are part of its loss scaling: those updates are skipped whatever the guard is told.
        guard=Guard(device, enabled=config.guard.enabled or precision.scaler is not None),
        device=device,
        seed=config.training.seed,
        max_grad_norm=config.batch.max_grad_norm,
        parameters=[parameter for group in groups for parameter in group["params"]],
        buffers=[buffer for name, buffer in task.named_buffers() if name in saved],
    )
