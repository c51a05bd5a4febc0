"""What may change when a run is resumed, and why the rest may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.sections.model_rope import ROPE

# free: may change. schedule: only with --accept-changes. fixed: never.
Policy = Literal["free", "schedule", "fixed"]


@dataclass(frozen=True)
class ResumeRule:
    """Whether a knob may change on resume, and the reason."""

    policy: Policy
    why: str


UNAFFECTED = ResumeRule("free", "training does not depend on it")
READINGS = ResumeRule(
    "free",
    "training depends on it only where updates are rejected: the guard responds to them when a row is logged, so "
    "another interval can lead to other weights",
)
ROUNDING = ResumeRule("free", "only speed, memory and rounding depend on it")
SAME_DATA = ResumeRule("free", "allowed if the data stays the same, which is checked by its fingerprint")

REST_OF_RUN = ResumeRule("schedule", "changes the rest of the run")
ROUNDS_MORE = ResumeRule("schedule", "changes the rounding in the rest of the run")
REGULARIZATION = ResumeRule("schedule", "the weights still fit; the rest of the run is regularized differently")
JUDGED_BY_OLD = ResumeRule("schedule", "the best checkpoint so far was chosen by the old value")

SHAPE = ResumeRule("fixed", "the model's parameters or their shapes would not match the checkpoint")
FUNCTION = ResumeRule("fixed", "the weights were trained with the old value; another value changes what they compute")
STARTING_POINT = ResumeRule("fixed", "it acts only when a run starts, so a new value would have no effect")
FROZEN_WEIGHTS = ResumeRule("fixed", "the adapters were trained on top of the frozen weights as they were stored")
OPTIMIZER_STATE = ResumeRule("fixed", "the optimizer state of one type does not fit another")
TOKENS = ResumeRule("fixed", "the embeddings were trained for the old token ids")
BATCHES = ResumeRule(
    "fixed", "it changes which tokens form a batch, so the run could not continue at its position in the data"
)

OF_SECTION: Mapping[str, ResumeRule] = {
    "model": SHAPE,
    "optimizer": REST_OF_RUN,
    "schedule": REST_OF_RUN,
    "batch": REST_OF_RUN,
    "training": REST_OF_RUN,
    "precision": ROUNDS_MORE,
    "memory": ROUNDING,
    "data": REST_OF_RUN,
    "distributed": ROUNDING,
    "evaluation": UNAFFECTED,
    "checkpoint": UNAFFECTED,
    "logging": UNAFFECTED,
    "guard": REST_OF_RUN,
}

_EXCEPTIONS: Mapping[ResumeRule, tuple[str, ...]] = {
    FUNCTION: (
        "model.num_attention_heads",
        "model.norm",
        "model.norm_epsilon",
        "model.norm_position",
        "model.activation",
        "model.attention_scale",
        "model.rope_theta",
        *ROPE,
        "model.sliding_window",
        "model.logit_soft_cap",
        "model.parametrization",
        "model.base_hidden_size",
        "model.base_head_width",
        "model.base_num_hidden_layers",
        "model.depth_exponent",
        "model.embedding_multiplier",
        "model.output_multiplier",
        "model.lora_alpha",
    ),
    REGULARIZATION: ("model.dropout", "model.lora_dropout"),
    STARTING_POINT: ("model.initializer_range", "model.residual_init", "model.pretrained"),
    FROZEN_WEIGHTS: ("model.quantize_base",),
    OPTIMIZER_STATE: ("optimizer.type",),
    ROUNDING: ("training.deterministic", "training.device"),
    SAME_DATA: (
        "data.source",
        "data.validation",
        "data.validation_ratio",
        "data.text_field",
        "data.label_field",
        "data.target_field",
        "data.group_field",
        "data.bad_lines",
        "data.repetition_filter",
        "data.gopher_filter",
        "data.chat_template",
        "data.mask_prompt",
    ),
    TOKENS: ("data.tokenizer", "data.vocab_size"),
    BATCHES: (
        "data.max_seq_length",
        "data.samples",
        "data.padding",
        "data.truncation",
        "data.truncation_side",
        "data.max_target_length",
    ),
    UNAFFECTED: ("model.family", "data.num_workers", "data.prefetch_factor", "data.pin_memory", "data.cache_dir"),
    READINGS: ("logging.logging_steps", "logging.dense_steps"),
    JUDGED_BY_OLD: ("evaluation.metric_for_best_model", "evaluation.target_unit"),
    ROUNDS_MORE: ("distributed.reduce_dtype", "distributed.gather_dtype"),
    REST_OF_RUN: ("distributed.sync_batch_norm", "precision.loss_scale"),
}
EXCEPTIONS: Mapping[str, ResumeRule] = {path: rule for rule, paths in _EXCEPTIONS.items() for path in paths}

RESUME_RULES: Mapping[str, ResumeRule] = {
    path: EXCEPTIONS.get(path, OF_SECTION[declaration.section]) for path, declaration in by_path().items()
}
RESUME_POLICY: Mapping[str, Policy] = {path: rule.policy for path, rule in RESUME_RULES.items()}


def resume_policy(path: str) -> Policy:
    return RESUME_POLICY[path]


def resume_rule(path: str) -> ResumeRule:
    return RESUME_RULES[path]


@dataclass(frozen=True)
class KnobChange:
    path: str
    old: Any
    new: Any


def difference(old: Config, new: Config) -> list[KnobChange]:
    """The knobs whose values differ, in the order of the tree."""
    return [KnobChange(path, old.get(path), new.get(path)) for path in by_path() if old.get(path) != new.get(path)]
