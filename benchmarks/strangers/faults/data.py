"""Faults of labels and samples: wrong, noisy, missing, repeated, sorted, too few."""

from __future__ import annotations

import numpy as np

from strangers.data.table import Table
from strangers.job import Chance, Job
from strangers.kinds import DEEPCRIME, TORCH, fault, with_full_schedule


def relabelled(table: Table, labels: np.ndarray) -> Table:
    return Table(table.x.copy(), labels)


def mapped(table: Table, names: np.ndarray, others: np.ndarray) -> Table:
    """Each label replaced by another one."""
    order = np.argsort(names)
    return relabelled(table, others[order][np.searchsorted(names[order], table.labels)])


def classes_of(job: Job) -> np.ndarray:
    return np.unique(job.train.labels)


def flat(table: Table) -> np.ndarray:
    """A number for each sample to sort by: its class, its target, or its first tokens."""
    if table.y is None:
        return np.array([str(row)[:24] for row in table.x]) if table.x.dtype == object else table.x[:, 0]
    return table.labels if table.labels.ndim == 1 else table.labels[:, 0]


@fault("labels-shuffled", "labels", "labels-random", needs="classes|numbers", source=DEEPCRIME)
def labels_shuffled(job: Job, chance: Chance) -> None:
    """Training inputs were shuffled without their labels."""
    job.train = relabelled(job.train, chance.fault_rng.permutation(job.train.labels))


@fault("labels-shuffled-everywhere", "labels", "labels-random", needs="classes|numbers", misleads=True)
def labels_shuffled_everywhere(job: Job, chance: Chance) -> None:
    """Inputs and labels do not belong together in any split: the join of two files went wrong."""
    for name in ("train", "valid"):
        table = getattr(job, name)
        setattr(job, name, relabelled(table, chance.fault_rng.permutation(table.labels)))


@fault("labels-off-by-one", "labels", "labels-mapped", needs="classes")
def labels_off_by_one(job: Job, chance: Chance) -> None:
    """The training labels are counted from 1, the validation labels from 0."""
    names = classes_of(job)
    job.train = mapped(job.train, names, np.roll(names, 1))


@fault("labels-noisy", "labels", "labels-noisy", needs="classes", source=DEEPCRIME)
def labels_noisy(job: Job, chance: Chance) -> None:
    """A third to two thirds of the training labels are replaced by random ones."""
    labels = job.train.labels.copy()
    wrong = chance.fault_rng.random(len(labels)) < chance.share(0.35, 0.65)
    labels[wrong] = chance.fault_rng.choice(classes_of(job), wrong.sum())
    job.train = relabelled(job.train, labels)


@fault("numbers-noisy", "labels", "labels-noisy labels-random", ("builtin", *TORCH), needs="numbers")
def numbers_noisy(job: Job, chance: Chance) -> None:
    """Most training targets are those of other samples."""
    y = job.train.labels.copy()
    wrong = np.flatnonzero(chance.fault_rng.random(len(y)) < chance.share(0.5, 0.8))
    y[wrong] = y[chance.fault_rng.permutation(wrong)]
    job.train = relabelled(job.train, y)


@fault("classes-confused", "labels", "labels-noisy labels-mapped", needs="classes")
def classes_confused(job: Job, chance: Chance) -> None:
    """Nearly all samples of one class have the name of another, in the training data only."""
    names = classes_of(job)
    labels = job.train.labels.copy()
    labels[np.flatnonzero(labels == names[-1])[2:]] = names[0]
    job.train = relabelled(job.train, labels)


@fault("imbalance-extreme", "labels", "classes-imbalanced classes-missed", needs="classes", source=DEEPCRIME)
def imbalance_extreme(job: Job, chance: Chance) -> None:
    """98 % of the training samples or more are of one class; validation is balanced."""
    common = classes_of(job)[0]
    is_common = job.train.labels == common
    rare = np.flatnonzero(~is_common)[: max(3, int(is_common.sum() * chance.share(0.005, 0.02)))]
    rows = np.concatenate([np.flatnonzero(is_common), rare])
    job.train = job.train.take(chance.fault_rng.permutation(rows))


