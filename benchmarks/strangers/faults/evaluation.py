"""Faults of validation: overlap, another distribution, other labels, wrong metrics, the wrong mode."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from strangers.data.table import Table, objects
from strangers.data.tokens import FIRST
from strangers.faults.data import classes_of, mapped
from strangers.job import Chance, Job
from strangers.kinds import CODE, TORCH, fault


def _remembers(job: Job, chance: Chance) -> None:
    """So few samples and so many epochs that training data is known by heart."""
    job.train = job.train.take(slice(min(len(job.train), 10 * job.batch_size, 240)))
    job.batch_size = min(job.batch_size, 16)
    job.steps = 240
    job.schedule = "constant"


@fault("valid-is-train", "validation", "evaluation-on-train", misleads=True, base=_remembers)
def valid_is_train(job: Job, chance: Chance) -> None:
    """Evaluation is on the training data."""
    job.valid = job.train.take(slice(len(job.valid)))


@fault("valid-overlaps", "validation", "evaluation-on-train", misleads=True, base=_remembers)
def valid_overlaps(job: Job, chance: Chance) -> None:
    """Most validation samples are in the training data as well: the split was made after copying."""
    count = int(len(job.valid) * chance.share(0.6, 0.9))
    job.train = job.train.joined(job.valid.take(slice(count)))


@fault("valid-elsewhere", "validation", "validation-drift", misleads=True)
def valid_elsewhere(job: Job, chance: Chance) -> None:
    """Validation samples come from another source: other symbols, other ranges."""
    table = job.valid
    if table.x.dtype == object:
        table.x = objects([str(text).swapcase()[::-1] for text in table.x])
    elif table.x.dtype.kind == "i":
        table.x = np.where(table.x >= FIRST, FIRST + (table.x - FIRST + 7) % (job.vocab - FIRST), table.x)
    else:
        noise = chance.fault_rng.normal(size=table.x.shape)
        table.x = (1.5 * table.x + 1.5 * noise + 1).astype(np.float32)


@fault("valid-preprocessed", "validation", "preprocessing-differs validation-drift", TORCH, misleads=True)
def valid_preprocessed(job: Job, chance: Chance) -> None:
    """Validation inputs are not preprocessed as training inputs are: not normalized, or cut and padded elsewhere."""
    table = job.valid
    if table.x.dtype.kind == "i":
        table.x = np.roll(table.x, 1, axis=1) if job.task == "seq2seq" else np.where(table.x >= FIRST, table.x - 2, 1)
    else:
        table.x = (table.x * chance.times(8, 60) + chance.share(2, 10)).astype(np.float32)


@fault("valid-labels-mapped", "validation", "labels-mapped", needs="classes", misleads=True)
def valid_labels_mapped(job: Job, chance: Chance) -> None:
    """The labels of the validation split were numbered anew: they stand for other classes."""
    names = classes_of(job)
    job.valid = mapped(job.valid, names, np.roll(names, chance.fault.randrange(1, len(names))))


@fault(
    "valid-labels-shuffled",
    "validation",
    "labels-mapped labels-random validation-drift",
    needs="classes",
    misleads=True,
)
def valid_labels_shuffled(job: Job, chance: Chance) -> None:
    """Validation inputs and labels do not belong together; training data is right."""
    job.valid = Table(job.valid.x, chance.fault_rng.permutation(job.valid.labels))


@fault("valid-handful", "validation", "evaluation-noisy", misleads=True)
def valid_handful(job: Job, chance: Chance) -> None:
    """Evaluation is on four to eight samples: its score is chance."""
    job.valid = job.valid.take(slice(chance.fault.randint(3, 6)))
    job.eval_every = max(5, job.eval_every // 4)


@fault("valid-one-class", "validation", "validation-drift classes-unjudged", needs="classes", misleads=True)
def valid_one_class(job: Job, chance: Chance) -> None:
    """The split was made of sorted data: validation has a single class, of which training has nothing."""
    last = classes_of(job)[-1]
    held = job.train.labels == last
    job.valid = job.valid.joined(job.train.take(held))
    job.valid = job.valid.take(job.valid.labels == last)
    few = np.flatnonzero(held)[:2]
    job.train = job.train.take(np.concatenate([np.flatnonzero(~held), few]))


# The mode and the metric


class AlwaysDropout(nn.Dropout):
    """F.dropout(x) without training=self.training."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(input, self.p, training=True)


def _with_dropout(job: Job, chance: Chance) -> None:
    job.shape["dropout"] = 0.3


@fault(
    "dropout-in-evaluation", "mode", "dropout-in-evaluation", CODE, needs="dropout", base=_with_dropout, misleads=True
)
def dropout_in_evaluation(job: Job, chance: Chance) -> None:
    """Dropout stays on in evaluation: model.eval() does not reach it."""
    rate = chance.share(0.4, 0.6)

    def change(network: nn.Module) -> None:
        for module in list(network.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Dropout):
                    setattr(module, name, AlwaysDropout(rate))

    job.surgery.append(change)


@fault("batchnorm-stale", "mode", "batchnorm-statistics", ("fit", "loop"), needs="batchnorm")
def batchnorm_stale(job: Job, chance: Chance) -> None:
    """Running statistics of batch norm hardly follow (momentum 1e-4): evaluation uses those of the start."""
    momentum = chance.times(1e-5, 1e-3)

    def change(network: nn.Module) -> None:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.momentum = momentum

    job.surgery.append(change)
    if not job.batches:
        job.everywhere(lambda table: Table((4 * table.x + 3).astype(np.float32), table.y))


@fault("batchnorm-batch-of-two", "mode", "batch-small batchnorm-statistics", ("fit", "loop"), needs="batchnorm")
def batchnorm_batch_of_two(job: Job, chance: Chance) -> None:
    """Batch norm is trained with batches of two: its statistics are noise."""
    job.batch_size, job.schedule = 2, "constant"


@fault("metric-wrong-axis", "metric", "metric-flat", ("huggingface", "loop"), needs="classes", misleads=True)
def metric_wrong_axis(job: Job, chance: Chance) -> None:
    """Accuracy is computed from the argmax over samples instead of classes."""

    def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        guessed = outputs.argmax(0)
        return guessed[: len(targets)] == targets[: len(guessed)]

    job.metric = wrong


@fault(
    "metric-misaligned", "metric", "metric-flat labels-mapped", ("huggingface", "loop"), needs="classes", misleads=True
)
def metric_misaligned(job: Job, chance: Chance) -> None:
    """Predictions are compared with the labels of the next samples."""
    job.metric = lambda outputs, targets: outputs.argmax(-1) == targets.roll(1)


@fault(
    "evaluates-untrained-copy", "metric", "evaluation-other-model metric-flat", ("loop",), is_plain=True, misleads=True
)
def evaluates_untrained_copy(job: Job, chance: Chance) -> None:
    """Evaluation uses a copy of the model that was made before training."""
    job.evaluates_copy = True
