"""A user's own module and iterable in the same loop, with the same run folder, resume and tracking."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import ConfigError, Problem, UserError
from trainbook.guard.shuffling import is_shuffled
from trainbook.knobs import Loaded
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.derive import Duration
from trainbook.knobs.own_module import NAMES_OF_EVAL_DATA, applies_to_fit, instead_of
from trainbook.loop.batch_size import first_dimensions, rows_of
from trainbook.loop.class_facts import ClassFacts
from trainbook.loop.dropout_calls import DropoutCalls
from trainbook.loop.job import Job, build_state
from trainbook.loop.objective import LossFacts
from trainbook.loop.output_facts import OutputFacts
from trainbook.loop.sample_facts import SampleFacts
from trainbook.loop.state import seed_everything
from trainbook.loop.step_metrics import left_as_it_was
from trainbook.loop.structure import EMBEDDINGS, matrix_facts, structure_facts
from trainbook.precision import Precision
from trainbook.runs import RunFolder
from trainbook.tasks import StepBatch, to_device
from trainbook.tasks.adapters import load_saved_state
from trainbook.tasks.task import evaluating

LossFunction = Callable[[nn.Module, Any], Tensor]
CountFunction = Callable[[Any], int]

AGAIN = 1  # the seed of a batch that is evaluated a second time
EPOCH_STREAM, ITEM_STREAM = 1, 2  # keep the seeds of epochs and items apart from those of steps


def must_not_be_eval_data(keywords: Iterable[str]) -> None:
    """Validation data under the name that another trainer has for it: told before it is read as the value of a knob."""
    for name in keywords:
        if name in NAMES_OF_EVAL_DATA:
            raise UserError(f"{name}: fit has no such argument. Did you mean eval_data?")


def must_be_values(knobs: Mapping[str, Any]) -> None:
    """An optimizer or a scheduler is built by `fit` itself, from knobs."""
    for name, value in knobs.items():
        kind = value if isinstance(value, type) else type(value)
        if issubclass(kind, Optimizer | LRScheduler):
            what = "optimizer" if issubclass(kind, Optimizer) else "learning rate schedule"
            raise UserError(
                f"{name}: fit builds the {what} itself, from knobs such as optimizer='sgd', learning_rate=0.1 and "
                f"schedule='cosine', but got {kind.__name__} of PyTorch. To keep your own, train in your own loop, "
                f"with trainbook.watch and trainbook.Guard."
            )


def must_apply_to_fit(loaded: Loaded) -> None:
    """Refuse knobs that the caller set and that have no effect in `fit`."""
    problems = [
        Problem(origin.place, path, "has no effect on a module and data of your own.", instead_of(path))
        for path, origin in loaded.origins.items()
        if origin.is_the_users and loaded.get(path) != by_path()[path].field.default and not applies_to_fit(path)
    ]
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class OwnTraining:
    """What a caller of `fit` brings along."""

    model: nn.Module
    data: Iterable[Any]
    loss: LossFunction
    count_targets: CountFunction | None = None
    eval_data: Iterable[Any] | None = None


class FitJob(Job):
    """The training of a user's own module. Each item of the data is a micro-batch, `gradient_accumulation_steps` of
    which make a step.

    Without `count_targets`, `loss` returns a mean: every item of a step weighs the same, and in an evaluation each
    weighs as much as it has samples, where these can be counted. With it, `loss` returns a sum and the step divides by
    the targets of all its items, which is exact for items of unequal size.
    """

    def __init__(self, config: Config, own: OwnTraining, device: torch.device) -> None:
        if own.eval_data is not None:
            _must_be_readable_again(own.eval_data, "eval_data")
            _must_be_best_by_loss(config)
        accumulation = config.batch.gradient_accumulation_steps or 1
        batches = UserBatches(own.data, accumulation, own.count_targets, config.training.seed)
        if batches.counted == "samples" and own.eval_data is not None and not sizes_are_known(own.eval_data):
            batches.counted = "batches"  # one unit for both
        self.config, self.own, self.batches, self.device = config, own, batches, device
        self.has_validation = own.eval_data is not None
        self.total_updates = _total_updates(config, batches)
        self.steps_per_epoch = batches.steps_per_epoch or Fraction(self.total_updates)
        self.data_fingerprint = f"{batches.items_per_epoch} items" if batches.items_per_epoch else ""
        self.counted = batches.counted
        self._sample_facts, self._is_evaluated_twice = SampleFacts(), False
        self._noted_step = 0  # the newest whose samples were noted
        self._loss_facts = LossFacts(is_mean=own.count_targets is not None)  # a sum is divided by them
        precision = Precision(config.precision, device, batch=config.batch)
        own.model.to(device=device, dtype=precision.weight_dtype)
        self._output_facts, self._class_facts = OutputFacts(own.model), ClassFacts(own.model)
        self.state = build_state(config, own.model, self._losses, self.total_updates, precision, device)

    def close(self) -> None:
        """Leave the user's model as it came: without hooks."""
        self._output_facts.close()
        self._class_facts.close()

    def feed(self, start: int, stop: int) -> Generator[StepBatch]:
        for number, step in enumerate(self.batches.steps(start, stop), start=start + 1):
            # Later passes bring the same samples again, and so does a rollback.
            is_new = self.batches.passes == 0 and number > self._noted_step
            for item in step.micro_batches if is_new else ():
                self._sample_facts.note_training(item)
            self._noted_step = max(self._noted_step, number)
            yield step

    @property
    def is_shuffled(self) -> bool | None:
        return is_shuffled(self.own.data)

    def _losses(self, micro_batch: Any) -> dict[str, Tensor]:
        value = self.own.loss(self.own.model, micro_batch)
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss(model, batch) must return a tensor with a single number, but got {shape}.")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise UserError("loss(model, batch) must depend on the model's parameters, but it has no gradient.")
        self._loss_facts.note(value)
        return {"loss": value}

    def facts(self) -> dict[str, Any]:
        model, decayed = self.own.model, {"num_decayed": self._num_decayed}
        return {**structure_facts(model), **matrix_facts(model), **decayed, "in_order": self.is_shuffled is False}

    @property
    def notices(self) -> list[str]:
        told, decay = super().notices, self.config.optimizer.weight_decay
        # That the default does nothing need not be told; that a chosen value does nothing must.
        if decay and decay != Config().optimizer.weight_decay and not self._num_decayed:
            has_embeddings = any(isinstance(part, EMBEDDINGS) for part in self.own.model.modules())
            way_out = " With decay_embeddings=True, it shrinks embeddings as well." if has_embeddings else ""
            told = [*told, f"weight_decay={decay:g} has no effect: this model has no matrices to shrink.{way_out}"]
        return told

    @property
    def _num_decayed(self) -> int:
        """Parameters that weight decay shrinks: not those of norms, biases and, unless asked for, embeddings."""
        groups = self.state.optimizer.param_groups
        return sum(each.numel() for group in groups if group["weight_decay"] for each in group["params"])

    def facts_seen(self) -> dict[str, Any]:
        of_outputs = {**self._output_facts.read(), **self._class_facts.read()}
        of_losses = self._loss_facts.read()
        self._sample_facts.note_loss(of_losses)
        return {**of_losses, **self._sample_facts.read(), **of_outputs}

    def _evaluate_again(self, item: Any, first: float) -> None:
        """Once in a run: whether the same batch has the same loss twice."""
        self._is_evaluated_twice = True
        if any(part.training for part in self.own.model.modules()):
            self._sample_facts.note_evaluated_twice(first, first, is_in_training_mode=True)
            return
        with left_as_it_was(self.own.model, self.device), DropoutCalls(self.own.model) as dropout:
            torch.manual_seed(AGAIN)
            second = float(self._losses(to_device(item, self.device))["loss"])
        self._sample_facts.note_evaluated_twice(first, second, is_in_training_mode=False, has_dropped=dropout.seen)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        model, data, count_targets = self.own.model, self.own.eval_data, self.own.count_targets
        assert data is not None
        losses: list[float] = []
        sizes: list[Size] = []
        targets = 0
        count = length_of(data)
        of_all = "" if count is None else f"/{count}"
        with evaluating(model):
            for number, item in enumerate(data, start=1):
                self.show_activity(f"evaluating {number}{of_all}")
                with self.state.precision.autocast():
                    losses.append(float(self._losses(to_device(item, self.device))["loss"]))
                    if number == 1 and not self._is_evaluated_twice:
                        self._evaluate_again(item, losses[0])
                self._sample_facts.note_validation(item)
                targets += int(count_targets(item)) if count_targets else 1
                sizes.append(_size(item, data))
        if targets == 0:
            raise UserError("eval_data has no targets, so there is no loss to compute.")
        samples = sum(size.shown for size in sizes)
        shown = samples if self.counted == "samples" else targets
        if count_targets is not None:
            return {"loss": math.fsum(losses) / targets, "targets": shown}
        weights = _weights(sizes)
        mean = math.fsum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
        return {"loss": mean, "targets": shown}


