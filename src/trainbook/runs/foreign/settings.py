"""Other tools' settings, as knobs: by the names that knobs are known under elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text, yaml_text
from trainbook.bounded.files import read_text
from trainbook.errors import ConfigError
from trainbook.knobs.origin import Origin
from trainbook.knobs.resolve import Assignment, Resolver
from trainbook.knobs.text import from_mapping

# The Hugging Face trainer's words that mean something else there, or nothing yet.
HUGGING_FACE = {
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "lr_scheduler_warmup_steps": "warmup_steps",
    "lr_scheduler_warmup_ratio": "warmup_ratio",
    "total_train_batch_size": "global_batch_size",
    "training_steps": "max_steps",
    "num_epochs": "num_train_epochs",
}


def knobs_in(*configs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by knob path, and what each was called; of several configurations the first to know a knob counts.

    What is no knob of ours, or has a value that the knob does not take (`max_steps: -1`), is not known.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for config in configs:
        found = [done for name, value in config.items() for done in _assignments(name, value)]
        # `fp16: false` only rules fp16 out: it gives way to `bf16: true`.
        for done in sorted(found, key=lambda done: done.rules_out is not None):
            if done.path not in values:
                values[done.path] = done.value
                names[done.path] = done.origin.written_as
    return values, names


def of_hugging_face(config: Mapping[str, Any]) -> dict[str, Any]:
    """TrainingArguments, or a model card's list of them, with names that mean the same here."""
    renamed = {HUGGING_FACE.get(name, name): value for name, value in config.items()}
    warmup = renamed.get("warmup_steps")
    if isinstance(warmup, float) and 0 < warmup < 1:  # as of transformers 5, a share of all steps
        renamed["warmup_ratio"] = renamed.pop("warmup_steps")
    elif renamed.get("warmup_ratio") in (0, 0.0, None) or warmup:  # of the two the steps count there
        renamed.pop("warmup_ratio", None)
    limit = renamed.get("max_steps")
    if isinstance(limit, (int, float)) and limit > 0:
        renamed.pop("num_train_epochs", None)  # which is then not followed
    if renamed.get("max_grad_norm") == 0:
        renamed["max_grad_norm"] = None  # no clipping
    return renamed


def is_hugging_face(config: Mapping[str, Any]) -> bool:
    return "per_device_train_batch_size" in config and "lr_scheduler_type" in config


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML or JSON file of settings; empty if it cannot be read as one: settings are a help, not the run."""
    try:
        content = json_text.read(path) if path.suffix == ".json" else yaml_text.load(read_text(path))
    except (OSError, ValueError, yaml_text.YAMLError):
        return {}
    return as_mapping(content)


def as_mapping(content: Any) -> dict[str, Any]:
    return {str(name): value for name, value in content.items()} if isinstance(content, Mapping) else {}


def _assignments(name: str, value: Any) -> list[Assignment]:
    resolver = Resolver(Origin("file", "settings"))
    try:
        resolver.read(from_mapping({name: value}))
    except (ConfigError, TypeError, ValueError):  # a value of a kind that no knob has
        return []
    return resolver.assignments
