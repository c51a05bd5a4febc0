"""GPT-2: learned positions, layer norms before each part, plain feed-forward, biases everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainbook.knobs import formats
from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size
from trainbook.models.formats.rules import WeightRule, linear, norm
from trainbook.models.shape import Shape

ARCHITECTURES = {"causal": "GPT2LMHeadModel"}
HEAD: str = "lm_head.weight"  # the output matrix, which may be the embedding once more
ACTIVATIONS = formats.ACTIVATIONS["gpt2"]
# Masks that older files keep as weights; heads for other work.
IGNORED = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", r"score\.weight", r"multiple_choice_head\..*")


def canonical(name: str) -> str:
    """A model saved without its head has names without the prefix."""
    return (
        name
        if name.startswith(("transformer.", "lm_head.", "score.", "multiple_choice_head."))
        else f"transformer.{name}"
    )


def rules(shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]:
    width, inner = shape.hidden_size, shape.intermediate_size
    yield WeightRule("body.token_embedding.weight", ("transformer.wte.weight",), rows="vocabulary")
    yield WeightRule(
        "body.position_embedding.weight",
        ("transformer.wpe.weight",),
        rows="positions",
        zeros=(shape.num_positions, width),
    )
    for layer in range(shape.num_hidden_layers):
        ours, theirs = f"body.blocks.{layer}", f"transformer.h.{layer}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.ln_1", width, shift=True)
        # Their matrices have inputs as rows.
        yield from linear(f"{ours}.attention.query_key_value", f"{theirs}.attn.c_attn", transposed=True, bias=3 * width)
        yield from linear(f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True, bias=width)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", width, shift=True)
        yield from linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", transposed=True, bias=inner)
        yield from linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", transposed=True, bias=width)
    yield from norm("body.final_norm", "transformer.ln_f", width, shift=True)
    if not tied:
        yield WeightRule("head.weight", (HEAD,), rows="vocabulary")


def ignored(name: str, kind: str, tied: bool) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in IGNORED) or (tied and name == HEAD)


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    model = config.model
    return {
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.num_positions,
        "n_ctx": shape.num_positions,
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_hidden_layers,
        "n_head": shape.num_attention_heads,
        "n_inner": intermediate_size(config),
        "activation_function": ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.norm_epsilon,
        "scale_attn_weights": model.attention_scale != "none",
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "initializer_range": model.initializer_range,
        "tie_word_embeddings": model.tie_embeddings,
    }
