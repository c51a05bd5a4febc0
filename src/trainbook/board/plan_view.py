"""The plan of a run on paper, for knobs that are turned on the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from trainbook.board.answers import Refused
from trainbook.errors import ConfigError, TrainbookError, UserError
from trainbook.knobs import load, recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config, Declaration
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import Loaded
from trainbook.knobs.values import choices, law_text
from trainbook.plan import answer, find_gpu
from trainbook.plan.gpus import known_gpus
from trainbook.plan.subject import PlanSubject
from trainbook.plan.vocabulary import assumption, labels, vocabulary

# What may be turned. None of them names a file: a question to the board never opens one.
TURNED = (
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.intermediate_size",
    "data.max_seq_length",
    "data.vocab_size",
    "batch.global_batch_size",
    "batch.per_device_train_batch_size",
    "training.max_steps",
    "training.max_tokens",
    "optimizer.type",
    "precision.compute",
    "precision.weights",
    "memory.gradient_checkpointing",
    "memory.compile",
    "distributed.strategy",
)
LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")
VOCABULARIES = {"gpt": ("GPT-2", 50_257), "bert": ("BERT", 30_522), "t5": ("T5", 32_128)}
MOST_GPUS = 100_000
MOST_PRICE = 1e9

Facts = dict[str, Any]


def plan_view(
    recipe: str, changes: Sequence[str], gpu: str | None, gpus: str | None, price: str | None, vocab: str | None = None
) -> Facts:
    """The answer of `trainbook plan --json`; mistakes are told beside what is still known."""
    if recipe not in recipes.names():
        raise Refused(400, f"there is no packaged recipe {recipe[:80]!r}. There are {', '.join(recipes.names())}.")
    command = ["trainbook", "plan", recipe, *changes]
    try:
        loaded = load(recipe, [_checked(change) for change in changes])
        known = {"values": _values(loaded)}
    except TrainbookError as error:
        return {"errors": _messages(error), "values": _values(load(recipe)), "command": shlex.join(command)}
    try:
        world, cost, words = _count("gpus", gpus, 1, MOST_GPUS), _price(price), _count("vocab", vocab, None, 10**7)
        command += [*(["--gpu", gpu] if gpu else []), *(["--world", str(world)] if world != 1 else [])]
        command += ["--price-per-hour", f"{cost:g}"] if cost is not None else []
        command += ["--vocab-size", str(words)] if words is not None else []
        number, remark = labels(loaded.config)
        chosen = find_gpu(gpu, known_gpus()) if gpu else None
        size, assumed = _vocabulary(loaded.config, words)
        subject = PlanSubject(loaded.config, loaded.origins, size, chosen, world or 1, number)
        notes = tuple(each for each in (assumed, remark) if each is not None)
        facts = answer.plan(subject, price_per_hour=cost, notes=notes)
    except (TrainbookError, ArithmeticError) as error:
        return {**known, "errors": _messages(error), "command": shlex.join(command)}
    return {**facts, **known, "errors": [], "command": shlex.join(command)}


@cache
def plan_choices() -> Facts:
    names = recipes.names()
    gpus = [{"name": each.name, "gb": each.sold_gb or round(each.memory_gb)} for each in known_gpus().values()]
    known = by_path()
    return {
        "recipes": [{"name": name, "title": _title(name)} for name in names],
        "gpus": gpus,
        "knobs": [_knob(known[path]) for path in TURNED],
    }


def _title(name: str) -> str:
    """The first line of the recipe's header."""
    for line in recipes.path(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and (text := line.strip("# ").strip()):
            return text
    return name


def _knob(declaration: Declaration) -> Facts:
    words, law = choices(declaration), law_text(declaration)
    kind = "choice" if words else "integer" if "whole number" in law else "number" if "number" in law else "text"
    kind = "flag" if law == "true or false" else kind
    search = declaration.knob.search
    return {
        "path": declaration.path,
        "kind": kind,
        "low": search.low if search is not None else 1 if kind == "integer" else None,
        "high": search.high if search is not None else None,
        "scale": search.scale if search is not None else "log" if kind == "integer" else "linear",
        "choices": list(words),
        "what": declaration.knob.what,
        "law": law,
        "can_be_null": "null" in law,
    }


def _vocabulary(config: Config, stated: int | None) -> tuple[int, str | None]:
    """Where only the text or a file would tell it: that of the well-known model of this kind."""
    try:
        return vocabulary(config, stated), assumption(config, stated)
    except UserError:
        model, size = VOCABULARIES.get(config.model.type, VOCABULARIES["gpt"])
        note = (
            f"the vocabulary is assumed to have {size:,} tokens, as {model}'s; data.tokenizer={config.data.tokenizer} "
        )
        return size, note + "has its own size. State it to be exact."


def _checked(change: str) -> str:
    path, equals, _ = change.partition("=")
    if not equals or path not in TURNED or len(change) > 200:
        raise Refused(400, f"set: must be KNOB=VALUE with one of {', '.join(TURNED)}, but got {change[:80]!r}.")
    return change


def _values(loaded: Loaded) -> Mapping[str, str]:
    return {path: yaml_value(loaded.config.get(path)) for path in (*TURNED, *LENGTHS)}


def _messages(error: Exception) -> list[str]:
    return [str(each) for each in error.problems] if isinstance(error, ConfigError) else [str(error)]


def _count(name: str, given: str | None, default: int | None, most: int) -> int | None:
    if not given:
        return default
    if not given.isdecimal() or not 1 <= int(given[:12]) <= most or len(given) > 12:
        raise Refused(400, f"{name}: must be a whole number from 1 to {most:,}, but got {given[:40]!r}.")
    return int(given)


def _price(given: str | None) -> float | None:
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_PRICE:
        raise Refused(400, f"price: must be a number >= 0, but got {given[:40]!r}.")
    return value
