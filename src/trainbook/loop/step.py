"""The training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainbook.loop import step_metrics
from trainbook.loop.state import TrainState, seed_step
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


class Computed(NamedTuple):
    """What forward and backward passes over a batch gave; the gradients, clipped, are where the optimizer has them."""

    losses: dict[str, Tensor]  # named means over the targets of the global batch
    own: dict[str, Tensor]  # this rank's share of them
    num_targets: int | Tensor  # of the global batch
    clipped: Clipped


def train_step(state: TrainState, batch: StepBatch, *, watched: bool = False) -> StepReport:
    """One attempted update on one global batch: accumulate, clip, judge, update. No host sync happens here.

    What costs more than it tells in each step is measured only if the step is `watched`.
    """
    buffers_before = [buffer.clone() for buffer in state.buffers]
    computed = compute(state, batch, buffers_before)
    recheck = state.recheck
    if recheck is not None and recheck.doubts_the_last():
        # The update before this one was rejected: nothing has changed since, and it is computed again first.
        undo(state, buffers_before)
        recheck.settle()
        buffers_before = [buffer.clone() for buffer in state.buffers]
        seed_step(state)
        computed = compute(state, batch, buffers_before)
    report = update(state, computed, buffers_before, batch.epoch, watched=watched)
    state.step += 1
    state.tokens += batch.num_tokens
    state.samples += batch.num_rows
    state.steps_since_row += 1
    return report if recheck is None else recheck.note(batch, computed, report, watched)


def compute(
    state: TrainState,
    batch: StepBatch,
    buffers_before: list[Tensor],
    before_backward: Callable[[Tensor], None] | None = None,
) -> Computed:
    """Accumulate and clip."""
    try:
        losses, own, num_targets = _accumulate(state, batch, before_backward)
    except BaseException:  # a step that fails has changed nothing
        undo(state, buffers_before)
        raise
    state.strategy.collect_gradients()
    return Computed(losses, own, num_targets, _clip(state))


def undo(state: TrainState, buffers_before: list[Tensor]) -> None:
    """Of what was computed, nothing stays."""
    state.strategy.drop_gradients(state.optimizer)
    _restore(state.buffers, buffers_before)


def update(
    state: TrainState, computed: Computed, buffers_before: list[Tensor], epoch: float, *, watched: bool
) -> StepReport:
    """Judge, and update if the verdict says so."""
    losses, clipped = computed.losses, computed.clipped
    seen = step_metrics.before_update(state, clipped) if watched else None
    apply = state.judge.judge(torch.stack(list(losses.values())).sum(), clipped.norm, state.precision.can_be_lowered)
    state.rates.set_for(state.applied)
    state.strategy.update(apply_update, state.optimizer, apply)
    _restore(state.buffers, buffers_before, unless=apply)
    state.precision.after_update(clipped.norm, apply)
    state.strategy.drop_gradients(state.optimizer)
    state.applied += apply
    state.clipped += clipped.scaled
    watched_values = step_metrics.after_update(state, seen) if seen is not None else {}
    return StepReport(state.step + 1, losses, clipped.norm, epoch, apply, watched_values)


def _accumulate(
    state: TrainState, batch: StepBatch, before_backward: Callable[[Tensor], None] | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], int | Tensor]:
    """Gradients of the whole global batch; its losses, this rank's share of them, and the number of targets."""
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
            loss = strategy.scaled(torch.stack(list(means.values())).sum())
            if before_backward is not None:
                before_backward(loss)
            state.precision.backward(loss)
        for name, mean in means.items():
            losses[name] = losses[name] + mean.detach() if name in losses else mean.detach()
    return strategy.agree_on(losses), losses, num_targets


def _clip(state: TrainState) -> Clipped:
    norm = state.strategy.gradient_norm()
    if norm is not None:  # an engine clips as it updates
        return clipped_elsewhere(norm, state.max_grad_norm)
    return state.precision.clip_gradients(state.parameters, state.max_grad_norm, state.strategy.norms_over_ranks)


def _restore(buffers: list[Tensor], before: list[Tensor], unless: Tensor | None = None) -> None:
    for buffer, kept in zip(buffers, before, strict=True):
        buffer.copy_(kept if unless is None else torch.where(unless, buffer, kept))
