"""Precision: autocast, backward and clipping behind one small object, so that the step has no branches for types."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from trainbook.knobs.sections.precision import Precision as PrecisionKnobs
from trainbook.precision.scaler import LossScaler

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_compute(compute: str, weights: str, device: torch.device) -> str:
    """`auto` is the type of weights of 16 bits; else bf16 on a GPU that computes in it, fp32 elsewhere."""
    if compute != "auto":
        return compute
    if weights != "fp32":
        return weights
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


class Precision:
    def __init__(self, knobs: PrecisionKnobs, device: torch.device, *, has_frozen_weights: bool = False) -> None:
        self.compute = resolve_compute(knobs.compute, knobs.weights, device)
        self.device = device
        self.weight_dtype = DTYPES[knobs.weights]
        self.has_frozen_weights = has_frozen_weights  # of that type, while what is trained is fp32
        self.scaler: LossScaler | None = None
        if self.compute == "fp16":
            dynamic = knobs.loss_scale == "dynamic"
            initial = 2.0**knobs.initial_scale_power if dynamic else float(knobs.loss_scale)
            self.scaler = LossScaler(
                device, initial_scale=initial, growth_interval=knobs.growth_interval, dynamic=dynamic
            )

    def autocast(self) -> AbstractContextManager:
        is_of_one_type = self.weight_dtype == self.compute_dtype and not self.has_frozen_weights
        if self.compute == "fp32" or is_of_one_type:
            return nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    @property
    def compute_dtype(self) -> torch.dtype:
        return DTYPES[self.compute]

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else loss * self.scaler.scale).backward()

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
        """Unscale once, then clip. Returns the global norm before clipping, in fp32, non-finite after an overflow."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.scaler is not None:
            torch._foreach_mul_(gradients, 1.0 / self.scaler.scale)
        return clip_gradients(gradients, max_norm)

    def after_update(self, grad_norm: Tensor) -> None:
        if self.scaler is not None:
            self.scaler.update(~torch.isfinite(grad_norm))

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self.scaler is None else self.scaler.scale

    def state_dict(self) -> dict:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


def clip_gradients(gradients: list[Tensor], max_norm: float | None) -> Tensor:
    """One L2 norm over all gradients; all are scaled by min(1, max_norm / norm)."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)  # fp32 also where gradients are not
    total = torch.linalg.vector_norm(torch.stack(list(norms)))
    if max_norm is not None:
        # As PyTorch's clip_grad_norm_; below the bound the factor is exactly 1 and gradients keep their bits.
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, factor)
    return total
