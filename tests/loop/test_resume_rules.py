"""The reasons that `explain` gives for what may change on resume, tried on models and runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainbook.knobs import declarations
from trainbook.knobs.resume import (
    FROZEN_WEIGHTS,
    FUNCTION,
    REGULARIZATION,
    SHAPE,
    STARTING_POINT,
    UNAFFECTED,
    resume_rule,
)

ROTARY = ("model.position=rotary",)
SLOWED = (*ROTARY, "model.rope_theta=100", "model.rope_factor=4")
YARN = (*SLOWED, "model.rope_scaling=yarn", "model.rope_original_positions=4096")
LLAMA3 = (*SLOWED, "model.rope_scaling=llama3", "model.rope_original_positions=64")
MUP = ("model.parametrization=mup", "model.base_hidden_size=32", "model.base_head_width=8")
DEEP = (*MUP, "model.num_hidden_layers=2", "model.base_num_hidden_layers=1")
ADAPTED = ("model.pretrained={base}", "model.lora_rank=2")
T5 = ("model.type=t5", "model.position=relative", "data.samples=documents")
# knob: what the run has, and what changes
TRIED: dict[str, tuple[tuple[str, ...], str]] = {
    "model.num_hidden_layers": ((), "2"),
    "model.num_decoder_layers": (T5, "2"),
    "model.hidden_size": ((), "32"),
    "model.intermediate_size": ((), "32"),
    "model.num_attention_heads": ((), "4"),
    "model.head_width": ((), "4"),
    "model.num_key_value_heads": ((), "1"),
    "model.dropout": ((), "0.5"),
    "model.bias": ((), "true"),
    "model.norm": ((), "rmsnorm"),
    "model.norm_epsilon": ((), "0.1"),
    "model.activation": ((), "relu"),
    "model.position": ((), "rotary"),
    "model.attention_scale": ((), "none"),
    "model.rope_theta": (ROTARY, "10"),
    "model.num_positions": ((), "64"),
    "model.vocab_rows": ((), "600"),
    "model.qkv_bias": ((), "true"),
    "model.sliding_window": ((), "2"),
    "model.rope_scaling": (YARN, "llama3"),
    "model.rope_factor": (YARN, "8"),
    "model.rope_original_positions": (YARN, "256"),
    "model.rope_low_frequency": (LLAMA3, "0.5"),
    "model.rope_high_frequency": (LLAMA3, "2"),
    "model.rope_beta_fast": (YARN, "256"),
    "model.rope_beta_slow": (YARN, "8"),
    "model.rope_attention_factor": (YARN, "2"),
    "model.tie_embeddings": ((), "false"),
    "model.qk_norm": ((), "true"),
    "model.embedding_skip": ((), "true"),
    "model.value_embeddings": ((), "alternate"),
    "model.logit_soft_cap": ((), "0.1"),
    "model.base_hidden_size": (MUP, "8"),
    "model.base_head_width": (MUP, "2"),
    "model.base_num_hidden_layers": (DEEP, "2"),
    "model.depth_exponent": (DEEP, "0.5"),
    "model.embedding_multiplier": ((), "4"),
    "model.output_multiplier": ((), "4"),
    "model.initializer_range": ((), "0.1"),
    "model.residual_init": ((), "zero"),
    "model.vocab_multiple": ((), "512"),
    "model.lora_rank": (ADAPTED, "4"),
    "model.lora_alpha": (ADAPTED, "64"),
    "model.lora_dropout": (ADAPTED, "0.5"),
    "model.lora_targets": (ADAPTED, "[query_key_value]"),
}
ELSEWHERE = {
    "model.type": SHAPE,
    "model.family": UNAFFECTED,
    "model.pretrained": STARTING_POINT,
    "model.token_types": SHAPE,  # BERT's
    "model.norm_position": FUNCTION,
    "model.parametrization": FUNCTION,  # the same model with base sizes
    "model.quantize_base": FROZEN_WEIGHTS,  # needs a GPU
}


def test_every_model_knob_is_tried_or_accounted_for() -> None:
    paths = {declaration.path for declaration in declarations() if declaration.section == "model"}
    assert paths == TRIED.keys() | ELSEWHERE.keys()
    assert {path: resume_rule(path) for path in ELSEWHERE} == ELSEWHERE


@pytest.mark.parametrize("path", TRIED)
def test_the_reason_given_for_a_model_knob_is_the_true_one(lab, path):
    context, value = TRIED[path]
    if context is ADAPTED:
        lab.train("training.max_steps=4", name="base")
    context = tuple(override.format(base=lab.runs / "base") for override in context)
    kept = tuple(override for override in context if not override.startswith(f"{path}="))
    old, new = (lab.build(*overrides) for overrides in (context, (*kept, f"{path}={value}")))
    rule = resume_rule(path)
    train_a_little(old.state.task)
    fits = shapes(old.state.task) == shapes(new.state.task)
    assert fits == (rule is not SHAPE), path
    if fits:
        new.state.task.load_state_dict(old.state.task.state_dict())
        same = old.evaluate()["loss"] == new.evaluate()["loss"]
        assert same == (rule in (REGULARIZATION, STARTING_POINT)), path


def train_a_little(task: nn.Module) -> None:
    """Without the zeros and ones of an untrained model, which hide what a multiplier does."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def shapes(task: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in task.named_parameters()}
