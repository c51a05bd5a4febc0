"""The fused optimizer step, with updates that are applied and updates that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trainbook.check.kernels.kernel import FP32, OPERATIONS, Expected, Inputs, Kernel, Rounding, drawn
from trainbook.optim.selective import fused_adamw, step_fused

BETAS, EPSILON, DECAY, RATE = (0.9, 0.95), 1e-8, 0.1, 1e-2
STEPS = 3


@dataclass(frozen=True)
class UpdateCase:
    name: str
    scale: float = 1.0  # of gradients
    shapes: tuple[tuple[int, ...], ...] = ((33, 7), (1,), (257,))
    refused: tuple[int, ...] = ()  # steps: their gradients are NaN
    is_transposed: bool = False


CASES = (
    UpdateCase("normal gradients"),
    UpdateCase("zero gradients", scale=0.0),
    UpdateCase("tiny gradients", scale=1e-12),
    UpdateCase("huge gradients", scale=1e8),
    UpdateCase("one number", shapes=((1,),)),
    UpdateCase("65,537 numbers", shapes=((65_537,),)),  # one more than a kernel takes at once
    UpdateCase("transposed weights", is_transposed=True),
    UpdateCase("a refused update", refused=(1,)),
    UpdateCase("every update refused", refused=(0, 1, 2)),
)


def make(case: UpdateCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    made: dict[str, Tensor] = {}
    for number, shape in enumerate(case.shapes):
        weight = drawn(*shape, device=device, dtype=dtype)
        made[f"weight {number}"] = weight.T if case.is_transposed and weight.ndim == 2 else weight
        for step in range(STEPS):
            scale = float("nan") if step in case.refused else case.scale
            gradient = torch.empty_like(made[f"weight {number}"])  # autograd gives it the layout of its weight
            gradient.copy_(drawn(*gradient.shape, device=device, dtype=dtype, scale=scale))
            made[f"gradient {number}, step {step}"] = gradient
    return made


Update = Callable[[list[Tensor], list[list[Tensor]], list[bool]], None]  # weights in place; gradients; which to apply


def fused(weights: list[Tensor], gradients: list[list[Tensor]], applied: list[bool]) -> None:
    device = weights[0].device
    rate = torch.tensor(RATE, device=device)
    group = {"params": [torch.nn.Parameter(weight) for weight in weights], "weight_decay": DECAY}
    optimizer = fused_adamw([group], rate, BETAS, EPSILON)
    for of_step, is_applied in zip(gradients, applied, strict=True):
        for parameter, gradient in zip(group["params"], of_step, strict=True):
            parameter.grad = gradient.clone()
        step_fused(optimizer, torch.tensor(is_applied, device=device))


def _gradients(case: UpdateCase, inputs: Inputs) -> list[list[Tensor]]:
    return [[inputs[f"gradient {number}, step {step}"] for number in range(len(case.shapes))] for step in range(STEPS)]


def compute(case: UpdateCase, inputs: Inputs, update: Update) -> Mapping[str, Tensor]:
    names = [f"weight {number}" for number in range(len(case.shapes))]
    weights = [inputs[name].clone() for name in names]
    update(weights, _gradients(case, inputs), [step not in case.refused for step in range(STEPS)])
    return dict(zip(names, weights, strict=True))


def expect(case: UpdateCase, inputs: Inputs, rounding: Rounding) -> Mapping[str, Expected]:
    """AdamW by its formula. Each applied step rounds the weight and both averages once, to their type."""
    unit, least = rounding.unit, torch.finfo(torch.float32).smallest_normal
    expected = {}
    for number in range(len(case.shapes)):
        weight = inputs[f"weight {number}"].double()
        first = second = size = bound = torch.zeros_like(weight)
        count = 0
        for step in range(STEPS):
            if step in case.refused:
                continue
            gradient, count = inputs[f"gradient {number}, step {step}"].double(), count + 1
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            size = BETAS[0] * size + (1 - BETAS[0]) * gradient.abs()  # of what is added up in the first average
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient.square()
            root, of_first = (second / (1 - BETAS[1] ** count)).sqrt(), 1 - BETAS[0] ** count
            # Both averages, and a root of which half the error counts; squares that are too small become zero.
            share = count * (2 * unit + OPERATIONS * FP32) + OPERATIONS * FP32
            under = size * (least / (1 - BETAS[1])) ** 0.5 / (root + EPSILON)
            of_change = RATE * (share * size + torch.where(root < 1e3 * least**0.5, under, 0.0))
            of_change = of_change / of_first / (root + EPSILON)
            weight = weight * (1 - RATE * DECAY) - RATE * first / of_first / (root + EPSILON)
            bound = bound + of_change + (unit + 4 * FP32) * (weight.abs() + RATE)
        expected[f"weight {number}"] = Expected(weight, bound + (rounding.step if count else 0.0))
    return expected


KERNELS = (
    Kernel(
        "fused_adamw",
        "the fused AdamW step is right, and a refused update changes no bit",
        CASES,
        make,
        partial(compute, update=fused),
        expect,
        dtypes=(torch.float32, torch.bfloat16),
        instead="Update PyTorch or the driver, or train with optimizer.type=stable_adamw meanwhile.",
    ),
)
