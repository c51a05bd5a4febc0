"""Tokens at which generation stops: those of the tokenizer, of the chat template and of generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.data import Tokenizer
from trainbook.data.chat import chat_with
from trainbook.errors import UserError
from trainbook.knobs import own_models
from trainbook.knobs.config import Config
from trainbook.knobs.hub import CONFIG, find_folder

GENERATION_CONFIG = "generation_config.json"
FACTS_FILE = "facts.json"  # of an earlier run, beside its tokenizer


def end_tokens(config: Config, tokenizer: Tokenizer, chat_template: str | None) -> tuple[int, ...]:
    """The tokenizer's own end of text first. A number that a configuration names is taken only if the tokenizer has it
    as a special token: defaults of transformers stand in many a config.json, whatever the tokenizer."""
    found = [tokenizer.end_of_text]
    special = tokenizer.special_names
    if chat_template is not None:
        turn_end = chat_with(chat_template, tokenizer).turn_end()
        found += [number for number, name in special.items() if name == turn_end]
    found += [number for number in _of_pretrained(config) if number in special]
    return tuple(dict.fromkeys(number for number in found if number is not None))


def _of_pretrained(config: Config) -> list[int]:
    name = config.model.pretrained
    if name is None or own_models.is_recipe(name):
        return []
    try:
        folder = find_folder(name)
    except UserError:  # the folder is gone: its weights are in the run's own checkpoints
        return []
    if own_models.is_run(name):
        return _numbers(_read(folder / "tokenizer" / FACTS_FILE).get("ends"))
    return _numbers((_read(folder / GENERATION_CONFIG) or _read(folder / CONFIG)).get("eos_token_id"))


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json_text.read(path)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _numbers(value: Any) -> list[int]:
    """One number or a list of them."""
    return [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]
