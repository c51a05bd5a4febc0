"""BERT: learned positions, token types, a layer norm after each part, biases everywhere; three kinds of heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainbook.knobs import formats
from trainbook.knobs.config import Config
from trainbook.models.formats.rules import WeightRule, linear, norm
from trainbook.models.shape import Shape

ARCHITECTURES = {
    "masked": "BertForMaskedLM",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
}
HEAD: str = "cls.predictions.decoder.weight"  # the output matrix, which may be the embedding once more
ACTIVATIONS = formats.ACTIVATIONS["bert"]
IGNORED = (r"bert\.embeddings\.(position_ids|token_type_ids)", r"cls\.seq_relationship\..*", r"qa_outputs\..*")
# Heads for other work than this task's.
OTHER_HEADS = {
    "masked": (r"bert\.pooler\..*", r"classifier\..*"),
    "classify": (r"cls\.predictions\..*",),
    "tag": (r"cls\.predictions\..*", r"bert\.pooler\..*"),
}


def canonical(name: str) -> str:
    # The first files were converted from TensorFlow, which has other words for a norm's gain and shift.
    name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name
    name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def rules(shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]:
    width, inner = shape.hidden_size, shape.intermediate_size
    inside = "bert.embeddings"
    yield WeightRule("body.token_embedding.weight", (f"{inside}.word_embeddings.weight",), rows="vocabulary")
    yield WeightRule(
        "body.position_embedding.weight",
        (f"{inside}.position_embeddings.weight",),
        rows="positions",
        zeros=(shape.num_positions, width),
    )
    yield WeightRule("body.type_embedding.weight", (f"{inside}.token_type_embeddings.weight",), zeros=(1, width))
    yield from norm("body.embedding_norm", f"{inside}.LayerNorm", width, shift=True)
    for layer in range(shape.num_hidden_layers):
        ours, theirs = f"body.blocks.{layer}", f"bert.encoder.layer.{layer}"
        yield from linear(
            f"{ours}.attention.query_key_value",
            *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")),
            parts=(width, width, width),
            bias=3 * width,
        )
        yield from linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense", bias=width)
        yield from norm(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm", width, shift=True)
        yield from linear(f"{ours}.feed_forward.up", f"{theirs}.intermediate.dense", bias=inner)
        yield from linear(f"{ours}.feed_forward.down", f"{theirs}.output.dense", bias=width)
        yield from norm(f"{ours}.feed_forward_norm", f"{theirs}.output.LayerNorm", width, shift=True)
    yield from _head(shape, kind, tied)


def _head(shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]:
    width, inside = shape.hidden_size, "cls.predictions"
    if kind == "masked":
        yield from linear("transform", f"{inside}.transform.dense", bias=width, may_be_new=True)
        yield from norm("transform_norm", f"{inside}.transform.LayerNorm", width, shift=True, may_be_new=True)
        yield WeightRule(
            "head.bias",
            (f"{inside}.bias",),
            rows="vocabulary",
            may_be_new=True,
            otherwise=f"{inside}.decoder.bias",
            copies=() if tied else (f"{inside}.decoder.bias",),
        )
        if not tied:
            yield WeightRule("head.weight", (HEAD,), rows="vocabulary", may_be_new=True)
        return
    if kind == "classify":
        yield from linear("pooler", "bert.pooler.dense", bias=width, may_be_new=True)
    yield WeightRule("head.weight", ("classifier.weight",), rows="labels", may_be_new=True)
    yield WeightRule("head.bias", ("classifier.bias",), rows="labels", may_be_new=True)


def ignored(name: str, kind: str, tied: bool) -> bool:
    if name == "cls.predictions.decoder.bias" or (tied and name == HEAD):
        return True  # the same numbers under a second name
    return any(re.fullmatch(pattern, name) for pattern in (*IGNORED, *OTHER_HEADS[kind]))


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    model = config.model
    return {
        "model_type": "bert",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.num_positions,
        "type_vocab_size": max(1, shape.token_types),
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "hidden_act": ACTIVATIONS[model.activation],
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.dropout,
        "initializer_range": model.initializer_range,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": model.tie_embeddings,
    }
