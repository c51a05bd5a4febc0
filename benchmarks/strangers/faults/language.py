"""Faults that only language models can have: shifts, masks, padding."""

from __future__ import annotations

import numpy as np

from strangers.data.table import Table
from strangers.data.tokens import FIRST, PAD
from strangers.job import IGNORED, Chance, Job
from strangers.kinds import CODE, TRAPS, fault


@fault("not-shifted", "language", "targets-not-shifted", CODE, needs="causal", misleads=True, source=TRAPS)
def not_shifted(job: Job, chance: Chance) -> None:
    """Targets are the inputs themselves: each token predicts itself."""
    job.aligned = lambda outputs, tokens: (outputs[:, : tokens.shape[1]], tokens)
    _in_a_task(job)


@fault("shifted-twice", "language", "targets-shifted-twice", CODE, needs="causal", source=TRAPS)
def shifted_twice(job: Job, chance: Chance) -> None:
    """Labels are shifted in the data and in the loss: each token predicts the one after the next."""
    job.aligned = lambda outputs, tokens: (outputs[:, :-2], tokens[:, 2:])
    _in_a_task(job)


@fault("shifted-backwards", "language", "targets-not-shifted future-leaks", CODE, needs="causal", misleads=True)
def shifted_backwards(job: Job, chance: Chance) -> None:
    """Targets are shifted to the wrong side: each token predicts the one before it, which it has seen."""
    job.aligned = lambda outputs, tokens: (outputs[:, 1 : tokens.shape[1]], tokens[:, :-1])
    _in_a_task(job)


def _in_a_task(job: Job) -> None:
    """With Trainbook's own loop a shift is a mistake in a task of the user's own."""
    if job.program == "own":
        assert job.knobs.get("training.task", "").endswith(":NextToken")


@fault("mask-missing", "language", "future-leaks", ("own", "fit", "loop"), needs="causal encoder", misleads=True)
def mask_missing(job: Job, chance: Chance) -> None:
    """The causal mask is missing: each token sees those that it should predict."""
    job.shape["causal"] = False
    job.steps = 240


@fault("nothing-masked", "language", "future-leaks", ("huggingface",), needs="masked", misleads=True, source=TRAPS)
def nothing_masked(job: Job, chance: Chance) -> None:
    """A masked language model is given its targets: the collator forgot to hide them."""
    for name in ("train", "valid"):
        table = getattr(job, name)
        setattr(job, name, Table(np.where(table.labels == IGNORED, table.x, table.labels), table.labels))


@fault("masked-nearly-all", "language", "mask-ratio-high", ("builtin", "huggingface"), needs="masked")
def masked_nearly_all(job: Job, chance: Chance) -> None:
    """Nearly all tokens are masked: there is nothing left to predict them from."""
    share = chance.share(0.9, 0.97)
    if job.is_text:
        job.knobs["training.mask_ratio"] = share
        return
    table = job.train
    whole = np.where(table.labels == IGNORED, table.x, table.labels)
    hidden = chance.fault_rng.random(whole.shape) < share
    job.train = Table(np.where(hidden, 2, whole), np.where(hidden, whole, IGNORED))


@fault(
    "padding-counted", "language", "padding-as-targets", ("fit", "huggingface", "loop"), needs="causal", misleads=True
)
def padding_counted(job: Job, chance: Chance) -> None:
    """Texts are padded to several times their length, and padding counts in the loss."""
    extra = int(job.train.x.shape[1] * chance.share(1.2, 2.2))

    def padded(table: Table) -> Table:
        return Table(np.concatenate([table.x, np.full((len(table), extra), PAD)], 1))

    job.train, job.valid = padded(job.train), padded(job.valid)
    job.steps = min(job.steps, 160)


@fault(
    "context-shuffled", "language", "context-destroyed labels-random", ("fit", "huggingface", "loop"), needs="causal"
)
def context_shuffled(job: Job, chance: Chance) -> None:
    """The tokens of each training text come in a random order: a set was iterated over."""
    x = job.train.x.copy()
    job.train = Table(chance.fault_rng.permuted(x, axis=1))


@fault(
    "vocabulary-mismatch",
    "language",
    "tokens-unknown validation-drift preprocessing-differs",
    needs="tokens classes|causal",
)
def vocabulary_mismatch(job: Job, chance: Chance) -> None:
    """The validation split was tokenized with another vocabulary: the same text has other numbers."""
    if job.is_text:
        order = list("abcdefghijklmnopqrstuvwxyz")
        chance.fault.shuffle(order)
        table = str.maketrans("abcdefghijklmnopqrstuvwxyz", "".join(order))
        job.valid.x[:] = [str(text).translate(table) for text in job.valid.x]
    else:
        order = np.arange(job.vocab)
        order[FIRST:] = chance.fault_rng.permutation(order[FIRST:])
        job.valid.x = order[job.valid.x]
        job.true_valid = job.valid.copy()
