"""Evaluation: total loss over total targets, once, whatever the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from trainbook.loop.state import TrainState
from trainbook.tasks import StepBatch, to_device


class Evaluable(Protocol):
    evaluation_sums: Callable[..., dict[str, Tensor]]  # takes the micro-batch's entries

    def metrics(self, sums: Mapping[str, float], num_targets: int) -> dict[str, float]: ...


@torch.no_grad()
def evaluate(state: TrainState, task: Evaluable, batches: Iterable[StepBatch]) -> dict[str, float]:
    """Metrics over all batches, weighted by targets. The model is left in training mode."""
    state.task.eval()
    sums: dict[str, Tensor] = {}
    num_targets = 0
    for batch in batches:
        num_targets += batch.num_targets
        for micro_batch in batch.micro_batches:
            with state.precision.autocast():
                found = task.evaluation_sums(**to_device(micro_batch, state.device))
            for name, total in found.items():
                sums[name] = sums[name] + total if name in sums else total
    state.task.train()
    metrics = task.metrics({name: float(total) for name, total in sums.items()}, max(1, num_targets))
    return {**metrics, "targets": num_targets}
