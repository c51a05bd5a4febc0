"""Advice in the words of the tool that a run was made with: `TrainingArguments` names, those of its own settings, or
usual ones where nothing is known of the tool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.bounded import json_text, yaml_text
from trainbook.bounded.files import read_text
from trainbook.errors import ConfigError
from trainbook.knobs.origin import Origin
from trainbook.knobs.own_module import as_keyword_argument
from trainbook.knobs.resolve import Assignment, Resolver
from trainbook.knobs.text import from_mapping

if TYPE_CHECKING:
    from trainbook.runs.run_record import RunRecord


# A knob's path, and the argument of the Hugging Face trainer that does the same.
TRAINING_ARGUMENTS: Mapping[str, str] = {
    "optimizer.type": "optim",
    "optimizer.learning_rate": "learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.epsilon": "adam_epsilon",
    "schedule.type": "lr_scheduler_type",
    "schedule.warmup_steps": "warmup_steps",
    "schedule.warmup_ratio": "warmup_steps",
    "batch.per_device_train_batch_size": "per_device_train_batch_size",
    "batch.gradient_accumulation_steps": "gradient_accumulation_steps",
    "batch.max_grad_norm": "max_grad_norm",
    "training.max_steps": "max_steps",
    "training.num_train_epochs": "num_train_epochs",
    "training.seed": "seed",
    "training.deterministic": "full_determinism",
    "training.label_smoothing": "label_smoothing_factor",
    "precision.compute": "bf16",
    "precision.tf32": "tf32",
    "memory.gradient_checkpointing": "gradient_checkpointing",
    "memory.compile": "torch_compile",
    "data.num_workers": "dataloader_num_workers",
    "data.prefetch_factor": "dataloader_prefetch_factor",
    "data.pin_memory": "dataloader_pin_memory",
    "data.padding": "train_sampling_strategy",
    "distributed.find_unused_parameters": "ddp_find_unused_parameters",
    "distributed.bucket_mb": "ddp_bucket_cap_mb",
    "distributed.timeout": "ddp_timeout",
    "distributed.deepspeed_config": "deepspeed",
    "evaluation.eval_strategy": "eval_strategy",
    "evaluation.eval_steps": "eval_steps",
    "evaluation.eval_on_start": "eval_on_start",
    "evaluation.per_device_eval_batch_size": "per_device_eval_batch_size",
    "evaluation.metric_for_best_model": "metric_for_best_model",
    "checkpoint.save_steps": "save_steps",
    "checkpoint.save_total_limit": "save_total_limit",
    "logging.logging_steps": "logging_steps",
    "logging.report_to": "report_to",
}

# Words for values, where theirs differ from ours.
VALUES: Mapping[str, Mapping[str, str]] = {
    "optimizer.type": {"adamw": "adamw_torch", "lion": "lion_32bit"},
    "schedule.type": {"constant": "constant_with_warmup"},
    "memory.gradient_checkpointing": {"off": "False", "selective": "True", "full": "True"},
    "memory.compile": {"on": "True", "off": "False"},
}
HALF_PRECISION = {"bf16": "bf16=True, fp16=False", "fp16": "fp16=True, bf16=False"}
WORDS = {"true": "True", "false": "False", "null": "None"}

# What is not an argument there, but can be had.
ELSEWHERE: Mapping[str, str] = {
    "evaluation.early_stopping_patience": "EarlyStoppingCallback(early_stopping_patience={value})",
    "evaluation.early_stopping_threshold": "EarlyStoppingCallback(early_stopping_threshold={value})",
    "training.mask_ratio": "DataCollatorForLanguageModeling(mlm_probability={value})",
    "schedule.floor": "lr_scheduler_type=cosine_with_min_lr lr_scheduler_kwargs={{'min_lr_rate': {value}}}",
}
TRAINER = "TrainingArguments"

# Of a log whose tool is not known: names that any training script may have.
PLAIN: Mapping[str, str] = {
    "optimizer.type": "optimizer",
    "batch.global_batch_size": "batch_size",
    "batch.per_device_train_batch_size": "batch_size",
    "training.num_train_epochs": "epochs",
    "precision.compute": "precision",
}


def foreign_override(record: RunRecord, override: str) -> str:
    """`optimizer.learning_rate=1e-4` as `learning_rate=1e-4 (TrainingArguments)`; several, as they are written.

    A run of our own takes overrides as they are.
    """
    if record.origin in ("trainbook", "fit") or "=" not in override:
        return override
    there = f": no equivalent in {TRAINER}" if _is_of_trainer(record) else ""
    told = [_one(record, part) or (part, f"Trainbook's name{there}") for part in override.split()]
    return ", ".join(f"{words} ({whose})" for words, whose in told)


def in_their_words(record: RunRecord, override: str) -> str | None:
    """The same without saying whose words they are; None where the other tool has nothing like it."""
    if record.origin == "trainbook":
        return override
    if record.origin == "fit":
        return as_keyword_argument(override)
    told = _one(record, override)
    return told[0] if told else None


def where_to_set(record: RunRecord, override: str) -> str:
    """An override as the user of this run sets it: of `fit`, a keyword argument in the call."""
    return f"trainbook.fit(…, {override})" if record.origin == "fit" else override


def by_hand(record: RunRecord, override: str) -> tuple[str, str]:
    """How a change is tried with a module of the user's own: the call in Python, and the command that compares."""
    name = f"{record.name}-tried"
    folders, where = [record.name, name], ""
    if record.path is not None:
        folders = [str(record.path), str(record.path.parent / name)]
        where = "" if str(record.path.parent) == "runs" else f', runs_dir="{record.path.parent}"'
    call = f'trainbook.fit(new_model, data, loss=loss, …, name="{name}"{where}, {override})'
    return call, shlex.join(["trainbook", "compare", *folders])


