"""Healthy jobs for Trainbook's own commands: texts in files, with built-in networks or with the user's own parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from strangers.data import tokens
from strangers.data.table import Table, objects, split
from strangers.families import Family
from strangers.job import Chance, Job

BUILTIN: dict[str, Family] = {}
OWN: dict[str, Family] = {}


def family(families: dict[str, Family], name: str, task: str, network: str, traits: str = ""):
    def register(make):
        families[name] = Family(name, task, network, make, frozenset(f"tokens {traits}".split()))
        return make

    return register


def _job(chance: Chance, program: str, its: Family, table: Table, num_valid: int, rate: float, **settings: Any) -> Job:
    base = chance.base
    train, valid = split(table, num_valid, chance.rng)
    job = Job(
        program, its.name, its.task, base.randrange(1000), train, valid, network=its.network, rate=rate, **settings
    )
    job.rate *= base.choice((0.6, 0.8, 1.0, 1.0, 1.3))
    job.schedule = base.choice(("cosine", "cosine", "linear", "constant"))
    job.warmup = base.choice((10, 20, 20))
    job.weight_decay = base.choice((0.0, 0.01, 0.1))
    job.beta2 = base.choice((0.95, 0.99, 0.99, 0.999))
    job.clip = 1.0
    job.batch_size = base.choice((8, 16, 16, 32))
    job.steps = base.choice((120, 150, 180))
    job.eval_every = base.choice((15, 20, 30))
    job.log_every = base.choice((5, 10, 10))
    job.shape = {"width": base.choice((32, 48)), "depth": base.choice((1, 2)), **job.shape}
    if base.random() < 0.25:
        job.knobs["guard.enabled"] = False
    if its.network in ("gpt", "bert"):
        job.shape["dropout"] = base.choice((0.0, 0.0, 0.1))
    return job


def topics(chance: Chance, rows: int, classes: int, length: int = 20) -> Table:
    table = tokens.topics(chance.rng, rows, length, classes, symbols=48, share=0.4)
    return Table(objects(tokens.as_texts(table.x)), objects([f"kind {label}" for label in table.labels]))


def lines(text: str, characters: int) -> Table:
    """A document for so many characters."""
    parts = [text[start : start + characters] for start in range(0, len(text) - characters, characters)]
    return Table(objects([part for part in parts if part.strip()]))


def chains(chance: Chance, rows: int, length: int) -> Table:
    return Table(objects(tokens.as_texts(tokens.chain(chance.rng, rows, length).x)))


@family(BUILTIN, "gpt-library", "causal", "gpt", "transformer causal dropout")
def gpt_library(chance: Chance, program: str) -> Job:
    table = lines(tokens.library(chance.base.randrange(40), 120_000), 400)
    return _job(chance, program, BUILTIN["gpt-library"], table, 30, 5e-3, knobs={"data.max_seq_length": 48})


@family(BUILTIN, "gpt-sentences", "causal", "gpt", "transformer causal dropout")
def gpt_sentences(chance: Chance, program: str) -> Job:
    table = lines(tokens.sentences(chance.rng, 2500), 300)
    return _job(chance, program, BUILTIN["gpt-sentences"], table, 24, 5e-3, knobs={"data.max_seq_length": 48})


@family(BUILTIN, "gpt-chain", "causal", "gpt", "transformer causal dropout documents")
def gpt_chain(chance: Chance, program: str) -> Job:
    knobs = {"data.max_seq_length": 32, "data.samples": "documents"}
    return _job(chance, program, BUILTIN["gpt-chain"], chains(chance, 2500, 28), 150, 5e-3, knobs=knobs)


@family(BUILTIN, "llama-library", "causal", "gpt", "transformer causal dropout")
def llama_library(chance: Chance, program: str) -> Job:
    table = lines(tokens.library(chance.base.randrange(40), 120_000), 400)
    knobs = {"data.max_seq_length": 48, "model.norm": "rmsnorm", "model.activation": "swiglu"}
    knobs["model.position"] = "rotary"
    return _job(chance, program, BUILTIN["llama-library"], table, 30, 5e-3, knobs=knobs)


@family(BUILTIN, "bert-topics", "classify", "bert", "transformer classes dropout")
def bert_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 6, 8))
    table = topics(chance, 2400, classes)
    job = _job(chance, program, BUILTIN["bert-topics"], table, 240, 2e-3, num_classes=classes)
    job.knobs["data.max_seq_length"] = 24
    return job


@family(BUILTIN, "bert-relu-topics", "classify", "bert", "transformer classes dropout")
def bert_relu_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((3, 5))
    knobs = {"data.max_seq_length": 40, "model.activation": "relu", "model.norm_position": "pre"}
    table = topics(chance, 2400, classes, 32)
    return _job(chance, program, BUILTIN["bert-relu-topics"], table, 240, 2e-3, num_classes=classes, knobs=knobs)


@family(BUILTIN, "bert-count", "regress", "bert", "transformer numbers")
def bert_count(chance: Chance, program: str) -> Job:
    found = tokens.count(chance.rng, 2400, 16)
    table = Table(objects(tokens.as_texts(found.x)), found.labels[:, 0])
    job = _job(chance, program, BUILTIN["bert-count"], table, 240, 2e-3, num_classes=1)
    job.knobs["data.max_seq_length"] = 20
    return job


@family(BUILTIN, "bert-masked", "masked", "bert", "transformer dropout masked")
def bert_masked(chance: Chance, program: str) -> Job:
    knobs: dict[str, Any] = {"data.max_seq_length": 32, "data.samples": "documents", "training.mask_ratio": 0.2}
    knobs |= {"model.norm_position": "pre", "model.position": "rotary", "training.task": "masked"}
    table = chains(chance, 2500, 28)
    job = _job(chance, program, BUILTIN["bert-masked"], table, 150, 5e-3, knobs=knobs)
    job.steps = 200
    return job


@family(BUILTIN, "t5-reverse", "seq2seq", "t5", "transformer")
def t5_reverse(chance: Chance, program: str) -> Job:
    found = tokens.reversed_pairs(chance.rng, 3000, chance.base.choice((3, 4)), 8)
    table = Table(objects(tokens.as_texts(found.x)), objects(tokens.as_texts(found.labels)))
    knobs = {"data.max_seq_length": 8, "data.max_target_length": 8}
    job = _job(chance, program, BUILTIN["t5-reverse"], table, 200, 6e-3, knobs=knobs)
    job.shape |= {"depth": 1, "width": 48}
    job.steps, job.batch_size = 200, 32
    return job


# The user's own network, in the place of a built-in one; or his own task around a built-in network


@family(OWN, "own-gru-topics", "classify", "recurrent", "classes model")
def own_gru_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4))
    table = topics(chance, 2400, classes, 16)
    job = _job(chance, program, OWN["own-gru-topics"], table, 240, 8e-3, num_classes=classes)
    job.shape["depth"] = 1
    job.knobs["data.max_seq_length"] = 20
    return job


@family(OWN, "own-bag-topics", "classify", "bag", "classes model dropout")
def own_bag_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 3, 6, 10))
    table = topics(chance, 2400, classes)
    job = _job(chance, program, OWN["own-bag-topics"], table, 240, 1e-2, num_classes=classes)
    job.shape = {"width": job.shape["width"], "dropout": 0.1}
    job.knobs["data.max_seq_length"] = 24
    return job


@family(OWN, "own-encoder-topics", "classify", "encoder", "classes model dropout transformer relu")
def own_encoder_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 6))
    table = topics(chance, 2400, classes)
    job = _job(chance, program, OWN["own-encoder-topics"], table, 240, 3e-3, num_classes=classes)
    job.shape["dropout"] = 0.1
    job.knobs["data.max_seq_length"] = 24
    return job


@family(OWN, "own-encoder-library", "causal", "encoder", "model transformer causal relu")
def own_encoder_library(chance: Chance, program: str) -> Job:
    table = lines(tokens.library(chance.base.randrange(40), 120_000), 400)
    job = _job(chance, program, OWN["own-encoder-library"], table, 30, 5e-3, knobs={"data.max_seq_length": 40})
    job.shape |= {"each": True, "causal": True}
    return job


@family(OWN, "own-gru-chain", "causal", "recurrent", "model")
def own_gru_chain(chance: Chance, program: str) -> Job:
    knobs = {"data.max_seq_length": 32, "data.samples": "documents"}
    job = _job(chance, program, OWN["own-gru-chain"], chains(chance, 2500, 28), 150, 8e-3, knobs=knobs)
    job.shape |= {"each": True, "kind": chance.base.choice(("gru", "lstm")), "depth": 1}
    return job


@family(OWN, "own-task-topics", "classify", "bert", "classes task dropout transformer")
def own_task_topics(chance: Chance, program: str) -> Job:
    classes = chance.base.choice((2, 4, 6))
    table = topics(chance, 2400, classes)
    job = _job(chance, program, OWN["own-task-topics"], table, 240, 2e-3, num_classes=classes)
    job.knobs |= {"data.max_seq_length": 24, "training.task": "strangers.own_parts:Classifier"}
    return job


@family(OWN, "own-task-library", "causal", "gpt", "task transformer causal dropout")
def own_task_library(chance: Chance, program: str) -> Job:
    table = lines(tokens.library(chance.base.randrange(40), 120_000), 400)
    job = _job(chance, program, OWN["own-task-library"], table, 30, 5e-3, knobs={"data.max_seq_length": 40})
    job.knobs["training.task"] = "strangers.own_parts:NextToken"
    return job


def texts_of(table: Table) -> list[dict[str, Any]]:
    """As records of a JSON Lines file."""
    if table.y is None:
        return [{"text": text} for text in table.x]
    return [
        {"text": text, "y": label.item() if isinstance(label, np.generic) else label}
        for text, label in zip(table.x, table.y, strict=True)
    ]
