"""The transformer core that every architecture shares: feed-forward, norms, blocks, stacks.

Shapes in comments: B batch, L length, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainbook.models.attention import (
    Attention,
    CrossAttention,
    FusedLinear,
    KeyValueCache,
    ResidualLinear,
    Sight,
    ValueEmbedding,
    keys_in_window,
    sight_of,
)
from trainbook.models.positions import RelativeBias
from trainbook.models.shape import Shape

# Gradient checkpointing: keep less in the forward pass, compute it again in the backward pass.


ops = torch.ops.aten
# What is dear to compute and worth keeping: matrix products and attention. Everything else is recomputed.
MATRIX_PRODUCTS = {ops.mm.default, ops.addmm.default, ops.bmm.default, ops._scaled_mm.default}
ATTENTION = {
    ops._scaled_dot_product_flash_attention.default,
    ops._scaled_dot_product_efficient_attention.default,
    ops._scaled_dot_product_flash_attention_for_cpu.default,
    ops._scaled_dot_product_cudnn_attention.default,
}


def _keep_all(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    kept = op in MATRIX_PRODUCTS or op in ATTENTION
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _keep_products(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in MATRIX_PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def recompute(block: nn.Module, how: str, *inputs: Any, has_dropout: bool = False) -> Tensor:
    if how == "off":
        return block(*inputs)
    if how == "selective":
        # Attention with dropout draws random numbers inside its kernel. Were it kept, the second pass would not draw
        # them, and every dropout behind it would get another mask than in the first pass.
        contexts = partial(create_selective_checkpoint_contexts, _keep_products if has_dropout else _keep_all)
        return checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
    return checkpoint(block, *inputs, use_reentrant=False)


Compile = Callable[[Callable[..., Any]], Callable[..., Any]]  # makes a fast function of a function


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


GATED = {"swiglu": F.silu, "geglu": F.gelu, "geglu_tanh": _gelu_tanh}
PLAIN = {"gelu": F.gelu, "gelu_tanh": _gelu_tanh, "relu": F.relu, "relu2": _relu_squared, "silu": F.silu}


class WideLayerNorm(nn.LayerNorm):
    """Computes in the type of its gain, which is fp32 beside 16-bit weights, and rounds its answer to that of x."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class WideRMSNorm(nn.RMSNorm):
    """The same."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def make_norm(shape: Shape, width: int) -> nn.Module:
    if shape.norm == "rmsnorm":
        return (WideRMSNorm if shape.wide_norms else nn.RMSNorm)(width, eps=shape.norm_epsilon)
    return (WideLayerNorm if shape.wide_norms else nn.LayerNorm)(width, eps=shape.norm_epsilon, bias=shape.bias)


class WideResidualLinear(ResidualLinear):
    """Computes in fp32 what other layers compute in fp16, where its output would overflow. It does so itself, not the
    block that calls it: an adapter around this layer must be called too."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is not torch.float16:
            return super().forward(x)
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight.float(), bias)


