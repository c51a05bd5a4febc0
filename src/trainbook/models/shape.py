"""What a network needs to know of itself, with every default already filled in."""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import (
    decoder_layers,
    head_width,
    intermediate_size,
    key_value_heads,
    num_positions,
    qkv_bias,
    rope_original_positions,
    value_layers,
    vocab_rows,
)
from trainbook.knobs.scaling import STANDARD, Scaling
from trainbook.models.positions import PLAIN_ROTATION, Rotation


@dataclass(frozen=True)
class Shape:
    vocab_size: int  # rows that are part of the model: at least one for each token
    vocab_rows: int  # vocab_size rounded up to a multiple, for fast matrix products
    max_seq_length: int
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_width: int = 0  # 0: hidden_size / num_attention_heads
    num_decoder_layers: int = 0  # of an encoder-decoder
    num_positions: int = 0  # 0: max_seq_length
    dropout: float = 0.0
    bias: bool = False
    qkv_bias: bool | None = None  # None: as bias
    norm: str = "layernorm"
    norm_epsilon: float = 1e-5
    norm_position: str = "pre"  # pre | post
    wide_norms: bool = False  # fp32 beside weights of 16 bits
    activation: str = "gelu"
    position: str = "learned"  # learned | rotary | relative | none
    rotation: Rotation = PLAIN_ROTATION
    sliding_window: int | None = None
    token_types: int = 0
    attention_scale: str = "inverse_sqrt"  # inverse_sqrt | none
    qk_norm: bool = False
    embedding_skip: bool = False
    value_layers: tuple[int, ...] = ()  # that have value embeddings
    initializer_range: float = 0.02
    residual_init: str = "scaled"  # scaled | zero
    initializer: str = "normal"  # normal | fan_in
    causal: bool = True
    recompute: str = "off"  # off | selective | full
    scaling: Scaling = STANDARD
    embedding_multiplier: float = 1.0
    output_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if self.head_width == 0:
            object.__setattr__(self, "head_width", self.hidden_size // self.num_attention_heads)
        if self.num_positions == 0:
            object.__setattr__(self, "num_positions", self.max_seq_length)

    @property
    def has_qkv_bias(self) -> bool:
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def softmax_scale(self) -> float:
        """What attention logits are multiplied by: under muP as at the base, over how much wider heads are."""
        if self.attention_scale == "none":
            return 1.0 / self.scaling.head
        return self.head_width**-0.5 * self.scaling.head**-0.5

    @property
    def base_hidden_size(self) -> float:
        return self.hidden_size / self.scaling.width

    @property
    def logit_multiplier(self) -> float:
        return self.output_multiplier / self.scaling.width


def rotation_of(config: Config) -> Rotation:
    model = config.model
    return Rotation(
        theta=model.rope_theta,
        scaling=model.rope_scaling,
        factor=model.rope_factor,
        original_positions=rope_original_positions(config),
        low_frequency=model.rope_low_frequency,
        high_frequency=model.rope_high_frequency,
        beta_fast=model.rope_beta_fast,
        beta_slow=model.rope_beta_slow,
        attention_factor=model.rope_attention_factor,
    )


def shape_of(config: Config, vocab_size: int, *, causal: bool, initializer: str = "normal") -> Shape:
    model = config.model
    if model.vocab_rows is not None and vocab_size > model.vocab_rows:
        raise DataError(
            f"the tokenizer does not fit the model: it has {vocab_size} tokens, but "
            f"{model.pretrained or 'model.vocab_rows'} has only {model.vocab_rows} embedding rows. Omit "
            "data.tokenizer to use the model's own tokenizer."
        )
    rows, multiple = vocab_rows(config, vocab_size), model.vocab_multiple
    return Shape(
        vocab_size=rows,
        vocab_rows=-(-rows // multiple) * multiple,
        max_seq_length=config.data.max_seq_length,
        num_positions=num_positions(config),
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        intermediate_size=intermediate_size(config),
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=key_value_heads(config),
        head_width=head_width(config),
        num_decoder_layers=decoder_layers(config),
        dropout=model.dropout,
        bias=model.bias,
        qkv_bias=qkv_bias(config),
        norm=model.norm,
        norm_epsilon=model.norm_epsilon,
        norm_position=model.norm_position,
        # A gain is about 1, where bf16 has steps of 0.004 to 0.008: what an update adds would be rounded away.
        wide_norms=config.precision.weights != "fp32" and model.lora_rank is None,
        activation=model.activation,
        position=model.position,
        rotation=rotation_of(config),
        sliding_window=model.sliding_window if model.type == "gpt" else None,
        token_types=model.token_types,
        attention_scale=model.attention_scale,
        qk_norm=model.qk_norm,
        embedding_skip=model.embedding_skip and model.type == "gpt",
        value_layers=value_layers(config),
        initializer_range=model.initializer_range,
        residual_init=model.residual_init,
        initializer=initializer,
        causal=causal,
        recompute=config.memory.gradient_checkpointing,
        scaling=Scaling.of(config),
        embedding_multiplier=model.embedding_multiplier,
        output_multiplier=model.output_multiplier,
    )
