"""T5: relative positions, RMS norms before each part, no biases, attention without a scale; two stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainbook.knobs import formats
from trainbook.knobs.config import Config
from trainbook.models.formats.rules import WeightRule, linear, norm
from trainbook.models.positions import MAX_DISTANCE, NUM_BUCKETS
from trainbook.models.shape import Shape

ARCHITECTURES = {"seq2seq": "T5ForConditionalGeneration"}
HEAD: str = "lm_head.weight"  # the output matrix, which may be the embedding once more
ACTIVATIONS = formats.ACTIVATIONS["t5"]
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",
    # Of the first files: looking across has no positions, and nothing ever read it.
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)


def canonical(name: str) -> str:
    return name.removeprefix("transformer.")


def rules(shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]:
    embedding = WeightRule(
        "body.token_embedding.weight", ("shared.weight",), rows="vocabulary", otherwise="encoder.embed_tokens.weight"
    )
    yield embedding
    yield from _stack(shape, "encoder", shape.num_hidden_layers)
    yield from _stack(shape, "decoder", shape.num_decoder_layers)
    if not tied:
        # A head of its own that still has the embedding's numbers is not always written.
        yield WeightRule("head.weight", (HEAD,), rows="vocabulary", otherwise="shared.weight")


def _stack(shape: Shape, stack: str, layers: int) -> Iterator[WeightRule]:
    width, rows = shape.hidden_size, shape.num_attention_heads * shape.head_width
    yield WeightRule(
        f"body.{stack}.relative_bias.weight",
        (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
        zeros=(NUM_BUCKETS, shape.num_attention_heads),
    )
    for layer in range(layers):
        ours, theirs = f"body.{stack}.blocks.{layer}", f"{stack}.block.{layer}.layer"
        attention = f"{theirs}.0.SelfAttention"
        yield from norm(f"{ours}.attention_norm", f"{theirs}.0.layer_norm", width, shift=False)
        yield from linear(
            f"{ours}.attention.query_key_value",
            *(f"{attention}.{part}" for part in "qkv"),
            parts=(rows, rows, rows),
        )
        yield from linear(f"{ours}.attention.output", f"{attention}.o")
        last = 1
        if stack == "decoder":
            last, across = 2, f"{theirs}.1.EncDecAttention"
            yield from norm(f"{ours}.cross_attention_norm", f"{theirs}.1.layer_norm", width, shift=False)
            yield from linear(f"{ours}.cross_attention.query", f"{across}.q")
            yield from linear(f"{ours}.cross_attention.key_value", f"{across}.k", f"{across}.v", parts=(rows, rows))
            yield from linear(f"{ours}.cross_attention.output", f"{across}.o")
        inner, part = shape.intermediate_size, f"{theirs}.{last}.DenseReluDense"
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.{last}.layer_norm", width, shift=False)
        if ACTIVATIONS.get(shape.activation, "").startswith("gated-"):
            yield from linear(f"{ours}.feed_forward.up", f"{part}.wi_0", f"{part}.wi_1", parts=(inner, inner))
        else:
            yield from linear(f"{ours}.feed_forward.up", f"{part}.wi")
        yield from linear(f"{ours}.feed_forward.down", f"{part}.wo")
    yield from norm(f"body.{stack}.final_norm", f"{stack}.final_layer_norm", width, shift=False)


def ignored(name: str, kind: str, tied: bool) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in IGNORED) or (tied and name == HEAD)


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    model = config.model
    return {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": shape.vocab_size,
        **({} if model.num_positions is None else {"n_positions": model.num_positions}),
        "d_model": shape.hidden_size,
        "d_kv": shape.head_width,
        "d_ff": shape.intermediate_size,
        "num_layers": shape.num_hidden_layers,
        "num_decoder_layers": shape.num_decoder_layers,
        "num_heads": shape.num_attention_heads,
        "feed_forward_proj": ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.norm_epsilon,
        "relative_attention_num_buckets": NUM_BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "dropout_rate": model.dropout,
        "initializer_factor": 1.0,
        # Two words for one thing: older versions read the first, newer ones the second.
        "tie_word_embeddings": model.tie_embeddings,
        "scale_decoder_outputs": model.tie_embeddings,
    }
