"""What a kernel is to its check: inputs, what it computes of them, and what it should compute, with an error bound.

A bound is what rounding can add up to, from the unit roundoff of the types and the length of the sums, relative to the
sizes of what is summed. It is worked out before the kernel runs and never fitted to what the kernel answers. A result
that is NaN or infinite where the exact one fits its type is wrong whatever the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainbook.check.run import with_threads

SEED = 20_260
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
FP32 = UNIT_ROUNDOFF[torch.float32]  # of sums: every kernel here adds up in fp32
TF32 = 2.0**-10  # a product whose factors keep eleven digits; some units cut the others off instead of rounding
THREE_TF32 = 2.0**-21  # a product of fp32 numbers as three of TF32, as fused kernels compute it without TF32
OPERATIONS = 8  # roundings around a sum: scaling, an exponential, a division and their like


class NotTaken(Exception):
    """The kernel does not accept this case: PyTorch takes another one for it."""


@dataclass(frozen=True)
class Rounding:
    """How exact a kernel can be on inputs of a type."""

    dtype: torch.dtype
    device: torch.device
    product: float = FP32  # of the factors of a matrix product

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device, *, widens: bool = False) -> Rounding:
        """`widens`: it computes in fp32 even on inputs of 16 bits."""
        if device.type != "cuda" or not (widens or dtype is torch.float32):
            return cls(dtype, device)
        is_exact = torch.get_float32_matmul_precision() == "highest"
        return cls(dtype, device, THREE_TF32 if is_exact else TF32)

    @property
    def unit(self) -> float:
        return UNIT_ROUNDOFF[self.dtype]

    @property
    def step(self) -> float:
        """Below this a number may become zero: fp16 has nothing there, and GPUs flush fp32 and bf16."""
        limits = torch.finfo(self.dtype)
        return limits.smallest_normal * limits.eps if self.dtype is torch.float16 else limits.smallest_normal


@dataclass(frozen=True)
class Expected:
    """The exact result in fp64, and how far from it each number may be."""

    value: Tensor
    bound: Tensor
    is_remark: bool = False  # a deviation is worth knowing, and no reason to do without the kernel


class Case(Protocol):
    @property
    def name(self) -> str: ...


Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Kernel:
    """To add one, declare it in the list of its file, and that list in `run.KERNELS`."""

    name: str
    proves: str
    cases: Sequence[Any]
    make: Callable[[Any, torch.device, torch.dtype], Inputs]  # of a case
    compute: Callable[[Any, Inputs], Mapping[str, Tensor]]  # results and gradients; NotTaken
    expect: Callable[[Any, Inputs, Rounding], Mapping[str, Expected]]
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16, torch.float16)
    widens: bool = False  # computes in fp32 whatever the type
    backend: str | None = None  # of attention, where training can do without it
    instead: str = "Update PyTorch or the driver: training goes on using this kernel."


@dataclass(frozen=True)
class Deviation:
    """The part of a case that is worst, by its share of the bound."""

    case: str
    dtype: torch.dtype
    part: str
    error: float
    bound: float
    share: float  # error / bound; infinite where a number is not finite
    num_bad: int = 0  # numbers that are not finite, or beyond their bound
    num_numbers: int = 0
    is_finite: bool = True
    is_remark: bool = False

    @property
    def is_wrong(self) -> bool:
        return self.num_bad > 0


def deviations(
    kernels: Sequence[Kernel], case: Case, dtype: torch.dtype, device: torch.device
) -> dict[str, list[Deviation] | Exception]:
    """Of kernels that share their cases, a part each, or what stopped the kernel; none of those after one that took the
    device down. Random numbers of a case are always the same, and what is expected is worked out once for all kernels
    that are equally exact."""
    torch.default_generator.manual_seed(SEED)  # all are drawn on the CPU
    with with_threads(1):
        inputs = kernels[0].make(case, device, dtype)
    expected: dict[tuple[object, Rounding], Mapping[str, Expected]] = {}
    answer: dict[str, list[Deviation] | Exception] = {}
    for kernel in kernels:
        try:
            found = kernel.compute(case, inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # an error of a kernel is told at the next wait for it
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            answer[kernel.name] = error
            if not isinstance(error, NotTaken) and is_lost(device):
                break
            continue
        rounding = Rounding.of(dtype, device, widens=kernel.widens)
        key = kernel.expect, rounding
        with torch.no_grad(), with_threads(1):  # for small tensors, waiting for others takes longer than the work
            if key not in expected:
                expected[key] = kernel.expect(case, inputs, rounding)
            answer[kernel.name] = [
                _deviation(case.name, dtype, part, found[part].detach(), each) for part, each in expected[key].items()
            ]
    return answer


def is_lost(device: torch.device) -> bool:
    """Whether nothing runs on the GPU any more in this process, as after a kernel that wrote beyond its memory."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _deviation(case: str, dtype: torch.dtype, part: str, found: Tensor, expected: Expected) -> Deviation:
    value, bound = expected.value, expected.bound.expand_as(expected.value)
    largest = torch.finfo(found.dtype).max
    fits = value.abs() <= largest  # the exact result: what does not fit its type has no right answer
    may_overflow = value.abs() + torch.where(bound.isfinite(), bound, 0.0) > largest
    is_finite = found.isfinite() | ~fits | (found.isinf() & may_overflow)
    error = torch.where(fits & found.isfinite(), (found.double() - value).abs(), 0.0)
    share = torch.where(is_finite, error / bound, float("inf")).nan_to_num(nan=0.0, posinf=float("inf")).flatten()
    worst = int(share.argmax())
    return Deviation(
        case,
        dtype,
        part,
        error=float(error.flatten()[worst]) if bool(is_finite.all()) else float("nan"),
        bound=float(bound.flatten()[worst]),
        share=float(share[worst]),
        num_bad=int((share > 1.0).sum()),
        num_numbers=value.numel(),
        is_finite=bool(is_finite.all()),
        is_remark=expected.is_remark,
    )


def gradients(result: Tensor, upstream: Tensor, inputs: Inputs, names: Iterable[str]) -> dict[str, Tensor]:
    """Of the inputs of these names."""
    names = list(names)
    found = torch.autograd.grad(result, [inputs[name] for name in names], upstream)
    return {f"gradient of {name}": gradient for name, gradient in zip(names, found, strict=True)}


def drawn(*shape: int, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers that are the same on every device."""
    return (torch.randn(shape) * scale).to(dtype).to(device)
