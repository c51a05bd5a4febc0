"""What is checked: a configuration with its data, its model and its optimizer, built as training builds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.check.sample import POSITIONS, CheckSample, comparable, read_sample, shrunk
from trainbook.data import Batch, BatchPlan, DataBundle
from trainbook.data import build as build_data
from trainbook.data.sources.records import RecordKind
from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.loop.build import ConfiguredJob, build, request_of
from trainbook.loop.device import choose_device
from trainbook.loop.job import build_state
from trainbook.loop.state import TrainState, seed_everything
from trainbook.parallel import Strategy
from trainbook.precision import Precision
from trainbook.tasks import StepBatch, Task, to_device
from trainbook.tasks.task import evaluating

MARKED: tuple[RecordKind, ...] = ("chat", "tagged")  # records of which only some tokens are learned
ENOUGH = 32  # rows with something to learn: two of the largest batches that are looked at
NOISE = 0.05  # added to weights where a path must not stay unseen because it begins at zero


@dataclass
class CheckSubject:
    asked: Config  # as the user wrote it
    config: Config  # as it is checked
    sample: CheckSample
    built: ConfiguredJob
    device: torch.device
    folder: Path  # for what has to be written, removed afterwards
    is_full: bool
    notes: dict[str, Any] = field(default_factory=dict)  # what one check found and another one needs

    @classmethod
    def of(cls, asked: Config, folder: Path, *, full: bool = False) -> CheckSubject:
        """With `full`, sizes are kept and all data is prepared, in the cache that training uses."""
        request = request_of(asked)
        sample = read_sample(asked, request, None if full else folder, everything=full)
        device = choose_device(asked.training.device) if full else torch.device("cpu")
        try:
            if full:
                config = comparable(asked)
            else:
                config = with_enough_to_learn(asked, request.records, sample, folder / "cache")
            return cls(asked, config, sample, build(config, device), device, folder, full)
        except DataError as error:
            raise DataError(_as_asked(str(error), asked, sample)) from None

    @property
    def data(self) -> DataBundle:
        return self.built.data

    @property
    def task(self) -> Task:
        task: Any = self.built.state.task
        return task

    @cached_property
    def precision(self) -> Precision:
        return Precision(
            self.config.precision,
            self.device,
            batch=self.config.batch,
            has_frozen_weights=self.config.model.lora_rank is not None,
        )

    # Batches

    def batch(self, rows: int, *, packed: bool = False) -> Batch:
        """The first batch that training would make of so many rows, each text in a row of its own unless packed."""
        padding = "packed" if packed else "longest"
        seed, shuffle = self.config.training.seed, self.config.data.shuffle
        plan = BatchPlan(self.data.train, rows, seed, shuffle, padding=padding, micro_batch=rows)
        return plan.batch(0)

    def collated(self, batch: Batch, rows_each: int | None = None) -> StepBatch:
        made = self.task.collate(self.config, self.data, rows_each or batch.num_rows)(batch)
        made.num_rows = batch.num_rows
        return made

    def micro_batch(self, batch: Batch) -> dict[str, Tensor]:
        """All rows at once, on the device."""
        return to_device(self.collated(batch).micro_batches[0], self.device)

    def rows_for(self, most: int) -> int:
        """Fewer rows where the vocabulary is large: logits are most of the work then. Never one alone: it has nobody to
        be compared with."""
        if self.is_full:
            return max(2, min(most, batch_shape(self.config).micro_batch))
        positions = self.config.data.max_seq_length
        affordable = (1 << 24) // (positions * max(1, self.data.tokenizer.vocab_size))
        return max(4, min(most, affordable))

    # The training state

    def state(self, strategy: Strategy | None = None, **optimizer: Any) -> TrainState:
        """Of this model, at its first step; `optimizer` are knobs to change."""
        knobs = self.config.optimizer.model_copy(update=optimizer)
        schedule = self.config.schedule
        if optimizer:  # a rate of our own is meant as it is, from the first step on
            schedule = schedule.model_copy(update={"type": "constant", "warmup_ratio": None, "warmup_steps": None})
        config = self.config.model_copy(update={"optimizer": knobs, "schedule": schedule})
        task = self.task
        total = self.built.total_updates
        return build_state(config, task, lambda entries: task(**entries), total, self.precision, self.device, strategy)

    def losses(self, batch: StepBatch) -> Tensor:
        """The mean training loss over the targets of a batch."""
        total = torch.zeros((), device=self.device)
        for micro_batch in batch.micro_batches:
            sums = self.task(**to_device(micro_batch, self.device))
            total = total + torch.stack([part.float() for part in sums.values()]).sum()
        return total / max(1, batch.num_targets)

    # The model as it is for a while

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Without dropout, and yet with gradients."""
        # The recurrent layers of cuDNN have no gradients in this mode.
        with evaluating(self.task), torch.backends.cudnn.flags(enabled=False):
            yield

    @contextmanager
    def stirred(self) -> Iterator[None]:
        """With some noise in every weight: what begins at zero (the last layer of a branch, an adapter) would hide what
        it passes on."""
        chance = torch.Generator().manual_seed(1)
        with untouched(self.task), torch.no_grad():
            for parameter in self.task.parameters():
                if parameter.is_floating_point():
                    noise = torch.randn(parameter.shape, generator=chance) * NOISE
                    parameter += noise.to(parameter.device, parameter.dtype)
            with torch.enable_grad():
                yield

    def seed(self, step: int = 0) -> None:
        seed_everything(self.config.training.seed, step)