def names_for(names: Mapping[str, str], is_hugging_face: bool = False) -> dict[str, str]:
    """What a run calls the knobs: as `TrainingArguments` does, or as its own settings do, as far as these go."""
    return dict(TRAINING_ARGUMENTS) if is_hugging_face else dict(names)


def _is_of_trainer(record: RunRecord) -> bool:
    return record.origin == "huggingface" or record.names == TRAINING_ARGUMENTS


def _one(record: RunRecord, override: str) -> tuple[str, str] | None:
    """In their words, and whose these are."""
    path, _, value = override.partition("=")
    name = record.names.get(path)
    if not _is_of_trainer(record):
        if name is not None:
            return f"{name}={WORDS.get(value, value)}", "as this run's settings call it"
        return _plain(path, value)
    if path == "precision.compute":
        return HALF_PRECISION.get(value, "bf16=False, fp16=False"), TRAINER
    if path == "schedule.warmup_ratio":
        return f"warmup_steps={value}", f"{TRAINER}; before transformers 5: warmup_ratio={value}"
    if path == "batch.global_batch_size":
        return _global_batch(record, value)
    if path == "data.padding":
        sorted_by_length = (
            "train_sampling_strategy=group_by_length",
            f"{TRAINER}; before transformers 5: group_by_length",
        )
        return sorted_by_length if value == "bucketed" else None
    if path in TRAINING_ARGUMENTS:
        theirs = VALUES.get(path, WORDS).get(value, WORDS.get(value, value))
        return f"{TRAINING_ARGUMENTS[path]}={theirs}", TRAINER
    if path in ELSEWHERE:
        return ELSEWHERE[path].format(value=value), "transformers"
    if path.startswith("model."):
        return override.removeprefix("model."), "in the model's configuration"
    if override == "guard.enabled=true" and record.origin == "huggingface":
        return "callbacks=[GuardCallback()]", "trainbook.guard.huggingface, for the Trainer"
    return None


# Code in a program of one's own, and no setting that any script would have.
ONLY_IN_CODE = ("schedule.type", "data.padding")


def _plain(path: str, value: str) -> tuple[str, str] | None:
    if path.startswith("model."):
        return f"{path.removeprefix('model.')}={value}", "in the model's configuration"
    if path not in (*TRAINING_ARGUMENTS, *ELSEWHERE, *PLAIN) or path in ONLY_IN_CODE:
        return None
    return f"{PLAIN.get(path, path.rpartition('.')[2])}={WORDS.get(value, value)}", "a usual name"


def _global_batch(record: RunRecord, value: str) -> tuple[str, str]:
    """The trainer states its parts: accumulation follows from the batch of a device, as far as that is known."""
    each = record.settings.get("batch.per_device_train_batch_size")
    if isinstance(each, int) and re.fullmatch(r"\d+", value) and int(value) % each == 0:
        return (
            f"gradient_accumulation_steps={int(value) // each}",
            f"{TRAINER}; on one device, with {each} per device",
        )
    return f"per_device_train_batch_size × gradient_accumulation_steps × devices = {value}", TRAINER


# Other tools' settings, as knobs: by the names that knobs are known under elsewhere.


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
    if renamed.get("optim") == "sgd" and not renamed.get("optim_args"):
        renamed["sgd_momentum"] = 0.0  # there it has none, unless it is told to
    return renamed


def is_hugging_face(config: Mapping[str, Any]) -> bool:
    return "per_device_train_batch_size" in config and "lr_scheduler_type" in config


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML or JSON file of settings; empty if it cannot be read as one: settings are a help, not the run."""
    try:
        content = json_text.read(path) if path.suffix == ".json" else yaml_text.load_untagged(read_text(path))
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
