"""The samples of a run by their ids: those of a step, the loss of each, and its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data.batches.plan import BatchPlan
from trainbook.data.samples.quarantine import entry_of
from trainbook.loop.state import TrainState
from trainbook.tasks import Collate, to_device
from trainbook.tasks.task import evaluating


class PlannedSamples:
    """The samples of a batch plan. `collate` makes a micro-batch of one sample, so that its loss is told apart from its
    neighbours'."""

    def __init__(
        self,
        plan: BatchPlan,
        collate: Collate,
        task: Callable[..., Mapping[str, Tensor]],
        state: TrainState,
        fingerprint: str,
    ) -> None:
        self.plan, self.collate, self.task, self.state, self.fingerprint = plan, collate, task, state, fingerprint
        self.num_samples = plan.dataset.num_samples

    def of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        batch = self.plan.batch(step - 1)
        return batch.ids, batch.epochs

    def own_of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        ranks = self.state.strategy.ranks
        if not self.plan.share(step - 1, ranks.rank, ranks.world):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        batch = self.plan.batch(step - 1, ranks.rank, ranks.world)
        return batch.ids, batch.epochs

    @torch.no_grad()
    def losses(self, ids: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        found: list[Tensor] = []
        with evaluating(self.state.task), self.state.strategy.whole():
            for at in range(len(ids)):
                alone = self.collate(self.plan.alone(ids[at : at + 1], epochs[at : at + 1]))
                with self.state.precision.autocast(), self.state.precision.as_in_training():
                    sums = self.task(**to_device(alone.micro_batches[0], self.state.device))
                total = torch.stack([total.float() for total in sums.values()]).sum()
                found.append(total / max(1, alone.num_targets))
        return torch.stack(found).double().cpu().numpy() if found else np.empty(0)

    def classes(self, ids: np.ndarray) -> np.ndarray | None:
        labels = self.plan.dataset.labels(ids)
        return labels if labels is not None and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) else None

    def of_class(self, number: int, count: int, without: np.ndarray) -> np.ndarray:
        classes = self.classes(np.arange(self.num_samples))
        assert classes is not None
        found = np.setdiff1d(np.flatnonzero(classes == number), [*without, *self.state.kept_out])
        return found[np.unique(np.linspace(0, len(found) - 1, count).astype(np.int64))] if len(found) else found

    def not_finite(self, sample_id: int, epoch: int) -> str:
        alone = self.collate(self.plan.alone(np.array([sample_id]), np.array([epoch])))
        inputs = alone.micro_batches[0].items()
        return ", ".join(name for name, value in inputs if isinstance(value, Tensor) and not value.isfinite().all())

    def entry(
        self, sample_id: int, step: int, reason: str, loss: float | None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        return entry_of(self.plan.dataset, sample_id, step, reason, loss, self.fingerprint, is_quick=is_quick)