def _must_be_best_by_loss(config: Config) -> None:
    metric = config.evaluation.metric_for_best_model
    if metric != "loss":
        raise UserError(f"evaluation.metric_for_best_model: must be loss for a module of your own, but got {metric}.")


def load_weights(model: nn.Module, run: RunFolder) -> None:
    """Load the weights of a finished run into a module: a script that is run again gets its trained model."""
    found = CheckpointStore(run.checkpoints, read_only=True).load("latest", parts=("model",))
    if found is not None:
        load_saved_state(model, found.state["model"])


class UserBatches:
    """Makes steps from an iterable that is read again for each epoch.

    Each pass and each item is read under a seed of its own (Python's, NumPy's and PyTorch's), so that a shuffling or
    augmenting loader gives the same items again: a resumed run goes through those it has already used and continues
    with the next one.
    """

    def __init__(self, data: Iterable[Any], accumulation: int, count_targets: CountFunction | None, seed: int) -> None:
        _must_be_readable_again(data, "data")
        self.data, self.accumulation, self.count_targets, self.seed = data, accumulation, count_targets, seed
        self.items_per_epoch = length_of(data)
        self.passes = 0  # over the data, before the one under way
        # What progress is shown in. Without `count_targets` each item weighs the same, however many samples it has.
        self.counted = "targets" if count_targets else "samples" if sizes_are_known(data) else "batches"

    @property
    def steps_per_epoch(self) -> Fraction | None:
        return Fraction(self.items_per_epoch, self.accumulation) if self.items_per_epoch else None

    def steps(self, start: int, stop: int) -> Generator[StepBatch]:
        items = self._items(start * self.accumulation)
        for step in range(start, stop):
            yield self._step([next(items) for _ in range(self.accumulation)], step + 1)

    def _step(self, items: list[Any], steps_done: int) -> StepBatch:
        targets = sum(int(self.count_targets(item)) for item in items) if self.count_targets else len(items)
        epoch = float(steps_done / self.steps_per_epoch) if self.steps_per_epoch else 0.0
        shown = sum(size_of_batch(item, self.data) for item in items) if self.counted == "samples" else targets
        return StepBatch(items, num_targets=targets, num_tokens=shown, epoch=epoch)

    def _items(self, first: int) -> Iterator[Any]:
        """All items from number `first` on, over as many passes as needed."""
        number, epoch = 0, 0
        if self.items_per_epoch:
            epoch = first // self.items_per_epoch
            number = epoch * self.items_per_epoch
        while True:
            start_of_pass, self.passes = number, epoch
            seed_everything(self.seed, epoch, EPOCH_STREAM)
            self._seed_own_generators()
            items = iter(self.data)
            while True:
                seed_everything(self.seed, number, ITEM_STREAM)
                try:
                    item = next(items)
                except StopIteration:
                    break
                if number >= first:
                    yield item
                number += 1
            self._check_pass(number - start_of_pass)
            epoch += 1

    def _seed_own_generators(self) -> None:
        """A DataLoader may shuffle with its own generator, which global seeds do not affect."""
        for owner in (self.data, getattr(self.data, "sampler", None), getattr(self.data, "batch_sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(torch.initial_seed())

    def _check_pass(self, num_items: int) -> None:
        if num_items == 0:
            raise UserError("data has no items: the iterable ended before its first one.")
        if self.items_per_epoch is not None and num_items != self.items_per_epoch:
            raise UserError(
                f"data must yield as many items per pass as its len() says, {self.items_per_epoch}, but yielded "
                f"{num_items}: a resumed run could not find its position."
            )


def length_of(data: Iterable[Any]) -> int | None:
    """Of an iterable that knows it: a DataLoader of a stream has a length that raises a TypeError."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


def sizes_are_known(data: Iterable[Any]) -> bool:
    """Whether the samples of its batches can be counted: of a list by its first one, of a DataLoader by its batch size.
    Nothing is read of any other iterable, which may do more than give an item."""
    if isinstance(data, Sequence):
        return len(data) > 0 and rows_of(data[0]) is not None
    return _batch_size(data) is not None


@dataclass(frozen=True)
class Size:
    """Of an item of the data."""

    shown: int  # samples, as progress is shown in them
    rows: int | None  # the first dimension that all its tensors share
    is_batch: bool  # these are samples for certain: a DataLoader says so, or several tensors share them


def _size(item: Any, data: Iterable[Any]) -> Size:
    dimensions = list(first_dimensions(item))
    rows = dimensions[0] if len(set(dimensions)) == 1 else None
    shown = size_of_batch(item, data)
    if _batch_size(data) is not None:
        return Size(shown, shown, is_batch=True)
    return Size(shown, rows, is_batch=rows is not None and len(dimensions) > 1)


def _weights(sizes: Sequence[Size]) -> list[int]:
    """What each item's mean weighs in the mean over all samples. A single tensor may be one sample whose length is its
    first dimension: rows of such items count only if all but the last are equal, as batches are."""
    rows = [size.rows for size in sizes if size.rows is not None]
    are_equal = len(set(rows[:-1])) <= 1 and rows[-1:] <= rows[:1]
    if len(rows) < len(sizes) or not sum(rows) or not (are_equal or all(size.is_batch for size in sizes)):
        return [1] * len(sizes)
    return rows


def size_of_batch(item: Any, data: Iterable[Any]) -> int:
    """Samples of a batch, whose iterable says how many there are at most if it is a DataLoader."""
    rows, most = rows_of(item), _batch_size(data)
    if most is not None:
        return most if rows is None else min(rows, most)
    return 1 if rows is None else rows


def _batch_size(data: Iterable[Any]) -> int | None:
    size = data.batch_size if isinstance(data, DataLoader) else None
    return size if isinstance(size, int) else None


def _must_be_readable_again(data: Iterable[Any], name: str) -> None:
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        hint = f" To read {name} from a generator function, put it into an object whose __iter__ calls it."
        raise UserError(
            f"{name} must be an iterable of batches (a list, a DataLoader, an object with __iter__), but got "
            f"{type(data).__name__}.{hint if callable(data) else ''}"
        )
    if isinstance(data, Iterator):
        raise UserError(
            f"{name} must be an iterable that can be restarted (a list, a DataLoader, an object with __iter__), but "
            f"got {type(data).__name__}, which is exhausted after one pass and could not be resumed."
        )


def _total_updates(config: Config, batches: UserBatches) -> int:
    duration = Duration.of(config)
    assert duration is not None, "the length was asked for when the configuration was loaded"
    if duration.unit == "steps":
        return int(duration.value)
    if duration.unit == "tokens":
        raise UserError(
            "training.max_tokens: the tokens of your own batches are not known; set max_steps or num_train_epochs."
        )
    if batches.items_per_epoch == 0:
        raise UserError("data has no items: its len() is 0.")
    if batches.steps_per_epoch is None:
        raise UserError(
            "training.num_train_epochs: your data has no len(), so an epoch's length is not known; set max_steps."
        )
    assert batches.items_per_epoch is not None
    return duration.steps(batches.items_per_epoch, batches.accumulation, 1)