def _as_asked(message: str, asked: Config, sample: CheckSample) -> str:
    """The user's data by its own name, not by that of the sample."""
    for ours, theirs in ((sample.source, None), (sample.validation, asked.data.validation)):
        if ours is not None:
            message = message.replace(str(ours), str(theirs or asked.data.source))
    return message


def with_enough_to_learn(asked: Config, records: RecordKind, sample: CheckSample, cache: Path) -> Config:
    """Shrunk, but no shorter than leaves something to learn in enough rows: of a conversation that is an answer, which
    may stand behind a long question; of tagged words, those that have a tag."""
    assert sample.source is not None

    def cut_at(positions: int) -> Config:
        assert sample.source is not None
        return shrunk(asked, sample.source, sample.validation, cache, sample.has_fields, positions)

    longest = asked.data.max_seq_length
    if records not in MARKED or longest <= POSITIONS:
        return cut_at(POSITIONS)
    enough = [min(ENOUGH, rows) for rows in _usable_rows(cut_at(longest))]
    positions = POSITIONS
    while positions < longest:
        with suppress(DataError):  # nothing at all to learn
            found = _usable_rows(cut_at(positions))
            if len(found) == len(enough) and all(rows >= least for rows, least in zip(found, enough, strict=True)):
                break
        positions *= 2
    return cut_at(positions)


def _usable_rows(config: Config) -> list[int]:
    """Of training, and of validation where there is some."""
    data = build_data(config.data, config.training.seed, request_of(config))
    return [side.num_samples for side in (data.train, data.validation) if side is not None]


def at_length(subject: CheckSubject, positions: int, *, truncation: bool = True) -> DataBundle:
    """The rows that the model is shown, with so many positions."""
    asked, sample = subject.asked, subject.sample
    if subject.is_full or sample.source is None:
        config = subject.config
    else:
        cache = subject.folder / "cache"
        config = shrunk(asked, sample.source, sample.validation, cache, sample.has_fields, positions)
    as_asked = {"vocab_size": asked.data.vocab_size, "max_target_length": asked.data.max_target_length}
    knobs = config.data.model_copy(update={"truncation": truncation, **as_asked})
    return build_data(knobs, config.training.seed, request_of(config.model_copy(update={"data": knobs})))


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Afterwards every number of the module is what it was, and it is in training mode."""
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        module.zero_grad(set_to_none=True)
        module.train()


def with_rows(batch: Batch, rows: np.ndarray) -> Batch:
    """Some samples of a batch that has one in each row, in this order."""
    order = np.asarray(rows)

    def taken(ragged: Any) -> Any:
        if ragged is None:
            return None
        parts = ragged.split()
        return type(ragged).of([parts[row] for row in order])

    return replace(
        batch,
        ids=batch.ids[order],
        epochs=batch.epochs[order],
        tokens=taken(batch.tokens),
        rows=np.arange(len(order)),
        num_rows=len(order),
        targets=taken(batch.targets),
        labels=None if batch.labels is None else batch.labels[order],
        marks=taken(batch.marks),
    )
