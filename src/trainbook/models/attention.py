"""Attention: who sees whom, and what is carried over.

Shapes in comments: B batch, L length, D width, H heads, K key-value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.models.positions import Rotary
from trainbook.models.shape import Shape


class ResidualLinear(nn.Linear):
    """A projection that writes into the residual stream; its initial scale shrinks with depth."""


class FusedLinear(nn.Linear):
    """Several matrices in one product; `row_parts` is for whoever looks at them one by one."""

    def __init__(self, in_features: int, row_parts: list[int], bias: bool) -> None:
        super().__init__(in_features, sum(row_parts), bias=bias)
        self.row_parts = row_parts


class SplitLinear(nn.Module):
    """The matrices of a `FusedLinear` as layers of their own: each can have an adapter. Their outputs are joined."""

    def __init__(self, fused: FusedLinear, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        weights = fused.weight.detach().split(fused.row_parts)
        biases = [None] * len(weights) if fused.bias is None else list(fused.bias.detach().split(fused.row_parts))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            part = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
            part.weight = nn.Parameter(weight.clone(), requires_grad=False)
            if bias is not None:
                part.bias = nn.Parameter(bias.clone(), requires_grad=False)
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.get_submodule(name)(x) for name in self.names], dim=-1)

    def fused(self) -> FusedLinear:
        """One layer again. Its parts must be plain linear layers."""
        parts: list[Any] = [self.get_submodule(name) for name in self.names]
        rows, has_bias = [part.out_features for part in parts], parts[0].bias is not None
        with torch.device("meta"):
            fused = FusedLinear(parts[0].in_features, rows, bias=has_bias)
        fused.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
        if has_bias:
            fused.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        return fused


class HeadNorm(nn.RMSNorm):
    """Computes in the type of its gain: autocast gives it 16-bit input, for which no fused kernel takes an fp32 one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


@dataclass(frozen=True)
class Sight:
    """What queries may look at. Without a mask it is everything, or, if causal, everything before them."""

    mask: Tensor | None = None  # bool, or numbers to add to the logits; broadcast to (B, H, queries, keys)
    causal: bool = False
    real_queries: Tensor | None = None  # (B, 1, queries, 1): those that are no padding; for a recorder only

    def as_computed(self, x: Tensor) -> Sight:
        """Numbers in the type that attention computes in: cast once, not in each layer."""
        if self.mask is None or self.mask.dtype is torch.bool:
            return self
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return Sight(self.mask.to(dtype), self.causal, self.real_queries)


def sight_of(
    query_ids_BL: Tensor | None,
    key_ids_BL: Tensor | None,
    *,
    packed: bool,
    causal: bool,
    bias_HLL: Tensor | None = None,
    near_LL: Tensor | None = None,
) -> Sight:
    """From the document of each position (0: padding). Rows with several documents need both sides compared; where a
    row has one, it is enough to hide the padding among the keys. `near_LL`: the keys within a window before each query.

    A padded query in a packed row sees everything, never nothing: a softmax over nothing is not a number.
    """
    seen: Tensor | None = None
    if key_ids_BL is not None:
        if packed:
            assert query_ids_BL is not None
            queries = query_ids_BL[:, None, :, None]
            seen = (queries == key_ids_BL[:, None, None, :]) | (queries == 0)
        else:
            seen = (key_ids_BL > 0)[:, None, None, :]
    if near_LL is not None:
        seen, causal = near_LL if seen is None else seen & near_LL, False
    if causal and (seen is not None or bias_HLL is not None):
        reference = seen if seen is not None else bias_HLL
        assert reference is not None
        keys = reference.shape[-1]
        queries = bias_HLL.shape[-2] if bias_HLL is not None else keys
        before = torch.ones(queries, keys, dtype=torch.bool, device=reference.device).tril(keys - queries)
        seen = before if seen is None else seen & before
        causal = False
    real_queries: Tensor | None = None
    if _recorder is not None and query_ids_BL is not None:
        real_queries = (query_ids_BL > 0)[:, None, :, None]
    if bias_HLL is None:
        return Sight(seen, causal, real_queries)
    return Sight(bias_HLL if seen is None else bias_HLL.masked_fill(~seen, float("-inf")), causal, real_queries)


