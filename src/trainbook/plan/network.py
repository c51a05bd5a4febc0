"""Every parameter of the built-in models, by name and shape, from the knobs alone.

The models themselves are not imported: a plan takes milliseconds and needs no torch. That the two agree, name by name
and shape by shape, is tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.architectures import LENGTH, shape_of_pretrained
from trainbook.knobs.config import Config
from trainbook.knobs.derive import (
    decoder_layers,
    head_width,
    intermediate_size,
    key_value_heads,
    max_target_length,
    num_positions,
    qkv_bias,
    task_name,
    value_layers,
    vocab_rows,
)
from trainbook.knobs.families import is_split, is_targeted, names_of, row_parts, unknown_target
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.plan.weights import Network, StackShape, Weight
from trainbook.roles import Kind

# A network whose pretrained weights are frozen, packed if asked to, with adapters beside them.


NEW = ("head.", "pooler.")  # of tasks that predict labels: the pretrained model had none, and they are trained whole
LABELLED = ("classify", "classify_many", "regress", "tag")
BITS = {"none": None, "4bit": 4, "8bit": 8}


def with_adapters(config: Config, model: Network, *, is_foreign: bool = False) -> Network:
    """Unchanged without model.lora_rank. A model of Hugging Face may name its layers in its own way: all are taken."""
    if config.model.lora_rank is None:
        return model
    if is_foreign:
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora_targets": None})})
    _must_be_there(config, model)
    stacks = tuple(
        StackShape(stack.name, stack.count, tuple(_adapted(config, stack.block)), stack.causal, stack.looks_across)
        for stack in model.stacks
    )
    return replace(model, stacks=stacks, rest=tuple(_adapted(config, model.rest)), is_adapted=True)


def _adapted(config: Config, weights: tuple[Weight, ...]) -> Iterator[Weight]:
    rank, bits = config.model.lora_rank, BITS[config.model.quantize_base]
    assert rank is not None
    for weight in weights:
        if task_name(config) in LABELLED and weight.name.startswith(NEW):
            yield replace(weight, is_trained_beside=True)
            continue
        is_linear = weight.kind is Kind.HIDDEN and len(weight.shape) == 2
        yield replace(weight, is_frozen=True, packed_bits=bits if is_linear else None)
        if is_linear:
            for name, rows in _adapters(config, weight):
                for part, shape in (("lora_A", (rank, weight.shape[1])), ("lora_B", (rows, rank))):
                    yield Weight(f"{name}.{part}.default.weight", shape, Kind.HIDDEN, is_trained_beside=True)


def _adapters(config: Config, weight: Weight) -> Iterator[tuple[str, int]]:
    """The layers beside which adapters are put, with their rows: several where peft has several matrices."""
    layer, targets = weight.name.removesuffix(".weight"), config.model.lora_targets
    names = names_of(config, layer)
    if not is_split(config, layer):
        if is_targeted(layer, names, targets):
            yield layer, weight.shape[0]
        return
    for name, rows in zip(names, row_parts(config, layer), strict=True):
        if is_targeted(layer, (name,), targets):
            yield f"{layer}.{name.rpartition('.')[2]}", rows


def _must_be_there(config: Config, model: Network) -> None:
    linear = [weight for weight, _ in model.grouped() if weight.kind is Kind.HIDDEN and len(weight.shape) == 2]
    layers = [weight.name.removesuffix(".weight") for weight in linear]
    named = {layer: names_of(config, layer) for layer in layers}
    for target in config.model.lora_targets or ():
        if not any(is_targeted(layer, names, (target,)) for layer, names in named.items()):
            raise UserError(unknown_target(target, [name for layer in layers for name in named[layer] or (layer,)]))


# Models of Hugging Face, as knobs of ours: their config.json says what they are made of.


def as_ours(config: Config) -> Config:
    """A configuration of model.type hf with the knobs of the built-in model that has the same shapes; any other as it
    is."""
    if config.model.type != "hf":
        return config
    name = config.model.pretrained
    if name is None:
        raise UserError(
            "plan: model.type hf needs model.pretrained: the folder of a model, or its name on the Hugging Face hub."
        )
    values = _values(name)
    knobs: dict[str, Any] = {path.removeprefix("model."): value for path, value in values.items() if path != LENGTH}
    knobs["vocab_multiple"] = 1  # their heads have as many rows as their config.json says
    update: dict[str, Any] = {
        "model": config.model.model_copy(update=knobs),
        "training": config.training.model_copy(update={"task": task_name(config)}),
    }
    return config.model_copy(update=update)


def learned_positions(config: Config) -> int | None:
    """Of a model of Hugging Face all are there, also those that are never reached."""
    return (
        _values(config.model.pretrained).get(LENGTH) if config.model.type == "hf" and config.model.pretrained else None
    )


@lru_cache(maxsize=8)
def _values(name: str) -> dict[str, Any]:
    return shape_of_pretrained(name)


__all__ = ["Network", "StackShape", "Weight", "network"]

GATED = ("swiglu", "geglu", "geglu_tanh")
RELATIVE_BUCKETS = 32
TASKS = ("causal", "chat", "masked", "span", "seq2seq", "classify", "classify_many", "regress", "tag")


def network(config: Config, vocab_size: int, num_labels: int = 1) -> Network:
    """`vocab_size` is the tokenizer's, and no knob; `num_labels` is of the data, for tasks that predict labels."""
    is_foreign, positions, config = config.model.type == "hf", learned_positions(config), as_ours(config)
    model, task = config.model, task_name(config)
    if model.type not in BUILT_IN or task not in TASKS:
        raise UserError(
            f"plan: model.type must be gpt, bert or t5 with one of its tasks, but got {model.type} with {task}. The "
            "size of other models is known only after they are built."
        )
    parts = _Parts(config, vocab_size, positions)
    if model.type == "t5":
        stacks, rest = parts.encoder_decoder()
    else:
        stacks, rest = parts.one_stack(causal=model.type == "gpt")
    head, num_outputs = parts.head(task, num_labels)
    whole = Network(
        stacks,
        (*rest, *head),
        hidden_size=parts.width,
        query_size=parts.query_size,
        key_value_size=parts.key_value_size,
        inner_size=parts.inner,
        num_heads=model.num_attention_heads,
        num_outputs=num_outputs,
        gated=parts.gated,
        is_tied=model.tie_embeddings,
    )
    return with_adapters(config, whole, is_foreign=is_foreign)


