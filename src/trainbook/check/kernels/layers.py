"""Norms and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.check.kernels.kernel import FP32, OPERATIONS, Expected, Inputs, Kernel, Rounding, drawn, gradients
from trainbook.models.core import PLAIN

# Norms over rows of a matrix.

EPSILON = 1e-5
ROUNDED = 3  # times that a result is rounded to its type: the normalized row, times its gain, plus its bias


@dataclass(frozen=True)
class NormCase:
    name: str
    width: int = 96
    rows: int = 5
    mean: float = 0.0
    deviation: float = 1.0
    is_strided: bool = False


NORM_CASES = (
    NormCase("normal rows"),
    NormCase("1024 wide", 1024),
    NormCase("one row of one number", 1, 1),
    NormCase("rows of 65", 65),
    NormCase("tiny variance", deviation=1e-4),
    NormCase("no variance: rows of one value", mean=3.0, deviation=0.0),
    NormCase("no variance: rows of a large value", mean=30_000.0, deviation=0.0),
    NormCase("zeros", deviation=0.0),
    NormCase("far from zero", mean=100.0),
    NormCase("huge values", deviation=10_000.0),
    NormCase("every second column of a matrix", is_strided=True),
)
NORM_PARTS = ("input", "gain", "bias")


def make_rows(case: NormCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    draw = partial(drawn, device=device, dtype=dtype)
    columns = case.width * (2 if case.is_strided else 1)
    wide = (torch.randn(case.rows, columns).clamp(-4, 4) * case.deviation + case.mean).to(dtype).to(device)
    rows = wide[:, ::2] if case.is_strided else wide
    gain, bias = (drawn(case.width, device=device, dtype=torch.float32, scale=scale) for scale in (0.1, 1.0))
    made = dict(zip(NORM_PARTS, (rows, gain + 1.0, bias), strict=True))
    return {**{name: each.detach().requires_grad_() for name, each in made.items()}, "upstream": draw(*rows.shape)}


Norm = Callable[[Tensor, Tensor, Tensor], Tensor]  # rows, gain, bias


def layer_norm(rows: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """In fp32, as under autocast and in `WideLayerNorm`."""
    return F.layer_norm(rows.to(gain.dtype), gain.shape, gain, bias, EPSILON).to(rows.dtype)


def rms_norm(rows: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return F.rms_norm(rows.to(gain.dtype), gain.shape, gain, EPSILON).to(rows.dtype)


def normalized(case: NormCase, inputs: Inputs, norm: Norm, parts: tuple[str, ...]) -> Mapping[str, Tensor]:
    output = norm(*(inputs[name] for name in NORM_PARTS))
    return {"output": output, **gradients(output, inputs["upstream"], inputs, parts)}


def expect_normalized(case: NormCase, inputs: Inputs, rounding: Rounding, *, centred: bool) -> Mapping[str, Expected]:
    """With means over the row: x' = (x - m) r, and the gradient r (g - mean(g) - x' mean(g x'))."""
    rows, gain, bias, above = (inputs[name].double() for name in (*NORM_PARTS, "upstream"))
    width, unit, step = case.width, rounding.unit, rounding.step
    of_sum = (width + OPERATIONS) * FP32
    mean = rows.mean(-1, keepdim=True) if centred else torch.zeros_like(rows[:, :1])
    of_mean = of_sum * rows.abs().mean(-1, keepdim=True) if centred else mean
    from_mean = rows - mean
    variance = from_mean.square().mean(-1, keepdim=True)
    of_variance = 2 * of_sum * variance + of_mean.square()
    inverse = (variance + EPSILON).rsqrt()
    share = of_variance / (variance + EPSILON) + OPERATIONS * FP32  # of 1 / sqrt: half of it, and some room
    unit_rows = from_mean * inverse
    of_rows = inverse * (of_mean + FP32 * rows.abs()) + share * unit_rows.abs()

    output = unit_rows * gain + (bias if centred else 0.0)
    sizes = (unit_rows * gain).abs() + (bias.abs() if centred else 0.0)
    found = {"output": Expected(output, of_rows * gain.abs() + (ROUNDED * unit + FP32) * sizes + step)}

    inner = above * gain
    along, aside = (inner * unit_rows).mean(-1, keepdim=True), inner.mean(-1, keepdim=True) if centred else 0.0
    size_along = (inner * unit_rows).abs().mean(-1, keepdim=True)
    size = inner.abs() + (inner.abs().mean(-1, keepdim=True) if centred else 0.0) + unit_rows.abs() * size_along
    of_inner = (of_sum + ROUNDED * unit + share) * size
    of_inner = of_inner + of_rows * size_along + unit_rows.abs() * (inner.abs() * of_rows).mean(-1, keepdim=True)
    value = inverse * (inner - aside - unit_rows * along)
    found["gradient of input"] = Expected(value, inverse * of_inner + unit * value.abs() + step)

    of_column = (case.rows + OPERATIONS) * FP32 + ROUNDED * unit
    gain_size = (above * unit_rows).abs().sum(0)
    of_gain = (above.abs() * of_rows).sum(0) + of_column * gain_size + step
    found["gradient of gain"] = Expected((above * unit_rows).sum(0), of_gain)
    if centred:
        found["gradient of bias"] = Expected(above.sum(0), of_column * above.abs().sum(0) + step)
    return found


def _norm(name: str, norm: Norm, *, centred: bool) -> Kernel:
    return Kernel(
        name,
        f"{name} is right, forward and backward",
        NORM_CASES,
        make_rows,
        partial(normalized, norm=norm, parts=NORM_PARTS if centred else NORM_PARTS[:2]),
        partial(expect_normalized, centred=centred),
    )


# Activations, number by number.

LARGEST = {torch.float16: 65_504.0, torch.bfloat16: 1e12, torch.float32: 1e12}  # its cube is a number of fp32


@dataclass(frozen=True)
class ActivationCase:
    name: str
    numbers: Literal["grid", "huge", "tiny"]
    is_strided: bool = False


ACTIVATION_CASES = (
    ActivationCase("from -12 to 12", "grid"),
    ActivationCase("huge values, and where exp overflows", "huge"),
    ActivationCase("zeros and tiny values", "tiny"),
    ActivationCase("every second number", "grid", is_strided=True),
)


def make_numbers(case: ActivationCase, device: torch.device, dtype: torch.dtype) -> Inputs:
    largest, least = LARGEST[dtype], torch.finfo(dtype).smallest_normal
    half = {
        "grid": torch.linspace(0.0, 12.0, 515),
        "huge": torch.cat([torch.linspace(80.0, 110.0, 61), torch.logspace(2, 4.8, 40), torch.tensor([largest])]),
        "tiny": torch.cat([torch.tensor([0.0, least]), torch.logspace(-8, -1, 30)]),
    }[case.numbers]
    numbers = torch.cat([-half, half]).to(dtype)
    upstream = drawn(*numbers.shape, device=device, dtype=dtype)
    if case.is_strided:
        numbers = numbers.repeat_interleave(2).to(device)[::2]
    return {"input": numbers.to(device).detach().requires_grad_(), "upstream": upstream}


def activated(case: ActivationCase, inputs: Inputs, activation: Callable[[Tensor], Tensor]) -> Mapping[str, Tensor]:
    output = activation(inputs["input"])
    return {"output": output, **gradients(output, inputs["upstream"], inputs, ["input"])}


def expect_activated(
    case: ActivationCase, inputs: Inputs, rounding: Rounding, activation: Callable[[Tensor], Tensor]
) -> Mapping[str, Expected]:
    """The same function in fp64. In fp32, its value is x times a number near 1 of which nearly 1 was subtracted."""
    with torch.enable_grad():
        x = inputs["input"].detach().double().requires_grad_()
        output = activation(x)
        (gradient,) = torch.autograd.grad(output, x, inputs["upstream"].double())
    x, output, above = x.detach(), output.detach(), inputs["upstream"].double().abs()
    many = 4 * OPERATIONS * FP32  # a polynomial or an exponential inside
    unit, step = rounding.unit, rounding.step
    of_output = many * torch.maximum(x.abs(), output.abs()) + 2 * unit * output.abs() + step
    of_gradient = many * torch.maximum(above * (1 + x.abs()), gradient.abs()) + 2 * unit * gradient.abs() + step
    is_lost = output.abs() > torch.finfo(rounding.dtype).max  # a gradient through an infinite output means nothing
    return {
        "output": Expected(output, of_output),
        "gradient of input": Expected(torch.where(is_lost, float("inf"), gradient), of_gradient),
    }


def _activation(name: str, activation: Callable[[Tensor], Tensor]) -> Kernel:
    return Kernel(
        name,
        f"{name} is right, forward and backward",
        ACTIVATION_CASES,
        make_numbers,
        partial(activated, activation=activation),
        partial(expect_activated, activation=activation),
    )


NORMS = (_norm("layer_norm", layer_norm, centred=True), _norm("rms_norm", rms_norm, centred=False))
KERNELS = (*NORMS, *(_activation(name, function) for name, function in PLAIN.items()))
