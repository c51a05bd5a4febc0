"""The optimizers that PyTorch does not have."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainbook.errors import MissingExtra, UserError
from trainbook.optim.selective import (
    SelectiveOptimizer,
    average,
    fused_adamw,
    gradients_of,
    in_buckets,
    keep_if,
    step_fused,
    wide,
)

# AdamW whose averages have 8 bits, by bitsandbytes.


TYPES = (torch.float32, torch.bfloat16, torch.float16)
WITHOUT_PACKAGE = "Or set optimizer.type=adamw: it needs no package, and more memory for each weight that is trained."


def low_bit_adamw(
    groups: list[dict], rate: Tensor, betas: tuple[float, float], epsilon: float, *, paged: bool
) -> Optimizer:
    for group in groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            if parameter.dtype not in TYPES:
                raise UserError(
                    f"8-bit AdamW needs fp32, bf16 or fp16 weights, but {name} is {parameter.dtype}. Set "
                    "optimizer.type=adamw."
                )
    on_gpu = groups[0]["params"][0].is_cuda
    return _low_bit_class()(groups, lr=rate, betas=betas, eps=epsilon, is_paged=paged and on_gpu)


@cache
def _low_bit_class() -> Any:
    AdamW8bit: Any = import_bitsandbytes("8-bit AdamW", WITHOUT_PACKAGE).optim.AdamW8bit

    class LowBitAdamW(AdamW8bit):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.rates: list[float] = [0.0] * len(self.param_groups)  # as the host read them
            for index, group in enumerate(self.param_groups):
                for number, parameter in enumerate(group["params"]):
                    self.init_state(group, parameter, index, number)

        @torch.no_grad()
        def step_if(self, apply: Tensor) -> None:
            rates = [group["lr"] for group in self.param_groups]
            verdict, *self.rates = torch.stack([apply.to(rates[0].dtype), *rates]).tolist()  # the host waits here
            if not verdict:
                return
            # As the library's own step, but for a wait for the GPU after each parameter: the stream keeps the order.
            for index, group in enumerate(self.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter.grad is not None:
                        self.prefetch_state(parameter)
                        self.update_step(group, parameter, index, number)
            if self.is_paged:
                torch.cuda.synchronize(rates[0].device)  # a checkpoint reads paged memory from the host

        def get_config(self, gindex: int, pindex: int, group: dict) -> dict:
            return super().get_config(gindex, pindex, group) | {"lr": self.rates[gindex]}

    return LowBitAdamW


def import_bitsandbytes(wanted_for: str, instead: str = "") -> Any:
    with silent_bitsandbytes():
        try:
            import bitsandbytes
        except ImportError:
            raise MissingExtra(wanted_for, "bitsandbytes", "bitsandbytes", instead) from None
    return bitsandbytes


@contextmanager
def silent_bitsandbytes() -> Iterator[None]:
    """At its import it warns of kernels for 4-bit weights that would be faster on a CPU."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# Lion (Chen et al. 2023, arXiv 2302.06675): every weight moves by exactly the rate, in the direction of a sign. Keeps
# one average: 4 bytes a parameter in fp32, half of AdamW's.


class Lion(SelectiveOptimizer):
    def __init__(self, groups: list[dict], rate: Tensor, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": rate, "betas": betas, "weight_decay": 0.0})
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        beta1, beta2 = group["betas"]
        kept = [self.state[parameter]["exp_avg"] for parameter in parameters]
        averages, gradients, weights = wide(kept), gradients_of(parameters), wide(parameters)
        # The sign is of a mix that leans on the new gradient (beta1); what is remembered leans on the past (beta2).
        change = average(averages, gradients, beta1)
        torch._foreach_sign_(change)
        torch._foreach_add_(change, weights, alpha=group["weight_decay"])
        torch._foreach_mul_(change, group["lr"])
        keep_if(apply, torch._foreach_sub(weights, change), parameters)
        keep_if(apply, average(averages, gradients, beta2), kept)


# Stochastic gradient descent with momentum.


class Sgd(SelectiveOptimizer):
    def __init__(self, groups: list[dict], rate: Tensor, momentum: float) -> None:
        super().__init__(groups, {"lr": rate, "momentum": momentum, "weight_decay": 0.0})
        if momentum > 0:
            for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        weights, momentum = wide(parameters), group["momentum"]
        change = torch._foreach_add(gradients_of(parameters), weights, alpha=group["weight_decay"])
        if momentum > 0:
            kept = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_add_(change, wide(kept), alpha=momentum)
            keep_if(apply, change, kept)
        keep_if(apply, torch._foreach_sub(weights, torch._foreach_mul(change, group["lr"])), parameters)


# StableAdamW (arXiv 2304.13013): AdamW whose rate shrinks, tensor by tensor, while the second average lags.


class StableAdamW(SelectiveOptimizer):
    def __init__(
        self,
        groups: list[dict],
        rate: Tensor,
        betas: tuple[float, float],
        epsilon: float,
        norms_of_whole: Callable[[Tensor], Tensor] = lambda norms: norms,
        size_of_whole: Callable[[Tensor], int] = Tensor.numel,
    ) -> None:
        """`norms_of_whole` and `size_of_whole`: of tensors that ranks hold slices of, from those of the slices."""
        super().__init__(groups, {"lr": rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0})
        self.norms_of_whole, self.size_of_whole = norms_of_whole, size_of_whole
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                # In bf16 an average with beta2 .999 would stand still: what is added is less than its last bit.
                "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
            }

    def update(self, group: dict, parameters: list[Tensor], apply: Tensor) -> None:
        (beta1, beta2), epsilon = group["betas"], group["eps"]
        steps, kept, kept_squares = (
            [self.state[parameter][key] for parameter in parameters] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        gradients, weights = gradients_of(parameters), wide(parameters)
        averages = average(wide(kept), gradients, beta1)
        squares = average(wide(kept_squares), torch._foreach_mul(gradients, gradients), beta2)

        updates = torch.stack(steps) + 1  # of each parameter, with this one
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, _one_minus_power(beta2, updates).sqrt().unbind())
        norms = torch._foreach_norm(torch._foreach_div(gradients, torch._foreach_maximum(scales, epsilon)))
        surprise = list(self.norms_of_whole(torch.stack(norms)).unbind())
        torch._foreach_div_(surprise, [math.sqrt(self.size_of_whole(parameter)) for parameter in parameters])
        torch._foreach_maximum_(surprise, 1.0)

        torch._foreach_add_(scales, epsilon)
        change = torch._foreach_div(averages, scales)
        torch._foreach_div_(change, _one_minus_power(beta1, updates).unbind())
        torch._foreach_add_(change, weights, alpha=group["weight_decay"])
        torch._foreach_div_(change, surprise)
        torch._foreach_mul_(change, group["lr"])
        keep_if(apply, torch._foreach_sub(weights, change), parameters)
        keep_if(apply, averages, kept)
        keep_if(apply, squares, kept_squares)
        torch._foreach_copy_(steps, torch.where(apply, updates, updates - 1).unbind())


def _one_minus_power(beta: float, updates: Tensor) -> Tensor:
    """1 - beta^updates without the loss of digits: what an average that began at zero is divided by."""
    return -torch.expm1(updates * (math.log(beta) if beta > 0 else -math.inf))


# Muon (Jordan et al. 2024): the momentum of a matrix is made nearly orthogonal before it becomes an update.


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
