"""The transformer core that every architecture shares: attention, feed-forward, norms, blocks.

Shapes in comments: B batch, L length, D width, H heads, K key-value heads, W head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.models.recompute import recompute
from trainbook.models.rotary import Rotary

GATED = {"swiglu": F.silu, "geglu": F.gelu}
PLAIN = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}


@dataclass(frozen=True)
class Shape:
    """What the core needs to know, with every default already filled in."""

    vocab_size: int
    vocab_rows: int  # vocab_size rounded up to a multiple, for fast matrix products
    max_seq_length: int
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    dropout: float = 0.0
    bias: bool = False
    norm: str = "layernorm"
    norm_epsilon: float = 1e-5
    activation: str = "gelu"
    position: str = "learned"
    rope_theta: float = 10000.0
    qk_norm: bool = False
    initializer_range: float = 0.02
    causal: bool = True
    recompute: str = "off"  # off | selective | full

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_attention_heads


def make_norm(shape: Shape, width: int) -> nn.Module:
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=shape.norm_epsilon)
    return nn.LayerNorm(width, eps=shape.norm_epsilon, bias=shape.bias)


class ResidualLinear(nn.Linear):
    """A projection that writes into the residual stream; its initial scale shrinks with depth."""


class HeadNorm(nn.RMSNorm):
    """Computes in the type of its gain: autocast gives it 16-bit input, for which no fused kernel takes an fp32 one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class KeyValueCache:
    """Keys and values of the positions already seen, for one layer."""

    def __init__(
        self, batch: int, heads: int, max_length: int, width: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.keys = torch.zeros(batch, heads, max_length, width, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_width = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_width,
        )
        self.causal, self.dropout = shape.causal, shape.dropout
        query_size, kv_size = self.num_heads * self.head_width, self.num_kv_heads * self.head_width
        self.split_sizes = [query_size, kv_size, kv_size]
        self.query_key_value = nn.Linear(shape.hidden_size, sum(self.split_sizes), bias=shape.bias)
        self.output = ResidualLinear(query_size, shape.hidden_size, bias=shape.bias)
        # Normalised per head: bounds the attention logits whatever the weights grow to.
        self.query_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.key_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.rotary = (
            Rotary(self.head_width, shape.max_seq_length, shape.rope_theta) if shape.position == "rotary" else None
        )

    def forward(self, x_BLD: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        batch, length, _ = x_BLD.shape
        queries, keys, values = self.query_key_value(x_BLD).split(self.split_sizes, dim=-1)
        queries = self.query_norm(queries.view(batch, length, self.num_heads, self.head_width)).transpose(1, 2)
        keys = self.key_norm(keys.view(batch, length, self.num_kv_heads, self.head_width)).transpose(1, 2)
        values = values.view(batch, length, self.num_kv_heads, self.head_width).transpose(1, 2)
        first = cache.length if cache is not None else 0
        if self.rotary is not None:
            queries, keys = self.rotary(queries, first), self.rotary(keys, first)
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)  # norms and rotation may compute in fp32
        mask = None
        if cache is not None:
            keys, values = cache.append(keys, values)
            if (
                first > 0 and length > 1
            ):  # several new positions behind old ones: the square causal mask would be misplaced
                mask = torch.ones(length, keys.shape[2], dtype=torch.bool, device=x_BLD.device).tril(first)
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None and length > 1,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        return self.output(attended.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = GATED.get(shape.activation)
        self.activation = PLAIN.get(shape.activation)
        rows = shape.intermediate_size * (2 if self.gate else 1)  # gate and up projection in one matrix product
        self.up = nn.Linear(shape.hidden_size, rows, bias=shape.bias)
        self.down = ResidualLinear(shape.intermediate_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        inner = self.up(x_BLD)
        if self.gate is not None:
            gate, inner = inner.chunk(2, dim=-1)
            inner = self.gate(gate) * inner
        else:
            assert self.activation is not None
            inner = self.activation(inner)
        return self.down(inner)


class Block(nn.Module):
    """Pre-norm: each part reads a normalised copy of the residual stream and adds its answer to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = make_norm(shape, shape.hidden_size)
        self.attention = Attention(shape)
        self.feed_forward_norm = make_norm(shape, shape.hidden_size)
        self.feed_forward = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_BLD: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        x_BLD = x_BLD + self.dropout(self.attention(self.attention_norm(x_BLD), cache))
        return x_BLD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BLD)))


class Transformer(nn.Module):
    """Token ids in, hidden states out. A head and a loss belong to a task."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocab_rows, shape.hidden_size)
        learned = shape.position == "learned"
        self.position_embedding = nn.Embedding(shape.max_seq_length, shape.hidden_size) if learned else None
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.final_norm = make_norm(shape, shape.hidden_size)

    def forward(self, input_ids_BL: Tensor, caches: list[KeyValueCache] | None = None) -> Tensor:
        x_BLD = self.token_embedding(input_ids_BL)
        if self.position_embedding is not None:
            first = caches[0].length if caches is not None else 0
            positions_L = torch.arange(first, first + input_ids_BL.shape[1], device=input_ids_BL.device)
            x_BLD = x_BLD + self.position_embedding(positions_L)
        x_BLD = self.dropout(x_BLD)
        for layer, block in enumerate(self.blocks):
            if caches is not None:
                x_BLD = block(x_BLD, caches[layer])
            else:
                how = self.shape.recompute if self.training else "off"
                x_BLD = recompute(block, x_BLD, how, has_dropout=self.shape.dropout > 0)
        return self.final_norm(x_BLD)

    def new_caches(self, batch: int, dtype: torch.dtype) -> list[KeyValueCache]:
        shape, device = self.shape, self.token_embedding.weight.device
        return [
            KeyValueCache(batch, shape.num_key_value_heads, shape.max_seq_length, shape.head_width, device, dtype)
            for _ in range(shape.num_hidden_layers)
        ]
