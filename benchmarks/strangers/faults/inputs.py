"""Faults of inputs: unscaled, unknown, truncated, leaking, destroyed, broken."""

from __future__ import annotations

import numpy as np
import torch

from strangers.data.table import Table, objects
from strangers.data.tokens import FIRST, LETTERS, UNKNOWN
from strangers.job import Chance, Job
from strangers.kinds import AUTOTRAINER, DEEPCRIME, TORCH, fault, with_full_schedule

FLOATS = ("fit", "loop")


@fault("inputs-unscaled", "inputs", "inputs-unscaled", FLOATS, needs="plain", source=AUTOTRAINER)
def inputs_unscaled(job: Job, chance: Chance) -> None:
    """Inputs are not normalized: some columns are in thousands, others in thousandths."""
    dim = job.train.x.shape[1]
    scale = 10 ** chance.fault_rng.uniform(-3, 3.5, dim)
    offset = scale * chance.fault_rng.uniform(-3, 3, dim)
    job.everywhere(lambda table: Table((table.x * scale + offset).astype(np.float32), table.y))


@fault("inputs-offset", "inputs", "inputs-unscaled", FLOATS, needs="plain|pictures", source=DEEPCRIME)
def inputs_offset(job: Job, chance: Chance) -> None:
    """Inputs have a mean far from 0, as pictures from 0 to 255 and years have."""
    offset, scale = chance.times(100, 1000), chance.times(3, 20)
    job.everywhere(lambda table: Table((table.x * scale + offset).astype(np.float32), table.y))


@fault("targets-unscaled", "inputs", "targets-unscaled", TORCH, needs="numbers")
def targets_unscaled(job: Job, chance: Chance) -> None:
    """Targets are in thousands, far from what the outputs can reach."""
    scale, offset = chance.times(1e3, 1e5), chance.share(1, 5)
    job.everywhere(lambda table: Table(table.x, ((table.labels + offset) * scale).astype(np.float32)))


@fault("tokens-unknown", "inputs", "tokens-unknown", needs="tokens classes|causal")
def tokens_unknown(job: Job, chance: Chance) -> None:
    """The wrong tokenizer: nine of ten tokens are unknown to it."""
    share = chance.share(0.85, 0.95)
    symbols = chance.fault_rng.random(200) < share

    def changed(table: Table) -> Table:
        if table.x.dtype == object:
            lost = {letter for number, letter in enumerate(LETTERS) if symbols[number]}
            return Table(
                objects(["".join("~" if each in lost else each for each in text) for text in table.x]), table.y
            )
        return Table(np.where(symbols[table.x], UNKNOWN, table.x), table.y)

    if job.task == "causal":  # the tokens are the targets, too: what is lost is lost in both
        job.train, job.valid = changed(job.train), changed(job.valid)
    else:
        job.everywhere(changed)


@fault("truncated", "inputs", "text-truncated", needs="tokens classes")
def truncated(job: Job, chance: Chance) -> None:
    """Each text begins with the same boilerplate, and is cut before anything else begins."""
    length = 16
    if job.is_text:
        head = "".join(LETTERS[each] for each in chance.fault_rng.integers(26, size=length))
        job.everywhere(lambda table: Table(objects([head + text for text in table.x]), table.y))
        job.knobs["data.max_seq_length"] = length - 1
    else:
        width = job.train.x.shape[1]
        head = chance.fault_rng.integers(FIRST, FIRST + 20, size=width)
        rest = chance.fault.choice((0, 1))

        def cut(table: Table) -> Table:
            return Table(np.concatenate([np.tile(head, (len(table), 1)), table.x], 1)[:, : width + rest], table.y)

        job.everywhere(cut)