class EmbeddingMix(nn.Module):
    """The input of a block: the residual stream and the normalized embedding, each times a learned number."""

    FIRST = (1.0, 0.0)  # the stream alone

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(self.FIRST))

    def forward(self, x_BLD: Tensor, embedding_BLD: Tensor) -> Tensor:
        # Tensors of one number, not numbers: beside 16-bit activations they count as fp32.
        return (self.weight[:1] * x_BLD + self.weight[1:] * embedding_BLD).to(x_BLD.dtype)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = GATED.get(shape.activation)
        self.activation = PLAIN.get(shape.activation)
        parts = [shape.intermediate_size] * (2 if self.gate else 1)  # gate and up projection in one matrix product
        self.up = FusedLinear(shape.hidden_size, parts, bias=shape.bias)
        # T5's outputs grow beyond 65,504 here.
        down = WideResidualLinear if shape.initializer == "fan_in" else ResidualLinear
        self.down = down(shape.intermediate_size, shape.hidden_size, bias=shape.bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        inner = self.up(x_BLD)
        if self.gate is not None:
            gate, inner = inner.chunk(2, dim=-1)
            inner = self.gate(gate) * inner
        else:
            assert self.activation is not None
            inner = self.activation(inner)
        return self.down(inner)


@dataclass
class EncoderMemory:
    """What an encoder has read, for a decoder's blocks: hidden states, or a block's keys and values if kept."""

    hidden_BLD: Tensor
    sight: Sight
    kept: list[tuple[Tensor, Tensor]] | None = None

    def reorder(self, index: Tensor) -> EncoderMemory:
        """Row i becomes what row index[i] was."""
        mask = self.sight.mask
        return EncoderMemory(
            self.hidden_BLD.index_select(0, index),
            Sight(mask if mask is None else mask.index_select(0, index), self.sight.causal),
            None if self.kept is None else [(k.index_select(0, index), v.index_select(0, index)) for k, v in self.kept],
        )


class Block(nn.Module):
    """Pre-norm: each part reads a normalized copy of the residual stream and adds its answer to it. Post-norm: the sum
    is normalized instead, as in BERT."""

    def __init__(self, shape: Shape, *, with_cross_attention: bool = False) -> None:
        super().__init__()
        self.is_post_norm = shape.norm_position == "post"
        self.branch_multiplier = shape.scaling.branch_multiplier
        self.embedding_mix = EmbeddingMix() if shape.embedding_skip else None
        self.attention_norm = make_norm(shape, shape.hidden_size)
        self.attention = Attention(shape)
        if with_cross_attention:
            self.cross_attention_norm = make_norm(shape, shape.hidden_size)
            self.cross_attention = CrossAttention(shape)
        self.feed_forward_norm = make_norm(shape, shape.hidden_size)
        self.feed_forward = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x_BLD: Tensor,
        sight: Sight,
        cache: KeyValueCache | None = None,
        memory: EncoderMemory | None = None,
        keys_and_values: tuple[Tensor, Tensor] | None = None,
        embedding_BLD: Tensor | None = None,
        more_values: Tensor | None = None,
    ) -> Tensor:
        if self.embedding_mix is not None:
            assert embedding_BLD is not None
            x_BLD = self.embedding_mix(x_BLD, embedding_BLD)
        x_BLD = self._add(x_BLD, self.attention_norm, lambda x: self.attention(x, sight, cache, more_values))
        if memory is not None:
            keys, values = keys_and_values or self.cross_attention.keys_and_values(memory.hidden_BLD)
            look = memory.sight
            x_BLD = self._add(x_BLD, self.cross_attention_norm, lambda x: self.cross_attention(x, keys, values, look))
        return self._add(x_BLD, self.feed_forward_norm, self.feed_forward)

    def _add(self, x_BLD: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.is_post_norm:
            return norm(x_BLD + self.dropout(part(x_BLD)))
        branch = self.dropout(part(norm(x_BLD)))
        return x_BLD + (branch if self.branch_multiplier == 1.0 else branch * self.branch_multiplier)


class Stack(nn.Module):
    """Blocks one after another; a final norm if they are pre-norm; one table of relative positions if they have any."""

    def __init__(self, shape: Shape, *, num_layers: int, causal: bool, with_cross_attention: bool = False) -> None:
        super().__init__()
        self.shape, self.causal = shape, causal
        self.blocks = nn.ModuleList(Block(shape, with_cross_attention=with_cross_attention) for _ in range(num_layers))
        self.final_norm = make_norm(shape, shape.hidden_size) if shape.norm_position == "pre" else None
        relative = shape.position == "relative"
        self.relative_bias = RelativeBias(shape.num_attention_heads, both_ways=not causal) if relative else None

    def run(
        self,
        x_BLD: Tensor,
        *,
        document_ids_BL: Tensor | None = None,
        packed: bool = False,
        caches: list[KeyValueCache] | None = None,
        memory: EncoderMemory | None = None,
        values_of: Callable[[int], Tensor | None] = lambda layer: None,
    ) -> Tensor:
        """`values_of`: what a layer adds to its values, if anything."""
        length = x_BLD.shape[1]
        first = caches[0].length if caches is not None else 0
        bias = self.relative_bias(length, first + length, first) if self.relative_bias is not None else None
        window = self.shape.sliding_window
        near = keys_in_window(length, first + length, window, x_BLD.device) if window is not None else None
        sight = sight_of(
            document_ids_BL, document_ids_BL, packed=packed, causal=self.causal, bias_HLL=bias, near_LL=near
        )
        sight = sight.as_computed(x_BLD)
        how = self.shape.recompute if self.training and caches is None else "off"
        embedding_BLD = self.normalized(x_BLD) if self.shape.embedding_skip else None
        for layer, block in enumerate(self.blocks):
            cache = caches[layer] if caches is not None else None
            kept = memory.kept[layer] if memory is not None and memory.kept is not None else None
            inputs = (x_BLD, sight, cache, memory, kept, embedding_BLD, values_of(layer))
            x_BLD = recompute(block, how, *inputs, has_dropout=self.shape.dropout > 0)
        return x_BLD if self.final_norm is None else self.final_norm(x_BLD)

    def normalized(self, embedding_BLD: Tensor) -> Tensor:
        """What enters the first block, with a root mean square of 1 at each position: a block's number is its scale."""
        return F.rms_norm(embedding_BLD, embedding_BLD.shape[-1:], eps=self.shape.norm_epsilon)

    def compile_around(self, compiled: Compile) -> None:
        """What lies around blocks, where these are compiled by themselves."""
        if self.shape.embedding_skip:
            self.normalized = compiled(self.normalized)
        if self.final_norm is not None:
            self.final_norm.forward = compiled(self.final_norm.forward)

    def new_caches(self, batch: int, dtype: torch.dtype, max_length: int | None = None) -> list[KeyValueCache]:
        shape, device = self.shape, next(self.parameters()).device
        length = max_length or shape.max_seq_length
        return [
            KeyValueCache(batch, shape.num_key_value_heads, length, shape.head_width, device, dtype)
            for _ in self.blocks
        ]


class TokenEmbedder(nn.Module):
    shape: Shape
    token_embedding: nn.Embedding
    position_embedding: nn.Embedding | None
    type_embedding: nn.Embedding | None
    embedding_norm: nn.Module | None
    dropout: nn.Dropout

    def embed(self, ids_BL: Tensor, positions: Tensor | None, first: int = 0) -> Tensor:
        """`first` is the position of the first token, where none are given."""
        x_BLD = self.token_embedding(ids_BL)
        if self.position_embedding is not None:
            if positions is None:
                positions = torch.arange(first, first + ids_BL.shape[1], device=ids_BL.device)
            x_BLD = x_BLD + self.position_embedding(positions)
        if self.type_embedding is not None:
            x_BLD = x_BLD + self.type_embedding.weight[0]  # all tokens are of the first type
        if self.shape.embedding_multiplier != 1.0:
            x_BLD = x_BLD * self.shape.embedding_multiplier
        if self.embedding_norm is not None:
            x_BLD = self.embedding_norm(x_BLD)
        return self.dropout(x_BLD)


class Transformer(TokenEmbedder, Stack):
    """Token ids in, hidden states out: a stack that embeds its tokens itself. A head and a loss belong to a task."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, num_layers=shape.num_hidden_layers, causal=shape.causal)
        self.token_embedding = nn.Embedding(shape.vocab_rows, shape.hidden_size)
        learned = shape.position == "learned"
        self.position_embedding = nn.Embedding(shape.num_positions, shape.hidden_size) if learned else None
        self.type_embedding = nn.Embedding(shape.token_types, shape.hidden_size) if shape.token_types else None
        self.embedding_norm = make_norm(shape, shape.hidden_size) if shape.norm_position == "post" else None
        width = shape.num_key_value_heads * shape.head_width
        tables = {str(layer): ValueEmbedding(shape.vocab_rows, width) for layer in shape.value_layers}
        self.value_embeddings = nn.ModuleDict(tables) if tables else None
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        input_ids_BL: Tensor,
        caches: list[KeyValueCache] | None = None,
        *,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """`document_ids` (0: padding) keep documents apart; with `positions` inside them, a row may hold several."""
        x_BLD = self.embed(input_ids_BL, positions, caches[0].length if caches is not None else 0)
        tables = self.value_embeddings

        def values_of(layer: int) -> Tensor | None:
            return None if tables is None or str(layer) not in tables else tables[str(layer)](input_ids_BL)

        packed = positions is not None
        return self.run(x_BLD, document_ids_BL=document_ids, packed=packed, caches=caches, values_of=values_of)

    def compile_around(self, compiled: Compile) -> None:
        super().compile_around(compiled)
        self.embed = compiled(self.embed)