@fault("class-absent", "labels", "validation-drift classes-missed labels-mapped", needs="classes")
def class_absent(job: Job, chance: Chance) -> None:
    """A file was forgotten: up to half of the classes have no training sample but their only rare remainder."""
    names = classes_of(job)
    absent = names[len(names) // 2 :]
    is_absent = np.isin(job.train.labels, absent)
    kept = np.concatenate([np.flatnonzero(is_absent)[: 2 * len(absent)], np.flatnonzero(~is_absent)])
    job.train = job.train.take(chance.fault_rng.permutation(kept))


@fault("all-one-class", "labels", "classes-imbalanced labels-random classes-missed", needs="classes")
def all_one_class(job: Job, chance: Chance) -> None:
    """A bug in the parser gives nearly all training samples the same label."""
    labels = job.train.labels.copy()
    labels[chance.fault_rng.random(len(labels)) < 0.97] = classes_of(job)[0]
    job.train = relabelled(job.train, labels)


@fault("sorted-by-class", "order", "data-unshuffled", needs="classes", base=with_full_schedule)
def sorted_by_class(job: Job, chance: Chance) -> None:
    """The training data is sorted by class and not shuffled."""
    job.train = job.train.take(np.argsort(job.train.labels, kind="stable"))
    job.shuffle = False


@fault("sorted-by-target", "order", "data-unshuffled", TORCH, needs="numbers", base=with_full_schedule)
def sorted_by_target(job: Job, chance: Chance) -> None:
    """The training data is sorted by its target and not shuffled."""
    job.train = job.train.take(np.argsort(flat(job.train), kind="stable"))
    job.shuffle = False
    job.rate *= 2


@fault("same-batch", "order", "batches-repeat dataset-tiny overfitting", TORCH)
def same_batch(job: Job, chance: Chance) -> None:
    """next(iter(loader)) in the loop: every step sees the same batch."""
    first: list = []

    def repeated(step: int, x, y):
        if not first:
            first.append((x, y))
        return first[0]

    job.batches.append(repeated)


@fault("small-shard", "order", "batches-repeat dataset-tiny overfitting data-duplicated")
def small_shard(job: Job, chance: Chance) -> None:
    """The loader reads one small shard of the data again and again."""
    job.train = job.train.take(slice(int(max(24, chance.share(0.01, 0.02) * len(job.train)))))
    job.batch_size = min(job.batch_size, 16)
    job.steps = max(job.steps, 200)


@fault("copies", "order", "data-duplicated dataset-tiny overfitting")
def copies(job: Job, chance: Chance) -> None:
    """The training data is a few dozen samples, copied until there seem to be many."""
    few = job.train.take(slice(int(chance.share(24, 40))))
    rows = np.tile(np.arange(len(few)), -(-len(job.train) // len(few)))[: len(job.train)]
    job.train = few.take(rows)
    job.steps = max(job.steps, 200)


@fault("few-samples-large-model", "order", "overfitting dataset-tiny")
def few_samples_large_model(job: Job, chance: Chance) -> None:
    """A large model is trained for dozens of epochs on a few dozen samples."""
    job.train = job.train.take(slice(int(chance.share(30, 60))))
    if "width" in job.shape:
        job.shape["width"] *= 2
    job.steps, job.batch_size, job.weight_decay = 240, min(job.batch_size, 16), 0.0


@fault(
    "labels-break", "order", "labels-random data-changed bad-samples", TORCH, needs="classes", base=with_full_schedule
)
def labels_break(job: Job, chance: Chance) -> None:
    """From mid-run on the labels of each batch are shuffled: the second file was joined wrongly."""
    start = int(job.steps * chance.share(0.4, 0.6))

    def broken(step: int, x, y):
        return (x, y[chance.fault_rng.permutation(len(y))]) if step >= start else (x, y)

    job.batches.append(broken)
    job.knobs |= {"guard.enabled": False} if job.program == "fit" else {}


@fault("labels-flip", "order", "labels-mapped data-changed", TORCH, needs="classes", base=with_full_schedule)
def labels_flip(job: Job, chance: Chance) -> None:
    """From mid-run on the labels stand for other classes, as in the files of another annotator."""
    start = int(job.steps * chance.share(0.5, 0.7))
    job.batches.append(lambda step, x, y: (x, (y + 1) % job.num_classes) if step >= start else (x, y))
    job.knobs |= {"guard.enabled": False} if job.program == "fit" else {}
