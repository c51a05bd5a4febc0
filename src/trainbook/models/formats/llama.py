"""Llama: rotary positions, RMS norms before each part, gated feed-forward, keys and values shared by heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainbook.knobs import formats
from trainbook.knobs.config import Config
from trainbook.models.formats.rules import WeightRule, linear, norm
from trainbook.models.positions import PLAIN_ROTATION, Rotation
from trainbook.models.shape import Shape

ARCHITECTURES = {"causal": "LlamaForCausalLM"}
HEAD: str = "lm_head.weight"  # the output matrix, which may be the embedding once more
ACTIVATIONS = formats.ACTIVATIONS["llama"]
IGNORED = (r".*\.rotary_emb\.inv_freq", r"score\.weight")


def canonical(name: str) -> str:
    return name if name.startswith(("model.", "lm_head.", "score.")) else f"model.{name}"


def rules(shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]:
    width, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_width, shape.num_key_value_heads * shape.head_width

    def bias(rows: int) -> int | None:
        return rows if shape.bias else None

    yield WeightRule("body.token_embedding.weight", ("model.embed_tokens.weight",), rows="vocabulary")
    for layer in range(shape.num_hidden_layers):
        ours, theirs = f"body.blocks.{layer}", f"model.layers.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", width, shift=False)
        yield from linear(
            f"{ours}.attention.query_key_value",
            *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
            parts=(queries, keys, keys),
            bias=queries + 2 * keys if shape.has_qkv_bias else None,
        )
        if shape.qk_norm:
            yield from norm(f"{ours}.attention.query_norm", f"{theirs}.self_attn.q_norm", width, shift=False)
            yield from norm(f"{ours}.attention.key_norm", f"{theirs}.self_attn.k_norm", width, shift=False)
        yield from linear(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", bias=bias(width))
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm", width, shift=False)
        yield from linear(
            f"{ours}.feed_forward.up",
            f"{theirs}.mlp.gate_proj",
            f"{theirs}.mlp.up_proj",
            parts=(inner, inner),
            bias=bias(2 * inner),
        )
        yield from linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.down_proj", bias=bias(width))
    yield from norm("body.final_norm", "model.norm", width, shift=False)
    if not tied:
        yield WeightRule("head.weight", (HEAD,), rows="vocabulary")


def ignored(name: str, kind: str, tied: bool) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in IGNORED) or (tied and name == HEAD)


def rope_parameters(rotation: Rotation) -> dict[str, Any]:
    """What is written is what the kind of scaling reads."""
    about: dict[str, Any] = {"rope_type": "default", "rope_theta": rotation.theta}
    if rotation.scaling == "none":
        return about
    about |= {"rope_type": rotation.scaling, "factor": rotation.factor}
    if rotation.scaling == "linear":
        return about
    about["original_max_position_embeddings"] = rotation.original_positions
    if rotation.scaling == "llama3":
        return about | {"low_freq_factor": rotation.low_frequency, "high_freq_factor": rotation.high_frequency}
    for name in ("beta_fast", "beta_slow", "attention_factor"):
        if (value := getattr(rotation, name)) != getattr(PLAIN_ROTATION, name):  # where it is left out, it is that
            about[name] = value
    return about


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    model = config.model
    return {
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.num_positions,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_width,
        "hidden_act": ACTIVATIONS[model.activation],
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,  # where older versions look for it
        "rope_parameters": rope_parameters(shape.rotation),
        **({} if shape.rotation.scaling == "none" else {"rope_scaling": rope_parameters(shape.rotation)}),
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
        "attention_dropout": model.dropout,
        "initializer_range": model.initializer_range,
        "tie_word_embeddings": model.tie_embeddings,
    }