def keys_in_window(queries: int, keys: int, window: int, device: torch.device) -> Tensor | None:
    """(queries, keys): those that lie at most window - 1 positions before each of the last queries, and its own; None
    where the window holds all of them."""
    if keys <= window:
        return None
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) & (distance < window)


class LogitRecorder:
    """The largest attention logit, |query · key| times the scale, of all layers and heads that ran while it was active.

    Only pairs count of which the query may look at the key, and is no padding that the model was told of. What a table
    of relative positions adds is not part of it: it is the product that grows out of bounds.
    """

    MOST_AT_ONCE = 1 << 24  # logits: attention kernels never hold them all, and there may be no room for them

    def __init__(self) -> None:
        self.largest: Tensor | None = None  # on the device; None until something was recorded

    @torch.no_grad()
    def note(self, queries: Tensor, keys: Tensor, scale: float, sight: Sight, is_causal: bool) -> None:
        batch, num_heads, length, _ = queries.shape
        num_keys = keys.shape[2]
        at_once = max(1, self.MOST_AT_ONCE // (batch * num_heads * num_keys))
        with torch.autocast(queries.device.type, enabled=False):  # bf16 would keep three digits of the product
            keys = keys.float().repeat_interleave(num_heads // keys.shape[1], dim=1).transpose(-2, -1)
            for first in range(0, length, at_once):
                part = slice(first, min(first + at_once, length))
                logits = (queries[:, :, part].float() @ keys).mul_(scale).abs_()
                for seen in _seen(sight, is_causal, part, num_keys, queries.device):
                    logits.masked_fill_(~seen, 0.0)
                largest = logits.amax()
                self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)


def _seen(sight: Sight, is_causal: bool, part: slice, num_keys: int, device: torch.device) -> Iterator[Tensor]:
    """Which keys this part of the queries sees: all of these together, each broadcast to (B, H, queries, keys)."""
    if sight.mask is not None:
        mask = sight.mask if sight.mask.shape[-2] == 1 else sight.mask[..., part, :]
        yield mask if mask.dtype is torch.bool else mask != float("-inf")
    if is_causal:
        yield torch.arange(num_keys, device=device) <= torch.arange(part.start, part.stop, device=device)[:, None]
    if sight.real_queries is not None:
        yield sight.real_queries[:, :, part]


_recorder: LogitRecorder | None = None  # no argument of forward: compiled models are not to know of it


@contextmanager
def recorded_logits() -> Iterator[LogitRecorder]:
    """Every attention that runs in this context is recorded. For models that are called uncompiled."""
    global _recorder
    before, _recorder = _recorder, LogitRecorder()
    try:
        yield _recorder
    finally:
        _recorder = before


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

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was: a beam goes on where another one came from."""
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        if len(index) != len(self.keys):
            self.keys, self.values = (old.new_zeros(len(index), *old.shape[1:]) for old in (self.keys, self.values))
        self.keys[:, :, : self.length] = keys.index_select(0, index)
        self.values[:, :, : self.length] = values.index_select(0, index)


def kernel_takes_groups(device_type: str, dtype: torch.dtype, *, has_mask: bool) -> bool:
    """Whether queries may share keys inside PyTorch's fused attention.

    On a GPU only its flash kernel knows groups, in 16 bits and without a mask: otherwise PyTorch would compute, and
    keep, the scores of all pairs."""
    return device_type != "cuda" or (dtype in (torch.bfloat16, torch.float16) and not has_mask)


class _Heads(nn.Module):
    """What self-attention and cross-attention share."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_width = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_width,
        )
        self.query_size, self.kv_size = self.num_heads * self.head_width, self.num_kv_heads * self.head_width
        self.dropout, self.scale = shape.dropout, shape.softmax_scale

    def heads(self, x_BLD: Tensor, num_heads: int) -> Tensor:
        return x_BLD.view(*x_BLD.shape[:2], num_heads, self.head_width)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, sight: Sight) -> Tensor:
        mask = sight.mask
        if mask is not None and mask.dtype is not torch.bool:
            mask = mask.to(queries.dtype)
        is_causal = sight.causal and queries.shape[2] > 1
        if _recorder is not None:
            _recorder.note(queries, keys, self.scale, sight, is_causal)
        is_grouped = self.num_kv_heads != self.num_heads
        if is_grouped and not kernel_takes_groups(queries.device.type, queries.dtype, has_mask=mask is not None):
            each = self.num_heads // self.num_kv_heads
            keys, values, is_grouped = keys.repeat_interleave(each, 1), values.repeat_interleave(each, 1), False
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=is_grouped,
        )
        return attended.transpose(1, 2).reshape(queries.shape[0], queries.shape[2], -1)


