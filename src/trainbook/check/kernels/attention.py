"""Attention: each kernel behind F.scaled_dot_product_attention, one by one.

Shapes in comments: B batch, H heads, L queries, S keys, W head width.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainbook.check.kernels.kernel import (
    FP32,
    OPERATIONS,
    Expected,
    Inputs,
    Kernel,
    NotTaken,
    Rounding,
    drawn,
    gradients,
)

NAMES = ("query", "key", "value")
PARTIAL_SUMS = 32  # keys or queries after which the CPU's flash kernel rounds what it has added up, at the least

# The cases.

Sight = Literal["all", "causal", "all mask", "causal mask", "padding", "hidden rows", "bias"]


@dataclass(frozen=True)
class AttentionCase:
    name: str
    length: int = 65
    sight: Sight = "all"
    keys: int | None = None  # as many as queries
    batch: int = 2
    heads: int = 1
    kv_heads: int | None = None  # as many as heads
    width: int = 64
    logit: float | None = None  # that of every query and key, or nearly so; None: normal numbers
    spread: float = 1.0  # of queries and keys
    size: float = 1.0  # of values; gradients from above are as much smaller
    is_strided: bool = False  # views of one product, as self-attention has them


LENGTHS = (1, 64, 65, 192)  # none, one half, and just above one half of a tile of 128; one tile and a half
BELOW, ABOVE = -120.0, 120.0  # logits: exp(88.7) is the largest number of fp32
CASES: tuple[AttentionCase, ...] = (
    *(AttentionCase(f"{length} positions", length) for length in LENGTHS),
    *(AttentionCase(f"causal, {length} positions", length, "causal") for length in LENGTHS),
    *(AttentionCase(f"causal mask, {length} positions", length, "causal mask") for length in LENGTHS),
    *(AttentionCase(f"padding, {length} positions", length, "padding") for length in LENGTHS[1:]),
    *(AttentionCase(f"fully hidden rows, {length} positions", length, "hidden rows") for length in LENGTHS[1:]),
    *(AttentionCase(f"bias, {length} positions", length, "bias", heads=2) for length in LENGTHS[1:]),
    # https://github.com/pytorch/pytorch/issues/196678, https://github.com/huggingface/trl/issues/7181: on Hopper,
    # cuDNN's backward has NaN in the gradient of queries where a mask is given, the length is 64 beyond a multiple of
    # 128, and a row's logsumexp is below -88.7. 704 with one head is the case that was reported.
    *(
        AttentionCase(f"{sight}, logsumexp below -88.7, {length} positions", length, sight, batch=1, logit=BELOW)
        for length in (64, 192, 704)
        for sight in ("causal mask", "all mask")
        if (length, sight) != (704, "all mask")
    ),
    AttentionCase("causal mask, logsumexp below -88.7, 128 positions", 128, "causal mask", logit=BELOW),
    AttentionCase("causal, logsumexp below -88.7, 192 positions", 192, "causal", logit=BELOW),
    AttentionCase("padding, logsumexp below -88.7, 192 positions", 192, "padding", logit=BELOW),
    # https://github.com/NVIDIA/cudnn-frontend/issues/1072: NaN in the gradients of keys and values.
    AttentionCase("one query of 128 keys, logsumexp below -88.7", 1, "all", 128, logit=BELOW),
    AttentionCase("one query of 128 keys, a mask, logsumexp below -88.7", 1, "all mask", 128, logit=BELOW),
    AttentionCase("logsumexp above 88.7, 192 positions", 192, "causal mask", logit=ABOVE),
    AttentionCase("logits from -300 to 300, 65 positions", 65, "causal mask", spread=9.0),
    AttentionCase("huge values, 65 positions", 65, "causal", size=1e4),
    AttentionCase("zeros, 65 positions", 65, "causal", spread=0.0, size=0.0),
    AttentionCase("one element", 1, batch=1, heads=1, width=8),
    AttentionCase("more keys than queries", 65, "all mask", keys=192),
    *(AttentionCase(f"head width {width}", 65, "causal", width=width) for width in (32, 80, 96, 128, 192, 256)),
    *(AttentionCase(f"head width {width}, a mask", 192, "causal mask", width=width) for width in (32, 128, 256)),
    AttentionCase("4 queries share a key", 65, "causal", heads=8, kv_heads=2),
    AttentionCase("all queries share a key", 192, "causal", heads=4, kv_heads=1),
    AttentionCase("4 queries share a key, a mask", 192, "causal mask", heads=8, kv_heads=2),
    AttentionCase("views of one product", 65, "causal", heads=4, is_strided=True),
    AttentionCase("views of one product, a mask", 192, "padding", heads=4, is_strided=True),
)


def make(case: AttentionCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    keys, kv_heads = case.keys or case.length, case.kv_heads or case.heads
    draw = partial(drawn, device=device, dtype=dtype)
    if case.is_strided:
        fused = draw(case.batch, case.length, 3 * case.heads * case.width)
        views = (part.unflatten(-1, (case.heads, case.width)).transpose(1, 2) for part in fused.chunk(3, dim=-1))
        query, key, value = (view.detach() for view in views)
    else:
        spread = case.spread if case.logit is None else 0.1
        query = draw(case.batch, case.heads, case.length, case.width, scale=spread)
        key = draw(case.batch, kv_heads, keys, case.width, scale=spread)
        value = draw(case.batch, kv_heads, keys, case.width, scale=case.size)
    if case.logit is not None:
        query[..., 0], key[..., 0] = 1.0, case.logit * math.sqrt(case.width)
    upstream = draw(case.batch, case.heads, case.length, case.width, scale=min(1.0, 30 / max(case.size, 1e-9)))
    made = {name: each.requires_grad_() for name, each in zip(NAMES, (query, key, value), strict=True)}
    mask = _mask(case, keys, device, dtype)
    if mask is not None:
        made["mask"] = mask
        if case.sight == "hidden rows":
            # As in training: what nobody looks at has no gradient from above, and NaN times zero is NaN.
            upstream = torch.where(mask.any(-1, keepdim=True), upstream, 0.0)
    return {**made, "upstream": upstream}


def _mask(case: AttentionCase, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if case.sight in ("all", "causal"):
        return None
    before = torch.ones(case.length, keys, dtype=torch.bool).tril(keys - case.length)
    if case.sight == "all mask":
        mask = torch.ones_like(before)[None, None]
    elif case.sight == "causal mask":
        mask = before[None, None]
    elif case.sight == "bias":
        bias = torch.randn(1, case.heads, case.length, keys).to(dtype)
        return bias.masked_fill(~before, float("-inf")).to(device)
    else:
        reached = torch.arange(case.batch) * keys // (2 * case.batch)  # how much of each row is padding
        mask = (torch.arange(keys) < keys - reached[:, None])[:, None, None, :]
        if case.sight == "hidden rows":
            mask = mask & before
            mask[:, :, ::3] = False
            mask[-1, :, : case.length // 2] = False
    return mask.to(device)


def compute(case: AttentionCase, inputs: Inputs, backend: SDPBackend) -> Mapping[str, Tensor]:
    kv_heads = case.kv_heads or case.heads
    with warnings.catch_warnings(), sdpa_kernel([backend]):
        warnings.simplefilter("ignore")  # why a kernel does not take a case
        try:
            output = F.scaled_dot_product_attention(
                *(inputs[name] for name in NAMES),
                attn_mask=inputs.get("mask"),
                is_causal=case.sight == "causal",
                enable_gqa=kv_heads != case.heads,
            )
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise NotTaken from None
            raise
        found = gradients(output, inputs["upstream"], inputs, NAMES)
    return {"output": output, "output of hidden rows": output, **found}


# What is right. PyTorch's kernels agree that a row which sees nothing is zero and passes no gradient on
# (https://github.com/pytorch/pytorch/pull/133882). The documentation does not promise it: a finite output there, which
# nobody reads, is a remark only.


class Weights(NamedTuple):
    """Softmax in fp64, and how wrong each row of it may be, as a share."""

    of_keys: Tensor  # (B, H, L, S)
    error: Tensor  # (B, H, L, 1)
    is_hidden: Tensor  # (B, H, L, 1)


def expect(case: AttentionCase, inputs: Inputs, rounding: Rounding) -> Mapping[str, Expected]:
    group = case.heads // (case.kv_heads or case.heads)
    query, key, value = (inputs[name].detach().double() for name in NAMES)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    above, scale = inputs["upstream"].double(), case.width**-0.5
    weights, unit, step = _weights(case, inputs, query, key, scale, rounding), rounding.unit, rounding.step
    queries, keys = query.shape[-2], key.shape[-2]
    # What is rounded to the type: the weights, and the sum, which some kernels round once for each part of it.
    is_in_parts = rounding.device.type == "cpu"
    over_keys, over_queries = (
        (2 + (math.ceil(count / PARTIAL_SUMS) if is_in_parts else 0)) * unit
        + (count + OPERATIONS) * FP32
        + 2 * rounding.product
        for count in (keys, queries)
    )
    p, seen = weights.of_keys, (weights.of_keys > 0).double()
    output = p @ value
    of_output = (weights.error + over_keys) * (p @ value.abs()) + step * (seen @ value.abs()) + step
    # Backward: dS = P (dP - D), with D the sum of dO O. A rounded output is what D is made of.
    change, sizes = above @ value.mT, above.abs() @ value.abs().mT
    total = (above * output).sum(-1, keepdim=True)
    within = weights.error + (keys + case.width + OPERATIONS) * FP32 + 2 * rounding.product
    of_total = (above.abs() * (of_output + case.width * FP32 * output.abs())).sum(-1, keepdim=True)
    of_total = of_total + within * (p * sizes).sum(-1, keepdim=True)
    scores = p * (change - total)
    of_scores = p * ((within + unit) * (sizes + total.abs()) + of_total)
    of_scores = of_scores + unit * scores.abs() + step * (1.0 + sizes + total.abs())
    of_scores = torch.where(weights.is_hidden, 0.0, of_scores)

    def shared(x: Tensor) -> Tensor:
        """The sum over queries that share a key."""
        return x.unflatten(1, (-1, group)).sum(2)

    of_query = scale * (of_scores @ key.abs() + over_keys * (scores.abs() @ key.abs()))
    of_key = scale * (of_scores.mT @ query.abs() + (over_queries + unit) * (scores.abs().mT @ query.abs()))
    of_value = ((weights.error * p).mT @ above.abs()) + (over_queries + unit) * (p.mT @ above.abs())
    of_value = of_value + step * (seen.mT @ above.abs())
    infinite = torch.where(weights.is_hidden, float("inf"), 0.0)
    return {
        "output": Expected(output, of_output + infinite),
        "output of hidden rows": Expected(
            output, torch.where(weights.is_hidden, of_output, float("inf")), is_remark=True
        ),
        "gradient of query": Expected(scale * scores @ key, of_query + step),
        "gradient of key": Expected(shared(scale * scores.mT @ query), shared(of_key) + step),
        "gradient of value": Expected(shared(p.mT @ above), shared(of_value) + step),
    }


def _weights(
    case: AttentionCase, inputs: Inputs, query: Tensor, key: Tensor, scale: float, rounding: Rounding
) -> Weights:
    """An error d of a logit is one of exp(d) in its weight, and the sum over the weights has the same at most."""
    logits, sizes, mask = scale * (query @ key.mT), scale * (query.abs() @ key.abs().mT), inputs.get("mask")
    seen = torch.ones_like(logits, dtype=torch.bool)
    if case.sight == "causal":
        seen = seen.tril()
    elif mask is not None and mask.dtype is torch.bool:
        seen = mask.expand_as(logits)
    elif mask is not None:
        bias, seen = mask.double(), (mask != float("-inf")).expand_as(logits)
        finite = torch.where(mask != float("-inf"), bias, 0.0)
        logits, sizes = logits + finite, sizes + finite.abs()
    is_hidden = ~seen.any(-1, keepdim=True)
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1).masked_fill(is_hidden, 0.0)
    sizes = torch.where(seen, sizes, 0.0).amax(-1, keepdim=True)
    of_logits = ((case.width + OPERATIONS) * FP32 + 2 * rounding.product) * sizes
    of_sum = 2 * FP32 * (sizes + math.log(key.shape[-2]))  # its logarithm is kept in fp32 for the backward pass
    return Weights(weights, torch.expm1(2 * of_logits + of_sum) + OPERATIONS * FP32, is_hidden)


def _kernel(name: str, backend: SDPBackend) -> Kernel:
    can_be_left_out = backend is not SDPBackend.MATH
    return Kernel(
        f"sdpa_{name}",
        f"attention by PyTorch's {name} kernel is right, forward and backward",
        CASES,
        make,
        partial(compute, backend=backend),
        expect,
        widens=not can_be_left_out,
        backend=name if can_be_left_out else None,
    )


KERNELS = (
    _kernel("math", SDPBackend.MATH),
    _kernel("efficient", SDPBackend.EFFICIENT_ATTENTION),
    _kernel("flash", SDPBackend.FLASH_ATTENTION),
    _kernel("cudnn", SDPBackend.CUDNN_ATTENTION),
)