class _Parts:
    def __init__(self, config: Config, vocab_size: int, positions: int | None) -> None:
        self.config, self.model, self.positions = config, config.model, positions
        self.width, self.inner = config.model.hidden_size, intermediate_size(config)
        self.gated = config.model.activation in GATED
        self.head_width = head_width(config)
        self.query_size = config.model.num_attention_heads * self.head_width
        self.key_value_size = key_value_heads(config) * self.head_width
        multiple = config.model.vocab_multiple
        self.vocab_rows = math.ceil(vocab_rows(config, vocab_size) / multiple) * multiple

    def one_stack(self, *, causal: bool) -> tuple[tuple[StackShape, ...], list[Weight]]:
        model = self.model
        stack = StackShape("body.blocks", model.num_hidden_layers, tuple(self._block()), causal)
        rest = [*self._stack_rest("body"), self._table("body.token_embedding", self.vocab_rows)]
        if model.position == "learned":
            rows = self.positions or num_positions(self.config)
            rest.append(self._table("body.position_embedding", rows))
        tables = (self.vocab_rows, self.key_value_size)
        for layer in value_layers(self.config):
            rest.append(Weight(f"body.value_embeddings.{layer}.weight", tables, Kind.EMBEDDING))
        if model.token_types:
            rest.append(self._table("body.type_embedding", model.token_types))
        if model.norm_position == "post":
            rest += self._norm("body.embedding_norm")
        return (stack,), rest

    def encoder_decoder(self) -> tuple[tuple[StackShape, ...], list[Weight]]:
        config = self.config
        encoder = StackShape("body.encoder.blocks", self.model.num_hidden_layers, tuple(self._block()), causal=False)
        block = tuple(self._block(looks_across=True))
        decoder = StackShape("body.decoder.blocks", decoder_layers(config), block, causal=True, looks_across=True)
        rest = [self._table("body.token_embedding", self.vocab_rows)]
        if self.model.position == "learned":
            longest = max(num_positions(config), max_target_length(config))
            rest.append(self._table("body.position_embedding", longest))
        return (encoder, decoder), [*rest, *self._stack_rest("body.encoder"), *self._stack_rest("body.decoder")]

    def head(self, task: str, num_labels: int) -> tuple[list[Weight], int]:
        if task in ("causal", "chat", "span", "seq2seq"):
            return ([] if self.model.tie_embeddings else self._output(self.vocab_rows, bias=False)), self.vocab_rows
        if task == "masked":
            transform = [*self._linear("transform", self.width, self.width), *self._norm("transform_norm")]
            output = self._output(self.vocab_rows, bias=True)
            return [*transform, *(output[1:] if self.model.tie_embeddings else output)], self.vocab_rows
        pooler = [] if task == "tag" else self._linear("pooler", self.width, self.width, bias=True)
        return [*pooler, *self._output(num_labels, bias=True)], num_labels

    def _block(self, *, looks_across: bool = False) -> Iterator[Weight]:
        width, query, pair = self.width, self.query_size, 2 * self.key_value_size
        if self.model.embedding_skip and self.model.type == "gpt":
            yield Weight("embedding_mix.weight", (2,), Kind.SCALAR)
        yield from self._norm("attention_norm")
        yield from self._linear("attention.query_key_value", width, query + pair, bias=qkv_bias(self.config))
        yield from self._linear("attention.output", query, width)
        yield from self._head_norms("attention")
        if looks_across:
            yield from self._norm("cross_attention_norm")
            yield from self._linear("cross_attention.query", width, query)
            yield from self._linear("cross_attention.key_value", width, pair)
            yield from self._head_norms("cross_attention")
            yield from self._linear("cross_attention.output", query, width)
        yield from self._norm("feed_forward_norm")
        yield from self._linear("feed_forward.up", width, self.inner * (2 if self.gated else 1))
        yield from self._linear("feed_forward.down", self.inner, width)

    def _stack_rest(self, stack: str) -> list[Weight]:
        rest = self._norm(f"{stack}.final_norm") if self.model.norm_position == "pre" else []
        if self.model.position == "relative":
            shape = (RELATIVE_BUCKETS, self.model.num_attention_heads)
            rest.append(Weight(f"{stack}.relative_bias.weight", shape, Kind.EMBEDDING))
        return rest

    def _norm(self, name: str) -> list[Weight]:
        has_shift = self.model.norm == "layernorm" and self.model.bias
        return [Weight(f"{name}.{part}", (self.width,), Kind.NORM) for part in ("weight", "bias")[: 1 + has_shift]]

    def _head_norms(self, name: str) -> list[Weight]:
        norms = ("query_norm", "key_norm") if self.model.qk_norm else ()
        return [Weight(f"{name}.{norm}.weight", (self.head_width,), Kind.NORM) for norm in norms]

    def _linear(self, name: str, inputs: int, outputs: int, *, bias: bool | None = None) -> list[Weight]:
        weight = Weight(f"{name}.weight", (outputs, inputs), Kind.HIDDEN)
        has_bias = self.model.bias if bias is None else bias
        return [weight, Weight(f"{name}.bias", (outputs,), Kind.BIAS)] if has_bias else [weight]

    def _output(self, outputs: int, *, bias: bool) -> list[Weight]:
        weight = Weight("head.weight", (outputs, self.width), Kind.OUTPUT)
        return [weight, Weight("head.bias", (outputs,), Kind.BIAS)] if bias else [weight]

    def _table(self, name: str, rows: int) -> Weight:
        return Weight(f"{name}.weight", (rows, self.width), Kind.EMBEDDING)
