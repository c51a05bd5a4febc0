"""Gradient checkpointing: keep less in the forward pass, compute it again in the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

ops = torch.ops.aten
# What is dear to compute and worth keeping: matrix products and attention. Everything else is recomputed.
MATRIX_PRODUCTS = {ops.mm.default, ops.addmm.default, ops.bmm.default}
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
