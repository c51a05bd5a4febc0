"""A job: everything that one training needs, whoever put it together (a configuration, or a user's own module)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.guard import Judge
from trainbook.knobs.config import Config
from trainbook.knobs.derive import warmup_steps
from trainbook.knobs.scaling import Scaling
from trainbook.loop.evaluation_record import EvaluationRecord
from trainbook.loop.shortage import Kind
from trainbook.loop.state import RateTable, TrainState
from trainbook.models import named_roles
from trainbook.optim import build_optimizer, parameter_groups, shares
from trainbook.parallel import Strategy
from trainbook.precision import Precision
from trainbook.tasks import StepBatch


class Log(Protocol):
    """Writes an event."""

    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class TrainingSamples(Protocol):
    """The training samples of a run, by their ids."""

    num_samples: int

    def of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the batch of this step (1 is the first), and the epoch of each."""
        ...

    def own_of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of this rank's share of the batch."""
        ...

    def losses(self, ids: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """The loss of each sample by itself under the current model, in nats per target."""
        ...

    def classes(self, ids: np.ndarray) -> np.ndarray | None:
        """The class of each sample; None where a sample has no single class."""
        ...

    def of_class(self, number: int, count: int, without: np.ndarray) -> np.ndarray:
        """The ids of at most so many samples of a class, from all over the data, none of them excluded ones."""
        ...

    def not_finite(self, sample_id: int, epoch: int) -> str:
        """The inputs of a sample that hold NaN or an infinity; empty: none does."""
        ...

    def entry(
        self, sample_id: int, step: int, reason: str, loss: float | None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        """A line of the quarantine file: the sample's source and the beginning of its text. `is_quick`: without the
        line of the source where it would take seconds to count."""
        ...


class Job:
    """Everything that one training needs: `ConfiguredJob` from a configuration, `FitJob` for a module of the user's.

    A training without validation data is never asked to `evaluate`. What a form of job has no need of does nothing.
    """

    counted = "tokens"  # what `tokens` in rows counts: of a user's own data, its samples, batches or targets
    base_step: int | None = None  # of an earlier run's checkpoint, if its weights are those begun with
    left_out: Sequence[str] = ()  # sentences: what filters and an earlier quarantine leave out
    samples: TrainingSamples | None = None  # None: the data is the user's own, and its samples have no names
    # To a terminal: what takes its time just now.
    show_activity: Callable[[str], None] = staticmethod(lambda text: None)
    evaluation_record: EvaluationRecord | None = None  # of the last evaluation
    label_names: tuple[str, ...] = ()  # of a classifier
    stop_at: int | None = None  # pause after this step; the schedule is that of the whole run

    config: Config
    state: TrainState
    total_updates: int
    steps_per_epoch: Fraction  # not always whole: batches run on over the end of an epoch; a float would miss ends
    data_fingerprint: str
    has_validation: bool

    def feed(self, start: int, stop: int) -> Generator[StepBatch]:
        """The batches of steps [start, stop)."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """The metrics of the validation data under the current model."""
        raise NotImplementedError

    @property
    def is_shuffled(self) -> bool | None:
        """Whether batches are drawn at random, so that no healthy stretch of them is different from the rest. False:
        they come in a fixed order. None: nobody can tell."""
        return self.config.data.shuffle

    def probe(self, batch: StepBatch, for_leaks: bool) -> dict[str, Any]:
        """What a watched step measures of the model; `for_leaks`: also whether it sees what it has to guess."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What is known of model and data before the first step."""
        return {}

    def facts_seen(self) -> dict[str, Any]:
        """What is known since the last call, of data that is not looked at before the first step. At logging steps."""
        return {}

    def write_files(self, folder: Path) -> None:
        """Write what readers of the run need, such as its tokenizer."""

    def halve_batch(self) -> int | None:
        """Compute half as many rows at a time from now on: the new number; None: it is one already."""
        return None

    def halve_evaluation(self) -> int | None:
        """The same for evaluations."""
        return None

    def limit_rows(self, kind: Kind, rows: int) -> None:
        """Compute at most so many rows at a time: an earlier start ran out of memory with more."""

    @property
    def last_step(self) -> int:
        """The last step if no update is skipped."""
        return self.total_updates if self.stop_at is None else min(self.stop_at, self.total_updates)

    @property
    def notices(self) -> list[str]:
        """What was not known before the data was read, worth a line."""
        asked, warmup = self.config.schedule.warmup_steps, warmup_steps(self.config, self.total_updates)
        if asked is None or asked == warmup:
            return []
        updates = f"{self.total_updates:,} {'update' if self.total_updates == 1 else 'updates'}"
        return [f"schedule.warmup_steps {asked:,} -> {warmup:,}: the run has {updates}."]

    @property
    def eval_steps(self) -> int:
        return self.config.evaluation.eval_steps or max(1, math.ceil(self.total_updates / 10))

    def evaluation_is_due(self, step: int) -> bool:
        if not self.has_validation or self.config.evaluation.eval_strategy == "no":
            return False
        if self.config.evaluation.eval_strategy == "epoch":
            return math.floor(step / self.steps_per_epoch) > math.floor((step - 1) / self.steps_per_epoch)
        return step % self.eval_steps == 0

    def checkpoint_is_due(self, step: int) -> bool:
        save_steps = self.config.checkpoint.save_steps
        if save_steps is not None:
            return step % save_steps == 0
        # With each evaluation; where those are rare or none, still ten times in a run.
        by_steps = self.has_validation and self.config.evaluation.eval_strategy == "steps"
        return self.evaluation_is_due(step) or (not by_steps and step % self.eval_steps == 0)


def _judge(config: Config, precision: Precision, strategy: Strategy, device: torch.device) -> Judge:
    knobs = config.guard
    return Judge(
        device,
        # fp16 overflows are part of its loss scaling: those updates are skipped whatever the guard is told.
        enabled=knobs.enabled or precision.scaler is not None or strategy.has_engine,
        threshold=knobs.skip_threshold if knobs.enabled else None,
        window=knobs.window,
    )


def build_state(
    config: Config,
    task: nn.Module,
    losses: Callable[[Any], dict[str, Tensor]],
    total_updates: int,
    precision: Precision,
    device: torch.device,
    strategy: Strategy | None = None,
) -> TrainState:
    """The training state of any module; `losses` gives its named loss sums for a micro-batch."""
    warmup = warmup_steps(config, total_updates)
    rates = RateTable(config.optimizer.learning_rate, shares(config.schedule, total_updates, warmup), device)
    groups = parameter_groups(task, named_roles(task), config.optimizer, Scaling.of(config))
    if not groups:
        raise UserError("the model has nothing to train: none of its parameters requires a gradient.")
    strategy = strategy or Strategy()
    groups = strategy.slices_of(groups)
    for group in groups:
        group["lr"] = rates.times(group["rate_multiplier"])
    saved = task.state_dict()
    task.train()
    return TrainState(
        task=task,
        losses=losses,
        optimizer=build_optimizer(
            groups, config.optimizer, rates.rate, strategy.norms_over_ranks, strategy.size_of_whole
        ),
        rates=rates,
        precision=precision,
        strategy=strategy,
        judge=_judge(config, precision, strategy, device),
        device=device,
        seed=config.training.seed,
        max_grad_norm=config.batch.max_grad_norm,
        parameters=[parameter for group in groups for parameter in group["params"]],
        buffers=[buffer for name, buffer in task.named_buffers() if name in saved],
    )
