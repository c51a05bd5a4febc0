"""Losses as named sums over targets. They are divided once, by the number of targets of the whole global batch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.data.sources.records import GOLDEN, mixed

IGNORED = -100  # a target with this value is not one


def cross_entropy_parts(
    logits_NV: Tensor,
    targets_N: Tensor,
    *,
    num_classes: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> dict[str, Tensor]:
    """Sums over the targets; their total is what is trained on. Columns from `num_classes` on are masked with -inf.

    `cross_entropy` is always the plain one, so that it means the same with every setting; what smoothing and z-loss add
    is reported beside it.
    """
    logits_NV = logits_NV.float()
    parts = {"cross_entropy": F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="sum")}
    if label_smoothing > 0.0 or z_loss > 0.0:
        is_target = targets_N != IGNORED
        log_z = torch.logsumexp(logits_NV, dim=-1)
        if label_smoothing > 0.0:
            towards_uniform = torch.where(is_target, log_z - logits_NV[:, :num_classes].mean(-1), 0.0).sum()
            parts["label_smoothing"] = label_smoothing * (towards_uniform - parts["cross_entropy"])
        if z_loss > 0.0:
            parts["z_loss"] = z_loss * torch.where(is_target, log_z.square(), 0.0).sum()
    return parts


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """In fp32: bf16 has three digits, and near the cap they are all alike."""
    return logits if cap is None else cap * torch.tanh(logits.float() / cap)


# Random numbers for single tokens: a pure function of seed, epoch, sample and place, for a whole batch at once. The
# same sample is masked differently in each epoch, and alike whichever batch, worker or rank it comes to.


def draw(purpose: int, seed: int, epochs: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), one for each (epoch, id, place); `purpose` keeps several draws for one token apart."""
    state = np.full(np.broadcast_shapes(epochs.shape, ids.shape, places.shape), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (np.asarray(purpose), epochs, ids, places):
            state = mixed(state + part.astype(np.int64).view(np.uint64) * GOLDEN + GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
