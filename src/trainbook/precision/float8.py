"""Matrix products in fp8: inputs are rounded to 8 bits with one scale for each tensor, and sums are kept in fp32.

Shapes in comments: M rows, K inputs, N outputs. A scale is the largest absolute value divided by the largest number of
the type, found anew for each product (dynamic, tensorwise).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.errors import UserError

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2  # gradients need range more than digits
MULTIPLE = 16  # of every size that the kernels take, except that of the rows of the first matrix
LEAST_AMAX = 1e-30  # a tensor of zeros has a scale, too, and its inverse is finite
LEAST_CAPABILITY = (8, 9)  # of NVIDIA's GPUs: Ada
FASTER_FROM_WIDTH = 1536  # between 768, where fp8 was slower than bf16 on an H200, and 1664, where it was faster


def has_fp8(device: torch.device) -> bool:
    """Whether the device multiplies in these two types. AMD's MI300 has other types of 8 bits."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def must_have_fp8(device: torch.device) -> None:
    if has_fp8(device):
        return
    where = "the CPU" if device.type == "cpu" else f"the {torch.cuda.get_device_name(device)}"
    raise UserError(
        f"precision.products: fp8 needs an NVIDIA GPU of compute capability 8.9 or higher (L4, L40S, RTX 4090, H100, "
        f"H200, B200), but this run would use {where}. Set precision.products=same."
    )


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in 8 bits, and the scale (fp32) that those are to be multiplied by.

    Where the largest value is NaN or infinite, so is the scale, and every product of it: the guard has to see that.
    """
    scale = x.abs().amax().float().clamp(min=LEAST_AMAX) / torch.finfo(dtype).max
    return _rounded(x, scale, dtype), scale


def _rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """No value is beyond the largest number by more than fp32's last digit, and that is rounded to it: the cast, which
    does not saturate, loses none."""
    return (x.float() * scale.reciprocal()).to(dtype)


def _column_major(x: Tensor) -> Tensor:
    """As the kernels want their second matrix. Its transpose lies in memory row by row."""
    return x.t().contiguous().t()


class _Product(torch.autograd.Function):
    """x (M, K) times the transpose of a weight (N, K)."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor, out_dtype: torch.dtype) -> Tensor:
        x8_MK, x_scale = quantize(x_MK, FORWARD)
        weight8_NK, weight_scale = quantize(weight_NK, FORWARD)
        # Of the input its 8 bits are kept, half of what bf16 keeps, and the very numbers that the gradient of the
        # weight needs. The weight itself is kept, which costs nothing, and rounded again in the backward pass: that
        # needs another layout of it anyway. Compiled, the partitioner may choose otherwise.
        ctx.save_for_backward(x8_MK, x_scale, weight_NK, weight_scale)
        ctx.x_dtype = x_MK.dtype
        return torch._scaled_mm(
            x8_MK, weight8_NK.t(), scale_a=x_scale, scale_b=weight_scale, out_dtype=out_dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x8_MK, x_scale, weight_NK, weight_scale = ctx.saved_tensors
        out_dtype = gradients[0].dtype
        gradient8_MN, scale = quantize(gradients[0].contiguous(), BACKWARD)
        of_x = of_weight = None
        # Without fast accumulation: what is added up here is added up over many rows, or goes through many layers.
        if ctx.needs_input_grad[0]:
            weight8_NK = _column_major(_rounded(weight_NK, weight_scale, FORWARD))
            of_x = torch._scaled_mm(
                gradient8_MN, weight8_NK, scale_a=scale, scale_b=weight_scale, out_dtype=out_dtype
            ).to(ctx.x_dtype)
        if ctx.needs_input_grad[1]:
            of_weight = torch._scaled_mm(
                gradient8_MN.t().contiguous(),
                _column_major(x8_MK),
                scale_a=scale,
                scale_b=x_scale,
                out_dtype=weight_NK.dtype,
            )
        return of_x, of_weight, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As F.linear, under autocast too, with the product in fp8. The weight's sizes must be multiples of 16."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    rows = x.reshape(-1, x.shape[-1])
    missing = -rows.shape[0] % MULTIPLE  # the gradient of the weight adds up over rows
    padded = F.pad(rows, (0, 0, 0, missing)) if missing else rows
    with torch.autocast(kind, enabled=False):  # it would round once more, on a CPU
        product: Any = _Product.apply(padded, weight, dtype)
    answer = product[: rows.shape[0]].reshape(*x.shape[:-1], weight.shape[0])
    return answer if bias is None else answer + bias.to(dtype)


def fp8_products(task: nn.Module, layers: list[str]) -> Products:
    """Turns to fp8 what is suitable among these linear layers."""
    found = suitable_layers(task, layers)
    if not found:
        raise UserError(
            f"precision.products: fp8 needs linear layers inside blocks whose sizes are multiples of {MULTIPLE}, but "
            "this model has none. Set precision.products=same."
        )
    return Products(task, found)


# Layers keep their class, their parameters and the names of these: only what computes them changes.


class Products:
    """Which layers multiply in fp8, and whether they do so just now."""

    def __init__(self, task: nn.Module, names: list[str]) -> None:
        self.names = names
        self.is_on = True
        self.is_on_in_evaluation = False  # evaluation computes as the exported model will
        for name in names:
            layer: Any = task.get_submodule(name)
            layer.forward = self._forward_of(layer)

    def _forward_of(self, layer: Any) -> Callable[[Tensor], Tensor]:
        plain = layer.forward

        def forward(x: Tensor) -> Tensor:
            if self.is_on and (layer.training or self.is_on_in_evaluation):
                return linear(x, layer.weight, layer.bias)
            return plain(x)

        return forward

    @contextmanager
    def also_in_evaluation(self) -> Iterator[None]:
        """For passes that are compared with losses of training."""
        self.is_on_in_evaluation = True
        try:
            yield
        finally:
            self.is_on_in_evaluation = False


def suitable_layers(task: nn.Module, layers: list[str]) -> list[str]:
    """Of these linear layers those inside repeated blocks with sizes that the kernels take: no head, no router, no
    adapter and nothing quantized."""
    inside = {part for each in task.modules() if isinstance(each, nn.ModuleList) for part in each.modules()}
    return [name for name in layers if (layer := task.get_submodule(name)) in inside and _is_suitable(name, layer)]


def _is_suitable(name: str, layer: nn.Module) -> bool:
    weight, own = getattr(layer, "weight", None), name.rpartition(".")[2]
    if not isinstance(layer, nn.Linear) or not isinstance(weight, Tensor) or not weight.is_floating_point():
        return False
    if ".lora_" in name or own == "gate" or "router" in name or weight.dim() != 2:
        return False
    return weight.shape[0] % MULTIPLE == 0 and weight.shape[1] % MULTIPLE == 0
