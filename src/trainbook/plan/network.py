"""Every parameter of the built-in models, by name and shape, from the knobs alone.

The models themselves are not imported: a plan takes milliseconds and needs no torch. That the two agree, name by name
and shape by shape, is tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainbook.errors import UserError
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
    vocab_rows,
)
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.plan.adapters import with_adapters
from trainbook.plan.hf_shapes import as_ours, learned_positions
from trainbook.plan.weights import Network, StackShape, Weight
from trainbook.roles import Kind

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
