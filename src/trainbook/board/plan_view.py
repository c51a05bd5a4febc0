"""The plan of a run on paper, for knobs that are turned on the page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainbook.board.answers import Refused, text_of
from trainbook.board.records import OpenRun
from trainbook.errors import ConfigError, TrainbookError, UserError
from trainbook.knobs import load, recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config, Declaration
from trainbook.knobs.derive import task_name
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import Loaded
from trainbook.knobs.values import choices, law_text
from trainbook.nearest import did_you_mean
from trainbook.plan import answer, find_gpu
from trainbook.plan.gpus import Gpu, known_gpus
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
WITH_CLASSES = ("classify", "tag")  # tasks of which a run knows the loss of a uniform guess among the classes
MOST_GPUS = 100_000
MOST_PRICE = 1e9

Facts = dict[str, Any]


@dataclass(frozen=True)
class PlanBase:
    """What is planned before a knob is turned: a packaged recipe, or a run with what is known of its data."""

    source: str  # as the command line names it
    vocab_size: int | None = None
    num_classes: int | None = None  # where it is of a task that has classes
    run: Facts | None = None


def base_of_recipe(recipe: str) -> PlanBase:
    if recipe not in recipes.names():
        raise Refused(400, f"there is no packaged recipe {recipe[:80]!r}. There are {', '.join(recipes.names())}.")
    return PlanBase(recipe)


def base_of_run(run: OpenRun) -> PlanBase:
    folder, facts = run.folder, run.record.facts
    if folder is None or not run.has_config:
        raise Refused(400, f"{run.record.name} has no configuration that a plan could begin with.")
    words, uniform = facts.get("vocab_size"), facts.get("uniform_loss")
    number = round(math.exp(uniform)) if isinstance(uniform, float) and 0 < uniform < 20 else None
    told = {"id": run.place.id, "name": text_of(run.record.name, 300)}
    return PlanBase(str(folder.config), words if type(words) is int else None, number, told)


def plan_view(
    base: PlanBase,
    changes: Sequence[str],
    gpu: str | None,
    gpus: str | None,
    price: str | None,
    vocab: str | None = None,
) -> Facts:
    """The answer of `trainbook plan --json`; mistakes are told beside what is still known."""
    command = ["trainbook", "plan", base.source, *changes]
    known: Facts = {"run": base.run}
    try:
        loaded = load(base.source, [_checked(change) for change in changes])
        known |= {"values": _values(loaded)}
    except TrainbookError as error:
        return {
            **known,
            "errors": _messages(error),
            "values": _values(load(base.source)),
            "command": shlex.join(command),
        }
    try:
        world, cost = _count("Number of GPUs", gpus, 1, MOST_GPUS), _price(price)
        words = _count("Size of the vocabulary", vocab, base.vocab_size, 10**7)
        command += [*(["--gpu", gpu] if gpu else []), *(["--world", str(world)] if world != 1 else [])]
        command += ["--price-per-hour", f"{cost:g}"] if cost is not None else []
        command += ["--vocab-size", str(words)] if words is not None else []
        stated = base.num_classes if task_name(loaded.config) in WITH_CLASSES else None
        command += ["--num-labels", str(stated)] if stated is not None else []
        number, remark = labels(loaded.config, stated)
        chosen = _gpu(gpu) if gpu else None
        size, assumed = _vocabulary(loaded.config, words)
        subject = PlanSubject(loaded.config, loaded.origins, size, chosen, world or 1, number)
        notes = tuple(each for each in (assumed, remark) if each is not None)
        facts = answer.plan(subject, price_per_hour=cost, notes=notes)
    except (TrainbookError, ArithmeticError) as error:
        return {**known, "errors": _messages(error), "command": shlex.join(command)}
    return {**facts, **known, "errors": [], "command": shlex.join(command)}


def _gpu(name: str) -> Gpu:
    known = known_gpus()
    try:
        return find_gpu(name, known)
    except UserError:
        near = did_you_mean(name, known)
        raise Refused(400, f"GPU: must be one of {', '.join(known)}, but got {name[:80]!r}.{near}") from None


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
        raise Refused(400, f"Price of a GPU hour: must be a number >= 0, but got {given[:40]!r}.")
    return value
