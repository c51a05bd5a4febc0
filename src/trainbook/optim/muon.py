"""Muon (Jordan et al. 2024): the momentum of a matrix is made nearly orthogonal before it becomes an update.

A gradient matrix has a few strong directions and many weak ones; with all singular values near 1, every direction
learns. That has a meaning for hidden matrices only: embeddings, the output matrix, norms and biases are AdamW's.

The update is scaled by 0.2 x sqrt(max(rows, columns)) (arXiv 2502.16982), whose root mean square is about 0.2 as of an
AdamW update, so that one rate and one weight decay serve both parts.

Keeps one average for a hidden matrix (4 bytes a parameter in fp32) and two for all others (8 bytes).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainbook.optim.fused import fused_adamw, step_fused
from trainbook.optim.selective import SelectiveOptimizer, average, gradients_of, in_buckets, keep_if, wide

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of a polynomial that lifts small singular values fast, to about 0.7 ... 1.2
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(SelectiveOptimizer):
    """Groups with `row_parts` are its own; the others it hands to a fused AdamW that shares its state."""

    def __init__(
        self, groups: list[dict], rate: Tensor, *, momentum: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        super().__init__(groups, {"lr": rate, "weight_decay": 0.0})
        self.hidden = [group for group in self.param_groups if "row_parts" in group]
        for group in self.hidden:
            group["momentum"] = momentum
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        others = [group for group in self.param_groups if "row_parts" not in group]
        self.adamw = fused_adamw(others, rate, betas, epsilon) if others else None
        if self.adamw is not None:
            self.state.update(self.adamw.state)
            self.adamw.state = self.state

    @torch.no_grad()
    def step_if(self, apply: Tensor) -> None:
        for group in self.hidden:
            for parameters in in_buckets([each for each in group["params"] if each.grad is not None]):
                self.update(group, parameters, apply)
        if self.adamw is not None:
            step_fused(self.adamw, apply)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        rows_of = dict(zip(group["params"], group["row_parts"], strict=True))
        columns_of = dict(zip(group["params"], group["column_parts"], strict=True))
        lies = [int(columns_of[parameter] is not None) for parameter in parameters]  # along which their parts follow
        kept = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients, weights = gradients_of(parameters), wide(parameters)
        buffers = average(wide(kept), gradients, group["momentum"])
        ahead = average(buffers, gradients, group["momentum"])  # Nesterov's: where the average will be
        parts = [
            each.flatten(1).split(columns_of[p] or rows_of[p], along)
            for each, p, along in zip(ahead, parameters, lies, strict=True)
        ]
        changes = iter(orthogonal([matrix for of_one in parts for matrix in of_one]))
        change = [
            torch.cat([next(changes) * update_scale(matrix) for matrix in of_one], along)
            for of_one, along in zip(parts, lies, strict=True)
        ]
        change = [each.view_as(weight) for each, weight in zip(change, weights, strict=True)]
        torch._foreach_add_(change, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(change, group["lr"])
        keep_if(apply, torch._foreach_sub(weights, change), parameters)
        keep_if(apply, buffers, kept)


def update_scale(matrix: Tensor) -> float:
    return 0.2 * math.sqrt(max(matrix.shape))


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """The same singular vectors, singular values near 1. Matrices of one shape, upright or lying, go together."""
    found = list(matrices)
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_shape.setdefault(tuple(sorted(matrix.shape)), []).append(number)
    for numbers in by_shape.values():
        lying = torch.stack([_lying(matrices[number]) for number in numbers])
        for number, result in zip(numbers, _newton_schulz(lying), strict=True):
            is_upright = matrices[number].shape[0] > matrices[number].shape[1]
            found[number] = (result.T if is_upright else result).to(matrices[number].dtype)
    return found


def _lying(matrix: Tensor) -> Tensor:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _newton_schulz(x: Tensor) -> Tensor:
    """Of a stack of matrices with no more rows than columns. In bf16 on a GPU, where that is fast."""
    a, b, c = COEFFICIENTS
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
