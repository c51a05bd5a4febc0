"""The training step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainbook.loop.state import TrainState
from trainbook.optim import apply_update
from trainbook.tasks import StepBatch, to_device


@dataclass(frozen=True)
class StepReport:
    """What one step found, still on the device: the host reads it only when a row is due."""

    step: int
    losses: dict[str, Tensor]  # named means over the targets of the global batch
    grad_norm: Tensor  # before clipping
    epoch: float  # passes over the data once this step is done
    applied: Tensor


def train_step(state: TrainState, batch: StepBatch) -> StepReport:
    """One attempted update on one global batch: accumulate, clip, judge, update. No host sync happens here."""
    num_targets = max(1, state.strategy.sum_over_ranks(batch.num_targets))
    losses: dict[str, Tensor] = {}
    buffers_before = [buffer.clone() for buffer in state.buffers]
    for number, micro_batch in enumerate(batch.micro_batches, start=1):
        is_last = number == len(batch.micro_batches)
        with state.strategy.sync_gradients(is_last), state.precision.autocast():
            sums = state.losses(to_device(micro_batch, state.device))
        # Divided by the targets of the whole global batch: k micro-batches give the gradient of one large batch.
        means = {name: total / num_targets for name, total in sums.items()}
        state.precision.backward(torch.stack(list(means.values())).sum())
        for name, mean in means.items():
            losses[name] = losses[name] + mean.detach() if name in losses else mean.detach()

    grad_norm = state.precision.clip_gradients(state.parameters, state.max_grad_norm)
    apply = state.guard.judge(torch.stack(list(losses.values())).sum(), grad_norm)
    state.rates.set_for(state.applied)
    apply_update(state.optimizer, apply)
    for buffer, before in zip(state.buffers, buffers_before, strict=True):
        buffer.copy_(torch.where(apply, buffer, before))
    state.precision.after_update(grad_norm)
    state.optimizer.zero_grad(set_to_none=True)

    state.applied += apply
    if state.max_grad_norm is not None:
        state.clipped += grad_norm > state.max_grad_norm
    state.step += 1
    state.tokens += batch.num_tokens
    state.samples += batch.num_rows
    state.steps_since_row += 1
    return StepReport(state.step, losses, grad_norm, batch.epoch, apply)
