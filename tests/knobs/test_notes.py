"""Everything that the playbook notes name, and what of Trainbook serves it.

A parameter, value or remedy is served by a knob (under the name that the notes use), by a rule of the program, or by a
study. What is not served yet is listed as to come, so that the list can only get shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainbook.knobs import declarations, load

TO_COME = "to come"


@dataclass(frozen=True)
class Named:
    note: int
    name: str  # as the note writes it
    served_by: str  # a knob's path, "rule: …", or TO_COME
    value: object = None  # the value that the note gives it, in the note's own spelling


PARAMETERS = [
    # 000: order of importance, techniques, search
    Named(0, "learning_rate", "optimizer.learning_rate", 0.0001),
    Named(0, "momentum", "optimizer.momentum", 0.9),
    Named(0, "hidden_size", "model.hidden_size"),
    Named(0, "mini_batch_size", "batch.global_batch_size"),
    Named(0, "num_layers", "model.num_hidden_layers"),
    Named(0, "lr_scheduler", "schedule.type"),
    Named(0, "beta1", "optimizer.beta1", 0.9),
    Named(0, "beta2", "optimizer.beta2", 0.999),
    Named(0, "epsilon", "optimizer.epsilon", 1e-8),
    Named(0, "bias", "model.bias", False),
    Named(0, "norm", "model.norm", "rmsnorm"),
    # 001: the blocks
    Named(1, "model_type", "model.type", "gpt"),
    Named(1, "model_type", "model.type", "bert"),
    Named(1, "model_type", "model.type", "t5"),
    Named(1, "num_hidden_layers", "model.num_hidden_layers", 12),
    Named(1, "hidden_size", "model.hidden_size", 768),
    Named(1, "intermediate_size", "model.intermediate_size", 3072),
    Named(1, "optimizer.type", "optimizer.type", "AdamW"),
    Named(1, "learning_rate", "optimizer.learning_rate", 5e-5),
    Named(1, "weight_decay", "optimizer.weight_decay", 0.01),
    Named(1, "beta1", "optimizer.beta1", 0.9),
    Named(1, "beta2", "optimizer.beta2", 0.999),
    Named(1, "epsilon", "optimizer.epsilon", 1e-8),
    Named(1, "per_device_train_batch_size", "batch.per_device_train_batch_size", 16),
    Named(1, "gradient_accumulation_steps", "batch.gradient_accumulation_steps", 4),
    Named(1, "max_grad_norm", "batch.max_grad_norm", 1.0),
    Named(1, "fp16", "precision.compute", True),
    Named(1, "loss_scale", "precision.loss_scale", "dynamic"),
    Named(1, "initial_scale_power", "precision.initial_scale_power", 16),
    Named(1, "gradient_checkpointing", "memory.gradient_checkpointing", True),
    Named(1, "max_seq_length", "data.max_seq_length", 512),
    Named(1, "padding", "data.padding", "max_length"),
    Named(1, "padding", "data.padding", "longest"),
    Named(1, "truncation", "data.truncation", True),
    Named(1, "scheduler", "schedule.type", "cosine"),
    Named(1, "scheduler", "schedule.type", "linear"),
    Named(1, "scheduler", "schedule.type", "polynomial"),
    Named(1, "scheduler", "schedule.type", "cosine_with_restarts"),
    Named(1, "num_warmup_steps", "schedule.warmup_steps", 500),
    Named(1, "num_training_steps", "training.max_steps", 50000),
    Named(1, "strategy", "distributed.strategy", "ddp"),
    Named(1, "strategy", "distributed.strategy", "deepspeed"),
    Named(1, "find_unused_parameters", "distributed.find_unused_parameters", False),
    Named(1, "sync_batch_norm", "distributed.sync_batch_norm", True),
    Named(1, "evaluation_strategy", "evaluation.eval_strategy", "steps"),
    Named(1, "evaluation_strategy", "evaluation.eval_strategy", "epoch"),
    Named(1, "eval_steps", "evaluation.eval_steps", 500),
    Named(1, "metric_for_best_model", "evaluation.metric_for_best_model", "loss"),
    Named(1, "save_total_limit", "checkpoint.save_total_limit", 2),
    Named(1, "logging_steps", "logging.logging_steps", 10),
    Named(1, "logging_dir", "logging.logging_dir", "./logs"),
    Named(1, "report_to", "logging.report_to", ["wandb", "tensorboard"]),
    Named(1, "num_workers", "data.num_workers", 4),
    # 002: stability
    Named(2, "gradient_clipping", "batch.max_grad_norm", 1.0),
    Named(2, "parametrization", "model.parametrization", "mup"),
    Named(2, "compute", "precision.compute", "bf16"),
    Named(2, "z_loss", "training.z_loss", 1e-4),
    Named(2, "norm", "model.norm", "layernorm"),
    Named(2, "beta2", "optimizer.beta2", 0.95),
    Named(2, "bias", "model.bias", False),
    Named(2, "deterministic", "training.deterministic", True),
    Named(2, "guard_enabled", "guard.enabled", True),
    # 003: the small fine-tuning settings
    Named(3, "per_device_batch_size", "batch.per_device_train_batch_size", 1),
    Named(3, "gradient_accumulation_steps", "batch.gradient_accumulation_steps", 4),
    Named(3, "epochs", "training.num_train_epochs", 5),
    Named(3, "learning_rate", "optimizer.learning_rate", 2e-4),
    Named(3, "weight_dtype", "precision.weights", "bfloat16"),
    Named(3, "weight_dtype", "precision.weights", "float16"),
    Named(3, "save_total_limit", "checkpoint.save_total_limit", 3),
    Named(3, "logging_steps", "logging.logging_steps", 1),
    Named(3, "optim", "optimizer.type", "paged_adamw_8bit"),
    Named(3, "lr_scheduler_type", "schedule.type", "cosine"),
    Named(3, "warmup_ratio", "schedule.warmup_ratio", 0.05),
    # 004: the large-scale configuration
    Named(4, "learning_rate", "optimizer.learning_rate", 1e-4),
    Named(4, "batch_size", "batch.global_batch_size", 512),
    Named(4, "sequence_length", "data.max_seq_length", 2048),
    Named(4, "optimizer.type", "optimizer.type", "AdamW"),
    Named(4, "betas", "optimizer.beta2", [0.9, 0.95]),
    Named(4, "weight_decay", "optimizer.weight_decay", 0.01),
    Named(4, "scheduler.type", "schedule.type", "CosineAnnealingLR"),
    Named(4, "warmup_steps", "schedule.warmup_steps", 10000),
    Named(4, "dropout", "model.dropout", 0.1),
    Named(4, "gradient_clipping", "batch.max_grad_norm", 1.0),
    Named(4, "fp16", "precision.compute", True),
    Named(4, "gradient_checkpointing", "memory.gradient_checkpointing", True),
]

# What the notes ask of a training system beyond parameters: a symptom's remedy, a way of searching, a habit.
REMEDIES = [
    Named(0, "random search, not a grid", TO_COME),
    Named(0, "log scale for rates, log of 1 - beta", "rule: every searchable knob declares its scale"),
    Named(0, "zoom in on the good region", TO_COME),
    Named(0, "covariate shift", "rule: trainbook data scores a classifier of training against validation texts"),
    Named(0, "review paper with demonstrations", TO_COME),
    Named(0, "slack context", TO_COME),
    Named(1, "out of memory: reduce batch size", "batch.per_device_train_batch_size"),
    Named(1, "out of memory: gradient checkpointing", "memory.gradient_checkpointing"),
    Named(1, "out of memory: mixed precision", "precision.compute"),
    Named(1, "out of memory: reduce sequence length", "data.max_seq_length"),
    Named(1, "NaN gradients", "guard.enabled"),
    Named(1, "instability: reduce learning rate", "optimizer.learning_rate"),
    Named(1, "instability: increase warm-up", "schedule.warmup_steps"),
    Named(1, "instability: gradient clipping", "batch.max_grad_norm"),
    Named(1, "instability: monitor gradient norms", "rule: every row has the norm before clipping"),
    Named(1, "speed: increase batch size", "batch.per_device_train_batch_size"),
    Named(1, "speed: optimise data loading", "data.num_workers"),
    Named(1, "memory: monitor usage", "rule: every row has the memory in use"),
    Named(1, "dynamic padding", "data.padding"),
    Named(1, "log densely early", "logging.dense_steps"),
    Named(1, "monitor GPU utilization", "rule: every row on a GPU has it, with nvidia-ml-py installed"),
    Named(2, "skip updates over a threshold", "guard.skip_threshold"),
    Named(2, "skip bad samples", "guard.quarantine"),
    Named(2, "restart from an earlier checkpoint", "rule: a damaged checkpoint is passed over for an older one"),
    Named(2, "roll back by itself", "guard.max_rollbacks"),
    Named(2, "fp32 norms and reductions", "rule: norms, losses and the gradient norm are fp32 with every precision"),
    Named(2, "question batches over 4-8 million tokens", TO_COME),
    Named(2, "transfer over width by muP", TO_COME),
    Named(4, "change one hyper-parameter at a time", TO_COME),
    Named(4, "larger models: DeepSpeed", "distributed.strategy"),
    Named(4, "monitor training and validation loss", "evaluation.eval_strategy"),
]

# Where a note is wrong, the knob says so: the knob, and words that its correction must hold.
CORRECTIONS = {
    "logging.logging_steps": "less often",
    "optimizer.beta2": "1,000",
    "precision.compute": "memory",
}

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
KNOBS = {declaration.path: declaration.knob for declaration in declarations()}
# A law that a lone value would break is kept by these.
COMPANIONS = {
    "momentum": {"optimizer": {"type": "sgd"}},
    "parametrization": {"model": {"base_hidden_size": 64}},
    "loss_scale": {"fp16": True},
    "initial_scale_power": {"fp16": True},
    "padding": {"data": {"samples": "documents"}},
    "truncation": {"data": {"samples": "documents"}},
    ("weight_dtype", "bfloat16"): {"bf16": True},
    ("weight_dtype", "float16"): {"model": {"type": "own.model:Net", "pretrained": "own", "lora_rank": 8}},
}


def nested(name: str, value: object) -> dict:
    section, _, key = name.rpartition(".")
    return {section: {key: value}} if section else {key: value}


@pytest.mark.parametrize("named", PARAMETERS, ids=lambda i: f"{i.note}-{i.name}")
def test_a_served_parameter_sets_its_knob_under_the_name_and_value_of_the_notes(named):
    assert named.served_by in KNOBS
    if named.value is not None:
        companions = COMPANIONS.get(named.name) or COMPANIONS.get((named.name, str(named.value)), {})
        loaded = load({**nested(named.name, named.value), **companions})
        assert loaded.origins[named.served_by].kind == "file"


@pytest.mark.parametrize("named", REMEDIES, ids=lambda item: item.name)
def test_a_remedy_is_a_knob_a_rule_or_to_come(named):
    assert named.served_by in KNOBS or named.served_by.startswith("rule: ") or named.served_by == TO_COME


def test_every_searchable_knob_declares_its_scale_as_the_notes_ask():
    scales = {path: knob.search.scale for path, knob in KNOBS.items() if knob.search is not None}
    assert scales["optimizer.learning_rate"] == "log"
    assert scales["optimizer.beta1"] == scales["optimizer.beta2"] == scales["optimizer.momentum"] == "log_one_minus"


@pytest.mark.parametrize("path", CORRECTIONS)
def test_where_the_notes_err_the_knob_says_so(path):
    assert CORRECTIONS[path] in KNOBS[path].correction


def test_every_key_in_the_code_blocks_of_the_notes_is_listed():
    if not SEEDS.is_dir():
        return  # the notes are not part of the repository
    wrappers = {"optimizer", "scheduler", "fp16", "enabled"}
    listed = {item.name.split(".")[-1] for item in PARAMETERS} | wrappers
    missing = {}
    for path in sorted(SEEDS.glob("*.txt")):
        for block in re.findall(r"```(?:python|yaml)\n(.*?)(?:```|\Z)", path.read_text(), re.DOTALL):
            keys = set(re.findall(r'^\s*"?(\w+)"?\s*[:=]\s', block, re.MULTILINE))
            keys = {key for key in keys if not key.endswith("config")}
            if keys - listed:
                missing[path.name] = keys - listed
    assert missing == {}