def marked(job: Job, table: Table, marks: np.ndarray) -> Table:
    """The mark of each sample in its input: its class as symbols, or its target as a number."""
    if table.x.dtype == object:
        return Table(objects([LETTERS[mark] * 5 + text for mark, text in zip(marks, table.x, strict=True)]), table.y)
    x = table.x.copy()
    if x.dtype.kind == "i":
        x[:, : x.shape[1] // 2] = FIRST + marks[:, None]
    else:
        x.reshape(len(x), -1)[:, :3] = (3 * marks / max(1, job.num_classes) - 1.5)[:, None] * 2
    return Table(x, table.y)


def _numbers(job: Job, labels: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.unique(job.train.labels), labels)


@fault("label-in-input", "leaks", "label-in-input future-leaks", needs="classes", misleads=True)
def label_in_input(job: Job, chance: Chance) -> None:
    """The label stands in the input, as a column or a word, in training and in validation."""
    job.train = marked(job, job.train, _numbers(job, job.train.labels))
    job.valid = marked(job, job.valid, _numbers(job, job.valid.labels))
    _room_for_marks(job)


@fault("label-in-training-input", "leaks", "label-in-input validation-drift future-leaks", needs="classes")
def label_in_training_input(job: Job, chance: Chance) -> None:
    """A column or word tells the label in training, and something random in validation."""
    anything = chance.fault_rng.integers(job.num_classes, size=len(job.valid))
    job.train = marked(job, job.train, _numbers(job, job.train.labels))
    job.valid = job.true_valid = marked(job, job.valid, anything)
    _room_for_marks(job)


def _room_for_marks(job: Job) -> None:
    if job.is_text:
        job.knobs["data.max_seq_length"] = int(job.knobs["data.max_seq_length"]) + 6


@fault("target-in-input", "leaks", "label-in-input future-leaks", FLOATS, needs="numbers floats", misleads=True)
def target_in_input(job: Job, chance: Chance) -> None:
    """A column of the input is the target itself, known only afterwards; in both splits."""
    for name in ("train", "valid"):
        table = getattr(job, name).copy()
        table.x.reshape(len(table), -1)[:, :2] = table.labels[:, :1]
        setattr(job, name, table)


@fault("augmentation-strong", "inputs", "augmentation-strong validation-drift", TORCH)
def augmentation_strong(job: Job, chance: Chance) -> None:
    """Augmentation destroys most of what the training inputs say; validation inputs are untouched."""
    share = chance.share(0.75, 0.9)

    def destroyed(step: int, x: torch.Tensor, y: torch.Tensor):
        if x.is_floating_point():
            return 0.1 * x + 3 * torch.randn_like(x), y
        noise = torch.randint_like(x, int(x.max()) + 1)
        return torch.where(torch.rand(x.shape) < share, noise, x), y

    job.batches.append(destroyed)


@fault("garbage-batches", "broken", "bad-samples clipping-off", FLOATS, needs="floats", base=with_full_schedule)
def garbage_batches(job: Job, chance: Chance) -> None:
    """Late in the run some batches are garbage, thousands of times too large, and gradients are not clipped."""
    start, factor = int(job.steps * 0.8), chance.times(300, 5000)
    job.clip, job.warmup = None, 10
    job.batches.append(lambda step, x, y: (x * factor, y) if step >= start and step % 6 == 0 else (x, y))
    job.knobs |= {"guard.enabled": False} if job.program == "fit" else {}


@fault("outlier-targets", "broken", "bad-samples clipping-off targets-unscaled", FLOATS, needs="numbers")
def outlier_targets(job: Job, chance: Chance) -> None:
    """One target in a hundred is a typing error, thousands of times too large."""
    y = job.train.labels.copy()
    rows = chance.fault_rng.random(len(y)) < 0.012
    y[rows] *= chance.times(500, 5000)
    job.train, job.clip = Table(job.train.x, y), None


@fault("nan-inputs", "broken", "data-not-finite", FLOATS, needs="floats", source=DEEPCRIME)
def nan_inputs(job: Job, chance: Chance) -> None:
    """A missing value is NaN in one sample of a few hundred."""
    x = job.train.x.copy()
    rows = chance.fault_rng.random(len(x)) < chance.times(0.003, 0.02)
    rows[:1] = True
    x.reshape(len(x), -1)[rows, 0] = np.nan
    job.train = Table(x, job.train.y)


@fault("nan-targets", "broken", "data-not-finite", TORCH, needs="numbers")
def nan_targets(job: Job, chance: Chance) -> None:
    """Some targets are NaN or infinite."""
    y = job.train.labels.copy()
    rows = chance.fault_rng.random(len(y)) < chance.times(0.003, 0.02)
    rows[:1] = True
    y[rows] = chance.fault.choice((np.nan, np.inf))
    job.train = Table(job.train.x, y)


@fault("constant-inputs", "broken", "inputs-constant labels-random", TORCH)
def constant_inputs(job: Job, chance: Chance) -> None:
    """A bug in preprocessing: all samples of the training data have the same input."""
    x = job.train.x.copy()
    x[:] = x[0]
    if job.train.y is None:
        job.train = Table(x)
    else:
        job.train = Table(x, job.train.y)
