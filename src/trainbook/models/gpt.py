"""GPT: the core read from left to right."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size, key_value_heads
from trainbook.models.core import Shape, Transformer


def gpt_shape(config: Config, vocab_size: int) -> Shape:
    model = config.model
    multiple = model.vocab_multiple
    return Shape(
        vocab_size=vocab_size,
        vocab_rows=-(-vocab_size // multiple) * multiple,
        max_seq_length=config.data.max_seq_length,
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        intermediate_size=intermediate_size(config),
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=key_value_heads(config),
        dropout=model.dropout,
        bias=model.bias,
        norm=model.norm,
        norm_epsilon=model.norm_epsilon,
        activation=model.activation,
        position=model.position,
        rope_theta=model.rope_theta,
        qk_norm=model.qk_norm,
        initializer_range=model.initializer_range,
        causal=True,
        recompute=config.memory.gradient_checkpointing,
    )


def build_gpt(config: Config, vocab_size: int) -> Transformer:
    return Transformer(gpt_shape(config, vocab_size))
