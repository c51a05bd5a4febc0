"""Products in fp8, where the device has them.

Shapes in comments: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trainbook.check.kernels.kernel import OPERATIONS, Expected, Inputs, Kernel, NotTaken, Rounding, drawn, gradients
from trainbook.precision import float8
from trainbook.precision.float8 import BACKWARD, FORWARD, LEAST_AMAX

# Unit roundoff of the types, and half of their smallest step, in which a scaled number that is small is rounded.
ROUNDED = {FORWARD: (2.0**-4, 2.0**-10), BACKWARD: (2.0**-3, 2.0**-17)}
SUM = 2.0**-13  # Hopper's sums of fp8 products keep about 14 bits: https://arxiv.org/abs/2412.19437, section 3.5.2


@dataclass(frozen=True)
class ProductCase:
    name: str
    rows: int = 33
    inputs: int = 96
    outputs: int = 160
    scale: float = 1.0  # of inputs
    upstream: float = 1.0
    outlier: float | None = None
    is_strided: bool = False


CASES = (
    ProductCase("normal numbers"),
    ProductCase("one row", 1),
    ProductCase("64 rows of 16 numbers", 64, 16, 16),
    ProductCase("inputs of zeros", scale=0.0),
    ProductCase("gradients of zeros", upstream=0.0),
    ProductCase("tiny inputs", scale=1e-6),
    ProductCase("large inputs", scale=100.0),
    ProductCase("one input that is far larger than the others", outlier=5_000.0),
    ProductCase("every second column of a matrix", is_strided=True),
)
NAMES = ("input", "weight")


def make(case: ProductCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = partial(drawn, device=device, dtype=dtype)
    x_MK = draw(case.rows, case.inputs * (2 if case.is_strided else 1), scale=case.scale)
    x_MK = x_MK[:, ::2] if case.is_strided else x_MK
    if case.outlier is not None:
        x_MK[0, 0] = case.outlier
    weight_NK = drawn(case.outputs, case.inputs, device=device, dtype=torch.float32, scale=0.1)
    upstream_MN = draw(case.rows, case.outputs, scale=case.upstream)
    return {"input": x_MK.requires_grad_(), "weight": weight_NK.requires_grad_(), "upstream": upstream_MN}


def compute(case: ProductCase, inputs: Inputs) -> Mapping[str, Tensor]:
    if not float8.has_fp8(inputs["input"].device):
        raise NotTaken
    output = float8.linear(inputs["input"], inputs["weight"])
    return {"output": output, **gradients(output, inputs["upstream"], inputs, NAMES)}


def expect(case: ProductCase, inputs: Inputs, rounding: Rounding) -> Mapping[str, Expected]:
    """Each factor is rounded once to 8 bits, of its tensor's scale; the sum keeps fewer digits than fp32."""
    x_MK, weight_NK, above_MN = (inputs[name].double() for name in (*NAMES, "upstream"))
    of_x, of_weight, of_above = _error(x_MK, FORWARD), _error(weight_NK, FORWARD), _error(above_MN, BACKWARD)

    def product(a: Tensor, of_a: Tensor, b: Tensor, of_b: Tensor, dtype: torch.dtype) -> Expected:
        value, sizes = a @ b, (a.abs() + of_a) @ (b.abs() + of_b)
        of_factors = sizes - a.abs() @ b.abs()
        into = Rounding(dtype, rounding.device)
        share = (a.shape[1] + OPERATIONS) * SUM + 2 * into.unit
        return Expected(value, of_factors.clamp(min=0.0) + share * sizes + rounding.step)

    return {
        "output": product(x_MK, of_x, weight_NK.mT, of_weight.mT, rounding.dtype),
        "gradient of input": product(above_MN, of_above, weight_NK, of_weight, rounding.dtype),
        "gradient of weight": product(above_MN.mT, of_above.mT, x_MK, of_x, torch.float32),
    }


def _error(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of rounding a tensor to 8 bits."""
    unit, half_step = ROUNDED[dtype]
    scale = x.abs().amax().clamp(min=LEAST_AMAX) / torch.finfo(dtype).max
    return (unit + OPERATIONS * 2.0**-24) * x.abs() + half_step * scale


KERNELS = (
    Kernel(
        "fp8_product",
        "a product in fp8 is right but for the digits that 8 bits have not, forward and backward",
        CASES,
        make,
        compute,
        expect,
        instead="Train with precision.products=same meanwhile.",
    ),
)
