"""A user's own module and iterable in the same loop, with the same run folder, resume and tracking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.duration import Duration
from trainbook.loop.job import Job, build_state
from trainbook.loop.seeding import seed_everything
from trainbook.precision import Precision
from trainbook.tasks import StepBatch, to_device

LossFunction = Callable[[nn.Module, Any], Tensor]
CountFunction = Callable[[Any], int]

EPOCH_STREAM = 1  # keeps the seeds of epochs apart from those of steps


def fit_job(
    config: Config,
    model: nn.Module,
    data: Iterable[Any],
    loss: LossFunction,
    *,
    count_targets: CountFunction | None = None,
    eval_data: Iterable[Any] | None = None,
    device: torch.device,
) -> Job:
    """Each item of `data` is a micro-batch; `gradient_accumulation_steps` of them make a step.

    Without `count_targets`, `loss` returns a mean and every item weighs the same. With it, `loss` returns a sum and the
    step divides by the targets of all its items, which is exact for items of unequal size.
    """
    accumulation = config.batch.gradient_accumulation_steps or 1
    batches = UserBatches(data, accumulation, count_targets, config.training.seed)
    total_updates = _total_updates(config, batches)
    precision = Precision(config.precision, device)
    model.to(device=device, dtype=precision.weight_dtype)

    def losses(micro_batch: Any) -> dict[str, Tensor]:
        value = loss(model, micro_batch)
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss(model, batch) must return a tensor with a single number, but got {shape}.")
        return {"loss": value}

    state = build_state(config, model, losses, total_updates, precision, device)

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        assert eval_data is not None
        model.eval()
        total, targets = 0.0, 0
        for item in eval_data:
            with precision.autocast():
                total += float(losses(to_device(item, device))["loss"])
            targets += count_targets(item) if count_targets else 1
        model.train()
        return {"loss": total / max(1, targets), "targets": targets}

    return Job(
        config=config,
        state=state,
        total_updates=total_updates,
        feed=batches.steps,
        evaluate=evaluate if eval_data is not None else None,
        steps_per_epoch=batches.steps_per_epoch or total_updates,
        data_fingerprint="",
    )


class UserBatches:
    """Steps out of an iterable that is read again for each epoch.

    Each pass starts under a seed of its own (Python's, NumPy's and PyTorch's), so that a shuffling loader gives the
    same order again: a resumed run goes through the items it has already used and continues with the next one.
    """

    def __init__(self, data: Iterable[Any], accumulation: int, count_targets: CountFunction | None, seed: int) -> None:
        if isinstance(data, Iterator):
            raise UserError(
                "data must be an iterable that can be read from its start again (a list, a DataLoader, an object with "
                f"__iter__), but got {type(data).__name__}, which is used up after one pass and could not be resumed."
            )
        self.data, self.accumulation, self.count_targets, self.seed = data, accumulation, count_targets, seed
        self.items_per_epoch = len(data) if isinstance(data, Sized) else None

    @property
    def steps_per_epoch(self) -> float | None:
        return None if self.items_per_epoch is None else self.items_per_epoch / self.accumulation

    def steps(self, start: int, stop: int) -> Iterator[StepBatch]:
        items = self._items(start * self.accumulation)
        for _ in range(start, stop):
            yield self._step([next(items) for _ in range(self.accumulation)])

    def _step(self, items: list[Any]) -> StepBatch:
        targets = sum(self.count_targets(item) for item in items) if self.count_targets else len(items)
        return StepBatch(items, num_targets=targets, num_tokens=targets)

    def _items(self, first: int) -> Iterator[Any]:
        """Every item from number `first` on, over as many passes as it takes."""
        number, epoch = 0, 0
        if self.items_per_epoch:
            epoch, number = divmod(first, self.items_per_epoch)
            number, first = epoch * self.items_per_epoch, first
        while True:
            seed_everything(self.seed, epoch, EPOCH_STREAM)
            start_of_pass = number
            for item in self.data:
                if number >= first:
                    yield item
                number += 1
            if number == start_of_pass:
                raise UserError("data has no items: the iterable ended before its first one.")
            epoch += 1


def _total_updates(config: Config, batches: UserBatches) -> int:
    duration = Duration.of(config)
    assert duration is not None, "the length was asked for when the configuration was loaded"
    if duration.unit == "steps":
        return int(duration.value)
    if duration.unit == "tokens":
        raise UserError(
            "training.max_tokens: the tokens of your own batches are not known; set max_steps or num_train_epochs."
        )
    if batches.steps_per_epoch is None:
        raise UserError(
            "training.num_train_epochs: your data has no len(), so an epoch's length is not known; set max_steps."
        )
    return math.ceil(duration.value * batches.steps_per_epoch)