class Attention(_Heads):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.split_sizes = [self.query_size, self.kv_size, self.kv_size]
        self.query_key_value = FusedLinear(shape.hidden_size, self.split_sizes, bias=shape.has_qkv_bias)
        self.output = ResidualLinear(self.query_size, shape.hidden_size, bias=shape.bias)
        # Normalized per head: bounds the attention logits whatever the weights grow to.
        self.query_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.key_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.rotary = (
            Rotary(self.head_width, shape.max_seq_length, shape.rotation) if shape.position == "rotary" else None
        )

    def forward(
        self, x_BLD: Tensor, sight: Sight, cache: KeyValueCache | None = None, more_values: Tensor | None = None
    ) -> Tensor:
        queries, keys, values = self.query_key_value(x_BLD).split(self.split_sizes, dim=-1)
        if more_values is not None:
            values = values + more_values.to(values.dtype)
        queries = self.query_norm(self.heads(queries, self.num_heads)).transpose(1, 2)
        keys = self.key_norm(self.heads(keys, self.num_kv_heads)).transpose(1, 2)
        values = self.heads(values, self.num_kv_heads).transpose(1, 2)
        first = cache.length if cache is not None else 0
        if self.rotary is not None:
            # Only differences of positions count, so a document in the middle of a row needs no positions of its own.
            queries, keys = self.rotary(queries, first), self.rotary(keys, first)
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)  # norms and rotation may compute in fp32
        if cache is not None:
            keys, values = cache.append(keys, values)
            length = x_BLD.shape[1]
            if sight.mask is None and first > 0 and length > 1:
                # Several new positions behind old ones: the square causal mask would be misplaced.
                ones = torch.ones(length, keys.shape[2], dtype=torch.bool, device=x_BLD.device)
                sight = Sight(ones.tril(first))
        return self.output(self.attend(queries, keys, values, sight))


class ValueEmbedding(nn.Embedding):
    """For each token what a layer adds to its values."""


class CrossAttention(_Heads):
    """Queries of a decoder look at what an encoder has read."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.query = nn.Linear(shape.hidden_size, self.query_size, bias=shape.bias)
        self.key_value = FusedLinear(shape.hidden_size, [self.kv_size, self.kv_size], bias=shape.bias)
        self.query_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.key_norm = HeadNorm(self.head_width, eps=shape.norm_epsilon) if shape.qk_norm else nn.Identity()
        self.output = ResidualLinear(self.query_size, shape.hidden_size, bias=shape.bias)

    def keys_and_values(self, memory_BLD: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.key_value(memory_BLD).chunk(2, dim=-1)
        keys, values = self.key_norm(self.heads(keys, self.num_kv_heads)), self.heads(values, self.num_kv_heads)
        return keys.to(values.dtype).transpose(1, 2), values.transpose(1, 2)

    def forward(self, x_BLD: Tensor, keys: Tensor, values: Tensor, sight: Sight) -> Tensor:
        queries = self.query_norm(self.heads(self.query(x_BLD), self.num_heads)).to(values.dtype).transpose(1, 2)
        return self.output(self.attend(queries, keys, values, sight))
