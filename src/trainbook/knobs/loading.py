"""Loading a configuration: a recipe, a file or a mapping, with overrides on top."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, Problem
from trainbook.knobs import recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config, section_types
from trainbook.knobs.derive import Duration
from trainbook.knobs.laws import LENGTHS, Settings, broken_laws
from trainbook.knobs.origin import DEFAULT, TAKEN_OVER, Loaded, Origin
from trainbook.knobs.pretrained import settle_pretrained
from trainbook.knobs.resolve import Assignment, Resolver
from trainbook.knobs.settle import default_heads_of, give_way, notices, settle
from trainbook.knobs.text import (
    YamlBlock,
    from_mapping,
    is_python,
    joined,
    looks_like_python,
    parse,
    parse_override,
    parse_python,
    read_file,
)
from trainbook.knobs.values import show

# As `dump` writes it, and what has the values of a study's base.
NOT_ASKED_FOR = re.compile(rf"  # recipe [\w.-]+:\d+(?:,| |$)|  # .*{TAKEN_OVER}$")


def load(
    source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str] = (), *, text: str | None = None
) -> Loaded:
    """The configuration of a packaged recipe's name, a YAML or Python file or a mapping, with `key=value` overrides.

    `text` is what the file holds, where that is known from elsewhere. Raises ConfigError with every problem of all
    layers, or UserError if there is no such recipe or file.
    """
    base = _read_source(source, text)
    top = _read_overrides(overrides)
    problems = [*base.problems, *top.problems]
    base_values = _keep_one_each(base.assignments, problems, equal_is_fine=False)
    top_values = _keep_one_each(top.assignments, problems, equal_is_fine=True)
    settlement = settle_pretrained(_merge(base_values, top_values), load)
    assigned = settlement.assigned
    problems += settlement.problems

    origins = {path: assigned[path].origin if path in assigned else DEFAULT for path in by_path()}
    settings = default_heads_of(Settings(_build({path: done.value for path, done in assigned.items()}), origins))
    # A refused value is a problem already; laws that need it are passed over, unless an override replaces it.
    unknown = (base.broken - assigned.keys()) | top.broken | settlement.broken
    settings, given_way = give_way(settings, _length(base_values), unknown)
    problems += broken_laws(settings, unknown)
    if problems:
        raise ConfigError(problems)
    remarks = [*base.notices, *top.notices, *settlement.notices, *given_way, *notices(settings)]
    config, origins = settle(settings)
    return Loaded(config, origins, remarks)


def require_length(loaded: Loaded) -> None:
    """Training needs to know how long, and which model is fine-tuned; explaining a configuration does not."""
    training, model = loaded.config.training, loaded.config.model
    asking = "model.type hf" if model.type == "hf" else "model.lora_rank" if model.lora_rank is not None else None
    if model.pretrained is None and asking is not None:
        message = f"must be set with {asking}: the folder of a model, or its name on the Hugging Face hub."
        raise ConfigError([Problem("configuration", "model.pretrained", message)])
    if training.max_steps is None and training.num_train_epochs is None and training.max_tokens is None:
        message = (
            "the length of the run is not set. Set one of training.max_steps (updates), training.num_train_epochs "
            "(passes over the data) or training.max_tokens (tokens seen)."
        )
        raise ConfigError([Problem("configuration", "training", message)])


def _read_source(source: str | Path | Mapping[str, Any] | None, text: str | None) -> Resolver:
    if source is None:
        return Resolver(DEFAULT)
    if isinstance(source, Mapping):
        resolver = Resolver(Origin("file", "configuration"))
        resolver.read(from_mapping(source))
        return resolver
    path, origin = _locate(source)
    text = read_file(path) if text is None else text
    is_of_python = origin.kind == "file" and is_python(origin.where, text)
    try:
        resolver = _read_text(text, origin, is_of_python)
    except ConfigError:
        if recipes.may_be_data(path) and not is_of_python:
            raise recipes.is_data(path) from None
        if is_of_python or not looks_like_python(text):
            raise
        message = "the file contains Python assignments, not YAML."
        raise ConfigError([Problem(origin.where, "YAML", message, "Give it the suffix .py.")]) from None
    if recipes.may_be_data(path) and not resolver.assignments and not resolver.broken:
        raise recipes.is_data(path)
    return resolver


# YAML takes most of the time of loading, and a run's own file is loaded again for each change that may be advised.
@lru_cache(maxsize=64)
def _read_text(text: str, origin: Origin, is_of_python: bool) -> Resolver:
    """For callers that only read from it: it is remembered."""
    resolver = Resolver(origin)
    block, problems = (parse_python if is_of_python else parse)(text, origin.where)
    resolver.problems += problems
    resolver.read(block)
    if origin.kind == "file":
        lines = text.splitlines()
        resolver.assignments = [_with_recipe(done, lines) for done in resolver.assignments]
    return resolver


def _with_recipe(done: Assignment, lines: list[str]) -> Assignment:
    """A run's own configuration says behind each value where it came from. What a recipe has chosen is not asked for by
    the user, here as little as there."""
    line = lines[done.origin.line - 1] if done.origin.line and done.origin.line <= len(lines) else ""
    is_taken_over = NOT_ASKED_FOR.search(line) is not None
    return replace(done, origin=replace(done.origin, is_taken_over=is_taken_over)) if is_taken_over else done


def _locate(source: str | Path) -> tuple[Path, Origin]:
    if isinstance(source, str) and source in recipes.names():
        return recipes.path(source), Origin("recipe", f"recipe {source}")
    recipes.must_not_be_data_or_a_run(Path(source))
    if isinstance(source, Path) or os.path.exists(source):
        return Path(source), Origin("file", str(source))
    return recipes.path(source), Origin("recipe", f"recipe {source}")  # raises: says what was probably meant


def _read_overrides(overrides: Sequence[str]) -> Resolver:
    resolver = Resolver(Origin("override", "override"))
    for text in joined(overrides):
        try:
            entry = parse_override(text)
        except ConfigError as error:
            resolver.problems += error.problems
        else:
            resolver.read(YamlBlock((entry,)))
    return resolver


def _keep_one_each(
    assignments: list[Assignment], problems: list[Problem], equal_is_fine: bool
) -> dict[str, Assignment]:
    """One assignment a knob; a second one under another name is a problem."""
    kept: dict[str, Assignment] = {}
    # What only rules a value out comes last: it gives way to what states one.
    for new in sorted(assignments, key=lambda done: done.rules_out is not None):
        old = kept.get(new.path)
        gives_way = old is not None and new.rules_out is not None and old.value != new.rules_out
        if old is None or gives_way or (equal_is_fine and old.value == new.value):
            kept.setdefault(new.path, new)
            continue
        places = dict.fromkeys((old.origin.place, new.origin.place))
        message = f"is set twice, as {_written(old)} and as {_written(new)}. Keep one of the two."
        problems.append(Problem(", ".join(places), new.path, message))
    return kept


def _written(done: Assignment) -> str:
    given = "false" if done.rules_out else show(done.value)
    return f"{done.origin.written_as} ({given})"


# Of these one is stated: an override of one takes the place of whichever the recipe or file chose.
ALTERNATIVES = (
    {"training.max_steps", "training.num_train_epochs", "training.max_tokens"},
    {"schedule.warmup_steps", "schedule.warmup_ratio"},
)


def _merge(base: dict[str, Assignment], top: dict[str, Assignment]) -> dict[str, Assignment]:
    stated = {path for path, new in top.items() if new.value is not None}
    displaced = set().union(*(group for group in ALTERNATIVES if group & stated))
    merged = {path: old for path, old in base.items() if path not in displaced}
    for path, new in top.items():
        old = base.get(path)
        if new.rules_out is not None and old is not None and old.value != new.rules_out:
            continue
        merged[path] = new
    return merged


def _length(base: Mapping[str, Assignment]) -> Duration | None:
    """The length that the file or recipe states."""
    units = dict(zip(LENGTHS, ("steps", "epochs", "tokens"), strict=True))
    stated = [Duration(base[path].value, unit) for path, unit in units.items() if path in base and base[path].value]
    return stated[0] if len(stated) == 1 else None


def _build(values: Mapping[str, Any]) -> Config:
    sections = {
        section: kind(
            **{name: values[f"{section}.{name}"] for name in kind.model_fields if f"{section}.{name}" in values}
        )
        for section, kind in section_types().items()
    }
    return Config(**sections)  # pyright: ignore[reportArgumentType]
