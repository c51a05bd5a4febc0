"""Healthy jobs in families: what `fit` and plain or Lightning loops are trained on. Rates are near the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strangers.data import numbers, tokens
from strangers.data.table import Table, split
from strangers.job import Chance, Job


@dataclass(frozen=True)
class Family:
    name: str
    task: str
    network: str
    make: Callable[[Chance, str], Job]
    traits: frozenset[str] = frozenset()  # what faults may ask for: floats, tokens, dropout, batchnorm, relu, …


FAMILIES: dict[str, Family] = {}


def family(name: str, task: str, network: str, traits: str = "") -> Callable:
    def register(make: Callable[[Chance, str], Job]) -> Callable[[Chance, str], Job]:
        FAMILIES[name] = Family(name, task, network, make, frozenset(traits.split()))
        return make

    return register


def job_of(
    chance: Chance, program: str, name: str, table: Table | tuple[Table, Table], num_valid: int = 300, **settings
) -> Job:
    """With the habits of training that everyone draws anew."""
    base = chance.base
    train, valid = table if isinstance(table, tuple) else split(table, num_valid, chance.rng)
    its = FAMILIES[name]
    job = Job(program, name, its.task, base.randrange(1000), train, valid, network=its.network, **settings)
    adam_rate = job.rate
    job.optimizer = base.choice(
        ("adamw", "adamw", "adam", "sgd") if "sgd" in its.traits else ("adamw", "adamw", "adam")
    )
    if program == "fit" and job.optimizer == "adam":
        job.optimizer = "adamw"
    job.schedule = base.choice(("constant", "linear", "cosine", "cosine", "step", "onecycle"))
    if job.optimizer == "sgd":
        job.rate = adam_rate * 12
    job.rate *= base.choice((0.6, 0.8, 1.0, 1.0, 1.3))
    if job.schedule != "onecycle":
        job.warmup = base.choice((0, 0, 10, 20))
    job.weight_decay = base.choice((0.0, 0.0, 1e-4, 0.01, 0.1)) if job.optimizer == "adamw" else 0.0
    job.clip = base.choice((None, 1.0, 1.0, 5.0))
    job.batch_size = base.choice((16, 32, 32, 64, 128)) if its.task != "causal" else base.choice((8, 16, 32))
    job.steps = base.choice((160, 200, 240, 300)) if its.network != "encoder" else base.choice((160, 200, 240))
    job.eval_every = base.choice((20, 25, 40, 50))
    job.log_every = base.choice((1, 5, 10, 10, 20))
    return job


def _mlp(chance: Chance, inputs: int, outputs: int, **more) -> dict:
    base = chance.base
    return {
        "inputs": inputs,
        "outputs": outputs,
        "width": base.choice((32, 64, 128)),
        "depth": base.choice((1, 2, 3)),
        "activation": base.choice(("relu", "relu", "gelu", "silu")),
        **more,
    }


@family("blobs", "classify", "mlp", "floats classes sgd relu plain")
def blobs(chance: Chance, program: str) -> Job:
    classes, dim = chance.base.choice((2, 3, 5, 8, 12, 20)), chance.base.choice((8, 16, 32, 64))
    table = numbers.blobs(chance.rng, 3000, dim, classes)
    shape = _mlp(chance, dim, classes)
    return job_of(chance, program, "blobs", table, 500, num_classes=classes, shape=shape, rate=3e-3)


@family("blobs-dropout", "classify", "mlp", "floats classes dropout relu")
def blobs_dropout(chance: Chance, program: str) -> Job:
    classes, dim = chance.base.choice((3, 6, 10)), chance.base.choice((16, 32))
    shape = _mlp(chance, dim, classes, dropout=chance.base.choice((0.1, 0.2, 0.3)))
    table = numbers.blobs(chance.rng, 2500, dim, classes)
    return job_of(chance, program, "blobs-dropout", table, 400, num_classes=classes, shape=shape, rate=3e-3)


@family("blobs-imbalanced", "classify", "mlp", "floats classes relu")
def blobs_imbalanced(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 6))
    table = numbers.blobs(chance.rng, 5000, 16, classes, 0.7)
    table = numbers.multiplied(chance.rng, table, 0.15, 1.0)
    shape = _mlp(chance, 16, classes, width=64)
    return job_of(chance, program, "blobs-imbalanced", table, 500, num_classes=classes, shape=shape, rate=3e-3)


@family("moons", "classify", "mlp", "floats classes sgd relu plain")
def moons(chance: Chance, program: str) -> Job:
    shape = _mlp(chance, 2, 2, depth=2, width=64)
    return job_of(chance, program, "moons", numbers.moons(chance.rng, 1500), num_classes=2, shape=shape, rate=8e-3)


@family("rings-batchnorm", "classify", "mlp", "floats classes batchnorm relu")
def rings(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 3, 4))
    shape = _mlp(chance, 3, classes, width=64, depth=2, norm="batch")
    table = numbers.rings(chance.rng, 2500, classes)
    return job_of(chance, program, "rings-batchnorm", table, 400, num_classes=classes, shape=shape, rate=8e-3)


@family("digits", "classify", "mlp", "floats classes sgd relu plain")
def digits(chance: Chance, program: str) -> Job:
    shape = _mlp(chance, 64, 10, width=64)
    return job_of(chance, program, "digits", numbers.toy("digits"), num_classes=10, shape=shape, rate=3e-3)


@family("cancer", "classify", "mlp", "floats classes relu")
def cancer(chance: Chance, program: str) -> Job:
    shape = _mlp(chance, 30, 2, width=16, depth=1)
    job = job_of(chance, program, "cancer", numbers.toy("cancer"), 150, num_classes=2, shape=shape, rate=2e-3)
    job.batch_size, job.steps = min(job.batch_size, 32), 120
    return job


@family("friedman", "regress", "mlp", "floats sgd relu plain numbers")
def friedman(chance: Chance, program: str) -> Job:
    table = numbers.friedman(chance.rng, 3000, chance.base.choice((0.2, 1.0)))
    shape = _mlp(chance, 8, 1, width=64, depth=2)
    return job_of(chance, program, "friedman", table, 500, num_classes=1, shape=shape, rate=5e-3)


@family("linear-numbers", "regress", "mlp", "floats relu plain numbers")
def linear_numbers(chance: Chance, program: str) -> Job:
    dim = chance.base.choice((6, 12, 24))
    shape = _mlp(chance, dim, 1, norm=chance.base.choice(("", "layer")))
    table = numbers.linear_numbers(chance.rng, 3000, dim)
    return job_of(chance, program, "linear-numbers", table, 500, num_classes=1, shape=shape, rate=4e-3)


@family("diabetes", "regress", "mlp", "floats numbers")
def diabetes(chance: Chance, program: str) -> Job:
    shape = _mlp(chance, 10, 1, width=16, depth=1)
    job = job_of(chance, program, "diabetes", numbers.toy("diabetes"), 120, num_classes=1, shape=shape, rate=4e-3)
    job.batch_size, job.steps = 32, 120
    return job


@family("shapes", "classify", "conv", "floats classes batchnorm relu pictures")
def shapes(chance: Chance, program: str) -> Job:
    classes, side = chance.base.choice((3, 4, 6)), chance.base.choice((8, 10, 12))
    shape = {"outputs": classes, "width": chance.base.choice((8, 12, 16))}
    table = numbers.shapes(chance.rng, 1800, side, classes)
    job = job_of(chance, program, "shapes", table, num_classes=classes, shape=shape, rate=5e-3)
    job.batch_size = min(job.batch_size, 64)
    return job


@family("digit-pictures", "classify", "conv", "floats classes dropout relu pictures")
def digit_pictures(chance: Chance, program: str) -> Job:
    shape = {"outputs": 10, "width": 12, "norm": "", "dropout": chance.base.choice((0.0, 0.1, 0.25))}
    table = numbers.digit_pictures()
    job = job_of(chance, program, "digit-pictures", table, num_classes=10, shape=shape, rate=4e-3)
    job.batch_size = min(job.batch_size, 64)
    return job


@family("waves", "regress", "recurrent", "floats numbers")
def waves(chance: Chance, program: str) -> Job:
    shape = {
        "outputs": 1,
        "width": chance.base.choice((24, 32, 48)),
        "kind": chance.base.choice(("gru", "lstm", "rnn")),
    }
    job = job_of(chance, program, "waves", numbers.waves(chance.rng, 2000, 16), num_classes=1, shape=shape, rate=4e-3)
    job.clip = 1.0
    return job


@family("autoencoder", "regress", "mlp", "floats numbers-many")
def autoencoder(chance: Chance, program: str) -> Job:
    shape = _mlp(chance, 64, 64, width=32, depth=1, activation="gelu")
    table = numbers.compressed(numbers.toy("digits"))
    return job_of(chance, program, "autoencoder", table, num_classes=64, shape=shape, rate=6e-3)


@family("ratings", "regress", "factors", "numbers ids")
def ratings(chance: Chance, program: str) -> Job:
    shape = {"entries": 120, "width": chance.base.choice((8, 12))}
    job = job_of(
        chance, program, "ratings", numbers.ratings(chance.rng, 6000), 600, num_classes=1, shape=shape, rate=3e-2
    )
    job.batch_size, job.steps, job.weight_decay = 64, 300, 0.0
    return job


# Tokens


@family("topics-bag", "classify", "bag", "tokens classes dropout")
def topics_bag(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 6, 12))
    table = tokens.topics(chance.rng, 3000, 24, classes)
    shape = {"outputs": classes, "vocab": 56, "width": 48, "dropout": chance.base.choice((0.0, 0.1, 0.2))}
    return job_of(chance, program, "topics-bag", table, 400, num_classes=classes, vocab=56, shape=shape, rate=8e-3)


@family("topics-encoder", "classify", "encoder", "tokens classes dropout transformer relu")
def topics_encoder(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 8))
    table = tokens.topics(chance.rng, 2500, 20, classes)
    shape = {"outputs": classes, "vocab": 56, "width": 32, "depth": chance.base.choice((1, 2)), "dropout": 0.1}
    job = job_of(chance, program, "topics-encoder", table, num_classes=classes, vocab=56, shape=shape, rate=2e-3)
    job.batch_size, job.warmup = 32, 20
    return job


@family("topics-gru", "classify", "recurrent", "tokens classes")
def topics_gru(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4))
    table = tokens.topics(chance.rng, 2500, 14, classes, share=0.5)
    shape = {"outputs": classes, "vocab": 56, "width": 32, "kind": chance.base.choice(("gru", "lstm"))}
    job = job_of(chance, program, "topics-gru", table, num_classes=classes, vocab=56, shape=shape, rate=8e-3)
    job.clip, job.schedule, job.batch_size = 1.0, "cosine", 32
    return job


@family("count-encoder", "regress", "encoder", "tokens numbers transformer relu")
def count_encoder(chance: Chance, program: str) -> Job:
    shape = {"outputs": 1, "vocab": 20, "width": 32, "depth": 1}
    table = tokens.count(chance.rng, 2500, 16)
    return job_of(chance, program, "count-encoder", table, num_classes=1, vocab=20, shape=shape, rate=3e-3)


def _windows(chance: Chance, rows: int, length: int) -> Table:
    text = tokens.library(chance.base.randrange(40), rows * length + 1)
    return tokens.windows(text, rows, length)


@family("library-gru", "causal", "recurrent", "tokens")
def library_gru(chance: Chance, program: str) -> Job:
    shape = {"outputs": tokens.TEXT_SYMBOLS, "vocab": tokens.TEXT_SYMBOLS, "width": 48, "each": True}
    shape["kind"] = chance.base.choice(("gru", "lstm"))
    table = _windows(chance, 2500, 32)
    job = job_of(chance, program, "library-gru", table, 120, vocab=tokens.TEXT_SYMBOLS, shape=shape, rate=8e-3)
    job.clip = 1.0
    return job


@family("library-encoder", "causal", "encoder", "tokens transformer causal relu")
def library_encoder(chance: Chance, program: str) -> Job:
    shape = {"outputs": tokens.TEXT_SYMBOLS, "vocab": tokens.TEXT_SYMBOLS, "width": 32, "depth": 2}
    shape |= {"each": True, "causal": True, "dropout": chance.base.choice((0.0, 0.1))}
    table = _windows(chance, 2500, 32)
    return job_of(chance, program, "library-encoder", table, 120, vocab=tokens.TEXT_SYMBOLS, shape=shape, rate=5e-3)


@family("chain-encoder", "causal", "encoder", "tokens transformer causal relu")
def chain_encoder(chance: Chance, program: str) -> Job:
    shape = {"outputs": 28, "vocab": 28, "width": 32, "depth": chance.base.choice((1, 2)), "each": True, "causal": True}
    table = tokens.chain(chance.rng, 2500, 24)
    return job_of(chance, program, "chain-encoder", table, 200, vocab=28, shape=shape, rate=4e-3)


@family("chain-gru", "causal", "recurrent", "tokens")
def chain_gru(chance: Chance, program: str) -> Job:
    shape = {"outputs": 28, "vocab": 28, "width": 48, "each": True, "kind": chance.base.choice(("gru", "lstm"))}
    table = tokens.chain(chance.rng, 2500, 24)
    return job_of(chance, program, "chain-gru", table, 200, vocab=28, shape=shape, rate=8e-3)


@family("sums-encoder", "causal", "encoder", "tokens transformer causal relu")
def sums_encoder(chance: Chance, program: str) -> Job:
    shape = {"outputs": tokens.TEXT_SYMBOLS, "vocab": tokens.TEXT_SYMBOLS, "width": 32, "depth": 2}
    shape |= {"each": True, "causal": True}
    table = tokens.sums(chance.rng, 2500, 32)
    return job_of(chance, program, "sums-encoder", table, 120, vocab=tokens.TEXT_SYMBOLS, shape=shape, rate=5e-3)
