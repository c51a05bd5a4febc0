"""Healthy jobs that look unusual, and on which a doctor is tempted to warn. No fault is put into these."""

from __future__ import annotations

import torch

from strangers import families, families_huggingface, families_text
from strangers.data import numbers
from strangers.data.table import Table, split
from strangers.families import family, job_of
from strangers.job import Chance, Job

UNUSUAL = "unusual"  # the trait of all of them


def _mlp(chance: Chance, inputs: int, outputs: int, **more) -> dict:
    return {"inputs": inputs, "outputs": outputs, "width": 64, "depth": chance.base.choice((1, 2)), **more}


@family("prices", "regress", "mlp", UNUSUAL)
def prices(chance: Chance, program: str) -> Job:
    """Targets in hundredths or in thousands, with a last layer made for them: the loss is tiny, or huge."""
    scale = chance.base.choice((0.01, 50.0, 3000.0))
    table = numbers.linear_numbers(chance.rng, 3000, 12)
    table = Table(table.x, (scale * (table.labels + 4)).astype("float32"))
    shape = _mlp(chance, 12, 1, mean=4 * scale, scale=scale)
    job = job_of(chance, program, "prices", table, 500, num_classes=1, shape=shape, rate=4e-3)
    job.clip = None
    return job


@family("overlapping", "classify", "mlp", UNUSUAL)
def overlapping(chance: Chance, program: str) -> Job:
    """Classes overlap: a third of the answers stays wrong, whatever one does."""
    table = numbers.blobs(chance.rng, 4000, 8, 3, spread=1.8)
    shape = _mlp(chance, 8, 3)
    job = job_of(chance, program, "overlapping", table, 600, num_classes=3, shape=shape, rate=2e-3)
    job.batch_size = 64
    return job


@family("batch-of-four", "classify", "mlp", UNUSUAL)
def batch_of_four(chance: Chance, program: str) -> Job:
    """Small batches at a learning rate that suits them: the training loss is noisy."""
    table = numbers.toy("digits")
    job = job_of(chance, program, "batch-of-four", table, num_classes=10, shape=_mlp(chance, 64, 10), rate=2.5e-3)
    job.batch_size, job.steps, job.schedule = 4, 400, "cosine"
    return job


@family("smoothed", "classify", "mlp", UNUSUAL)
def smoothed(chance: Chance, program: str) -> Job:
    """Dropout of .4 and label smoothing: the training loss stays above the validation loss."""
    shape = _mlp(chance, 32, 6, dropout=0.4)
    table = numbers.blobs(chance.rng, 3000, 32, 6)
    job = job_of(chance, program, "smoothed", table, 500, num_classes=6, shape=shape, rate=3e-3)
    job.label_smoothing = 0.1
    return job


@family("augmented", "classify", "conv", UNUSUAL)
def augmented(chance: Chance, program: str) -> Job:
    """Noise on training pictures alone: training is harder than validation."""
    table = numbers.digit_pictures()
    job = job_of(chance, program, "augmented", table, num_classes=10, shape={"outputs": 10, "width": 12}, rate=4e-3)
    job.batch_size = 32
    job.batches.append(lambda step, x, y: (x + 0.5 * torch.randn_like(x), y))
    return job


@family("accumulated", "classify", "mlp", UNUSUAL)
def accumulated(chance: Chance, program: str) -> Job:
    """Four micro-batches make a step."""
    table = numbers.blobs(chance.rng, 3000, 16, 5)
    job = job_of(chance, program, "accumulated", table, 500, num_classes=5, shape=_mlp(chance, 16, 5), rate=4e-3)
    job.accumulation, job.batch_size = 4, 8
    return job


@family("long-warmup", "causal", "encoder", UNUSUAL)
def long_warmup(chance: Chance, program: str) -> Job:
    """The learning rate rises over two fifths of the run."""
    job = families.chain_encoder(chance, program)
    job.warmup, job.schedule, job.family = int(0.4 * job.steps), "cosine", "long-warmup"
    return job


@family("plain-descent", "classify", "mlp", UNUSUAL)
def plain_descent(chance: Chance, program: str) -> Job:
    """Gradient descent without momentum, at a learning rate of about one."""
    table = numbers.toy("digits")
    job = job_of(chance, program, "plain-descent", table, num_classes=10, shape=_mlp(chance, 64, 10), rate=1.0)
    job.optimizer, job.momentum, job.weight_decay, job.clip = "sgd", 0.0, 0.0, None
    job.rate, job.batch_size = 0.3 * chance.base.choice((0.5, 1.0, 1.5)), 32
    return job


@family("few-samples", "classify", "mlp", UNUSUAL)
def few_samples(chance: Chance, program: str) -> Job:
    """A hundred real samples, a small network, and a short run that ends before it overfits."""
    train, valid = split(numbers.toy("wine"), 70, chance.rng)
    shape = {"inputs": 13, "outputs": 3, "width": 16, "depth": 1}
    job = job_of(chance, program, "few-samples", (train, valid), num_classes=3, shape=shape, rate=8e-3)
    job.batch_size, job.steps, job.eval_every, job.log_every, job.warmup = 16, 60, 6, 1, 0
    return job


@family("two-peaks", "regress", "mlp", UNUSUAL)
def two_peaks(chance: Chance, program: str) -> Job:
    """A schedule that falls and rises again: three cycles."""
    job = families.friedman(chance, program)
    job.optimizer, job.rate, job.family = "adamw", 4e-3, "two-peaks"
    if program == "fit":
        job.schedule, job.knobs["schedule.num_cycles"] = "cosine_with_restarts", 3
    else:
        length = job.steps // 3 + 1
        job.rate_at = lambda step: 0.05 + 0.95 * (1 - (step % length) / length)
    return job


@families_huggingface.family("hf-bert-smoothed", "classify", "bert", UNUSUAL)
def hf_bert_smoothed(chance: Chance, program: str) -> Job:
    """With label smoothing and a longer warm-up."""
    job = families_huggingface.bert_topics(chance, program)
    job.label_smoothing, job.warmup, job.family = 0.1, 50, "hf-bert-smoothed"
    return job


@families_huggingface.family("hf-gpt2-accumulated", "causal", "gpt2", UNUSUAL)
def hf_gpt2_accumulated(chance: Chance, program: str) -> Job:
    """Four micro-batches make a step."""
    job = families_huggingface.gpt2_chain(chance, program)
    job.accumulation, job.batch_size, job.steps, job.family = 4, 4, 120, "hf-gpt2-accumulated"
    return job


@families_text.family(families_text.BUILTIN, "gpt-muon", "causal", "gpt", UNUSUAL)
def gpt_muon(chance: Chance, program: str) -> Job:
    """With Muon."""
    job = families_text.gpt_sentences(chance, program)
    job.knobs["optimizer.type"], job.family = "muon", "gpt-muon"
    return job


@families_text.family(families_text.BUILTIN, "bert-accumulated", "classify", "bert", UNUSUAL)
def bert_accumulated(chance: Chance, program: str) -> Job:
    """Micro-batches of four, label smoothing and dropout."""
    job = families_text.bert_topics(chance, program)
    job.batch_size, job.label_smoothing, job.shape["dropout"] = 16, 0.1, 0.2
    job.knobs["batch.per_device_train_batch_size"], job.family = 4, "bert-accumulated"
    return job
