"""Healthy jobs for the Hugging Face trainer: tiny models of transformers with random weights, data made in memory."""

from __future__ import annotations

from strangers.data import tokens
from strangers.data.table import Table, split
from strangers.families import Family
from strangers.job import Chance, Job

FAMILIES: dict[str, Family] = {}


def family(name: str, task: str, network: str, traits: str = ""):
    def register(make):
        FAMILIES[name] = Family(name, task, network, make, frozenset(f"tokens transformer {traits}".split()))
        return make

    return register


def _job(chance: Chance, program: str, name: str, table: Table, num_valid: int, rate: float, **settings) -> Job:
    base, its = chance.base, FAMILIES[name]
    train, valid = split(table, num_valid, chance.rng)
    job = Job(program, name, its.task, base.randrange(1000), train, valid, network=its.network, rate=rate, **settings)
    job.rate *= base.choice((0.6, 0.8, 1.0, 1.0, 1.3))
    job.schedule = base.choice(("linear", "linear", "cosine", "constant"))
    job.warmup = base.choice((0, 10, 20, 20))
    job.weight_decay = base.choice((0.0, 0.0, 0.01, 0.1))
    job.clip = 1.0  # the trainer's default
    job.batch_size = base.choice((8, 16, 16, 32))
    job.steps = base.choice((120, 160, 200))
    job.eval_every = base.choice((20, 40, 40))
    job.log_every = base.choice((5, 10, 10, 20))
    job.shape = {"width": 32, "depth": base.choice((1, 2)), "dropout": base.choice((0.0, 0.1)), **job.shape}
    return job


@family("hf-bert-topics", "classify", "bert", "classes dropout")
def bert_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 3, 6))
    table = tokens.topics(chance.rng, 2400, 20, classes)
    return _job(chance, program, "hf-bert-topics", table, 240, 2e-3, num_classes=classes, vocab=60)


@family("hf-distilbert-topics", "classify", "distilbert", "classes dropout")
def distilbert_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 8))
    table = tokens.topics(chance.rng, 2400, 20, classes)
    return _job(chance, program, "hf-distilbert-topics", table, 240, 2e-3, num_classes=classes, vocab=60)


@family("hf-roberta-topics", "classify", "roberta", "classes dropout")
def roberta_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 12))
    table = tokens.topics(chance.rng, 3000, 24, classes, share=0.45)
    return _job(chance, program, "hf-roberta-topics", table, 240, 2e-3, num_classes=classes, vocab=60)


@family("hf-gpt2-topics", "classify", "gpt2-classify", "classes")
def gpt2_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4))
    table = tokens.topics(chance.rng, 2400, 16, classes, share=0.5)
    return _job(chance, program, "hf-gpt2-topics", table, 240, 3e-3, num_classes=classes, vocab=60)


@family("hf-bert-count", "regress", "bert", "numbers")
def bert_count(chance: Chance, program: str) -> Job:
    table = tokens.count(chance.rng, 2400, 16)
    return _job(chance, program, "hf-bert-count", table, 240, 2e-3, num_classes=1, vocab=60)


@family("hf-gpt2-chain", "causal", "gpt2", "causal")
def gpt2_chain(chance: Chance, program: str) -> Job:
    table = tokens.chain(chance.rng, 2400, 20)
    return _job(chance, program, "hf-gpt2-chain", table, 160, 4e-3, vocab=32)


@family("hf-gpt2-library", "causal", "gpt2", "causal")
def gpt2_library(chance: Chance, program: str) -> Job:
    table = tokens.windows(tokens.library(chance.base.randrange(40), 90_000), 2400, 32)
    return _job(chance, program, "hf-gpt2-library", table, 120, 4e-3, vocab=tokens.TEXT_SYMBOLS)


@family("hf-llama-sums", "causal", "llama", "causal")
def llama_sums(chance: Chance, program: str) -> Job:
    table = tokens.sums(chance.rng, 2400, 32)
    return _job(chance, program, "hf-llama-sums", table, 120, 4e-3, vocab=tokens.TEXT_SYMBOLS)


@family("hf-bert-masked", "masked", "bert-masked")
def bert_masked(chance: Chance, program: str) -> Job:
    """What is hidden follows from which symbols are in the row: so short a run teaches no order."""
    found = tokens.topics(chance.rng, 3000, 20, 8, symbols=24, share=0.8)
    table = masked(chance, Table(found.x), 0.2)
    return _job(chance, program, "hf-bert-masked", table, 200, 3e-3, vocab=32)


@family("hf-t5-reverse", "seq2seq", "t5")
def t5_reverse(chance: Chance, program: str) -> Job:
    table = tokens.reversed_pairs(chance.rng, 3000, chance.base.choice((3, 4)), 8)
    return _job(chance, program, "hf-t5-reverse", table, 160, 8e-3, vocab=16)


def masked(chance: Chance, table: Table, share: float) -> Table:
    """Hidden tokens are the targets, -100 elsewhere."""
    hidden = chance.rng.random(table.x.shape) < share
    hidden[:, 0] |= ~hidden.any(1)
    y = table.x.copy()
    y[~hidden] = -100
    x = table.x.copy()
    x[hidden] = tokens.MASK
    return Table(x, y)
