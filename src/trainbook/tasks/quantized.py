"""Linear layers of 4 or 8 bits, by bitsandbytes: for frozen weights, beside which adapters are trained."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trainbook.errors import MissingExtra, UserError


def is_linear(part: nn.Module) -> bool:
    """A matrix product that adapters can be put beside. GPT-2 of transformers keeps its matrices transposed."""
    return isinstance(part, nn.Linear) or is_transposed(part)


def is_transposed(part: nn.Module) -> bool:
    return type(part).__name__ == "Conv1D" and type(part).__module__ == "transformers.pytorch_utils"


def quantize(part: nn.Module, bits: str, device: torch.device, compute_dtype: torch.dtype) -> nn.Module:
    """The same layer with a weight of few bits, on the device. NF4 with quantized scales, or LLM.int8()."""
    library = bitsandbytes()
    weight: torch.Tensor = part.weight.detach()  # pyright: ignore[reportAssignmentType, reportCallIssue]
    if is_transposed(part):
        weight = weight.t()
    rows, columns = weight.shape
    has_bias = part.bias is not None
    if bits == "4bit":
        layer = library.nn.Linear4bit(
            columns, rows, bias=has_bias, compute_dtype=compute_dtype, quant_type="nf4", device="meta"
        )
        # On some CPUs it would pack the weights anew for evaluation, with coarser scales, and keep those for training.
        layer.support_avx512bf16_for_cpu = False
        layer.weight = library.nn.Params4bit(
            weight.contiguous(), requires_grad=False, quant_type="nf4", compress_statistics=True, module=layer
        )
    else:
        layer = library.nn.Linear8bitLt(columns, rows, bias=has_bias, has_fp16_weights=False, device="meta")
        layer.weight = library.nn.Int8Params(weight.contiguous(), requires_grad=False, has_fp16_weights=False)
    if has_bias:
        layer.bias = nn.Parameter(part.bias.detach().clone(), requires_grad=False)  # pyright: ignore
    layer.was_transposed = is_transposed(part)
    try:
        return layer.to(device)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        raise UserError(
            f"model.quantize_base: bitsandbytes {library.__version__} cannot store weights in {bits} on "
            f"{device.type}: {str(error).splitlines()[0]}. It needs an NVIDIA GPU, or a CPU and bitsandbytes >= 0.46."
        ) from None


def is_quantized(part: nn.Module) -> bool:
    return type(getattr(part, "weight", None)).__name__ in ("Params4bit", "Int8Params")


def unpacked(part: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A plain layer with the values that the few bits stand for, laid out as it once was."""
    from peft.utils.integrations import dequantize_module_weight

    weight = dequantize_module_weight(part).detach().to(dtype)
    bias = None if part.bias is None else part.bias.detach().to(dtype)  # pyright: ignore
    rows, columns = weight.shape
    plain: Any
    if getattr(part, "was_transposed", False):
        from transformers.pytorch_utils import Conv1D

        plain = Conv1D(rows, columns)
        weight = weight.t().contiguous()
    else:
        plain = nn.Linear(columns, rows, bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias, requires_grad=False)
    return plain


@contextmanager
def silent_bitsandbytes() -> Iterator[None]:
    """At its import it warns of kernels that would be faster on a CPU."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def bitsandbytes() -> Any:
    with silent_bitsandbytes():
        try:
            import bitsandbytes as library
        except ImportError:
            raise MissingExtra("model.quantize_base", "bitsandbytes", "bitsandbytes") from None
    return library
