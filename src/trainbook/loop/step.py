"""The training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainbook.loop import watch
from trainbook.loop.state import TrainState
from trainbook.optim import apply_update
from trainbook.precision import Clipped, clipped_elsewhere
from trainbook.tasks import StepBatch, to_device


@dataclass(frozen=True)
class StepReport:
    """The measurements of one step, still on the device: the host reads them only when a row is due."""

    step: int
    losses: dict[str, Tensor]  # named means over the targets of the global batch
    grad_norm: Tensor  # before clipping
    epoch: float  # passes over the data once this step is done
    applied: Tensor
    watched: Mapping[str, Any] = field(default_factory=dict)  # metrics that are measured only where a row is due


def train_step(state: TrainState, batch: StepBatch, *, watched: bool = False) -> StepReport:
    """One attempted update on one global batch: accumulate, clip, judge, update. No host sync happens here.

    What costs more than it tells in each step is measured only if the step is `watched`.
    """
    buffers_before = [buffer.clone() for buffer in state.buffers]
    try:
        losses = _accumulate(state, batch)
    except BaseException:  # a step that fails has changed nothing
        state.strategy.drop_gradients(state.optimizer)
        _restore(state.buffers, buffers_before)
        raise

    state.strategy.collect_gradients()
    clipped = _clip(state)
    seen = watch.before_update(state, clipped) if watched else None
    apply = state.judge.judge(torch.stack(list(losses.values())).sum(), clipped.norm, state.precision.can_be_lowered)
    state.rates.set_for(state.applied)
    state.strategy.update(apply_update, state.optimizer, apply)
    _restore(state.buffers, buffers_before, unless=apply)
    state.precision.after_update(clipped.norm, apply)
    state.strategy.drop_gradients(state.optimizer)

    state.applied += apply
    state.clipped += clipped.scaled
    state.step += 1
    state.tokens += batch.num_tokens
    state.samples += batch.num_rows
    state.steps_since_row += 1
    watched_values = watch.after_update(state, seen) if seen is not None else {}
    return StepReport(state.step, losses, clipped.norm, batch.epoch, apply, watched_values)


def _accumulate(state: TrainState, batch: StepBatch) -> dict[str, Tensor]:
    """Gradients of the whole global batch, and its losses."""
    strategy = state.strategy
    num_targets = strategy.total(batch.num_targets, state.device)
    num_counted = len(batch.micro_batches) - batch.num_idle
    losses: dict[str, Tensor] = {}
    for number, micro_batch in enumerate(batch.micro_batches, start=1):
        is_last = number == len(batch.micro_batches)
        with strategy.sync_gradients(is_last):
            with state.precision.autocast():
                sums = state.losses(to_device(micro_batch, state.device))
            # Divided by the targets of the whole global batch: k micro-batches give the gradient of one large batch.
            means = {name: total / num_targets for name, total in sums.items()}
            if number > num_counted:
                means = {name: 0.0 * mean for name, mean in means.items()}
            state.precision.backward(strategy.scaled(torch.stack(list(means.values())).sum()))
        for name, mean in means.items():
            losses[name] = losses[name] + mean.detach() if name in losses else mean.detach()
    return strategy.agree_on(losses)


def _clip(state: TrainState) -> Clipped:
    norm = state.strategy.gradient_norm()
    if norm is not None:  # an engine clips as it updates
        return clipped_elsewhere(norm, state.max_grad_norm)
    return state.precision.clip_gradients(state.parameters, state.max_grad_norm, state.strategy.norms_over_ranks)


def _restore(buffers: list[Tensor], before: list[Tensor], unless: Tensor | None = None) -> None:
    for buffer, kept in zip(buffers, before, strict=True):
        buffer.copy_(kept if unless is None else torch.where(unless, buffer, kept))
