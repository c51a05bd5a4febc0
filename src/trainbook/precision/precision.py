"""Precision: autocast, backward and clipping behind one small object, so that the step has no branches for types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from trainbook.errors import UserError
from trainbook.knobs.sections.batch import BatchKnobs as BatchKnobs
from trainbook.knobs.sections.precision import PrecisionKnobs as PrecisionKnobs
from trainbook.precision.clipping import Clipped, ZClip, clip_gradients
from trainbook.precision.float8 import Products

# Loss scaling for fp16: gradients too small for the type are lifted into its range, and lowered again before use.


class LossScaler:
    def __init__(self, device: torch.device, *, initial_scale: float, growth_interval: int, dynamic: bool) -> None:
        self.scale = torch.tensor(float(initial_scale), device=device)
        self.clean_steps = torch.zeros((), dtype=torch.int32, device=device)
        self.growth_interval, self.dynamic = growth_interval, dynamic
        self.before = self.scale, self.clean_steps  # the last update

    def update(self, overflowed: Tensor) -> None:
        if self.dynamic:
            self.before = self.scale, self.clean_steps
            self.scale, self.clean_steps = self.scale.clone(), self.clean_steps.clone()
            torch._amp_update_scale_(self.scale, self.clean_steps, overflowed.float(), 2.0, 0.5, self.growth_interval)

    def state_dict(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "clean_steps": self.clean_steps}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self.dynamic:  # a fixed scale is what the configuration says
            self.scale.copy_(state["scale"])
        self.clean_steps.copy_(state["clean_steps"])


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_compute(compute: str, weights: str, device: torch.device) -> str:
    """`auto` is the type of weights of 16 bits; else bf16 on a GPU that computes in it, fp32 elsewhere."""
    if compute != "auto":
        return compute
    if weights != "fp32":
        return weights
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


class Precision:
    def __init__(
        self,
        knobs: PrecisionKnobs,
        device: torch.device,
        *,
        batch: BatchKnobs | None = None,  # how gradients are clipped; without it, by a fixed norm only
        has_frozen_weights: bool = False,
    ) -> None:
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
        self.products: Products | None = None  # in fp8, once there is a model; None: in the type of all the rest
        self.zclip: ZClip | None = None
        if batch is not None and batch.clipping == "zclip":
            self.zclip = ZClip(device, threshold=batch.zclip_threshold, alpha=batch.zclip_alpha)

    def autocast(self) -> AbstractContextManager:
        if self.cast_to is None:
            return nullcontext()
        # Its cache would keep the rounded copy of every weight to the end of the forward pass, also of blocks that are
        # recomputed, or whose weights are let go of. A weight is used once in it: there is nothing to save.
        return torch.autocast(self.device.type, self.cast_to, cache_enabled=False)

    @property
    def cast_to(self) -> torch.dtype | None:
        """What autocast computes in; None where there is nothing to cast."""
        is_of_one_type = self.weight_dtype == self.compute_dtype and not self.has_frozen_weights
        return None if self.compute == "fp32" or is_of_one_type else self.compute_dtype

    @property
    def compute_dtype(self) -> torch.dtype:
        return DTYPES[self.compute]

    @property
    def has_fp8_products(self) -> bool:
        """Whether there are any just now."""
        return self.products is not None and self.products.is_on

    def widen_products(self) -> int:
        """From here on no product is in fp8, neither in this run nor when it is resumed. Returns how many layers had
        them."""
        assert self.products is not None
        self.products.is_on = False
        return len(self.products.names)

    def as_in_training(self) -> AbstractContextManager:
        """Around passes in evaluation mode that are compared with losses of training."""
        return nullcontext() if self.products is None else self.products.also_in_evaluation()

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else loss * self.scaler.scale).backward()

    def clip_gradients(
        self,
        parameters: Iterable[nn.Parameter],
        max_norm: float | None,
        norms_over_ranks: Callable[[Tensor], Tensor] = lambda norms: norms,
    ) -> Clipped:
        """Unscale once, then clip. The norm is the one before clipping; after an overflow it is not finite.

        `norms_over_ranks`: from the norms of the parts that this rank has to those of whole tensors.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            raise UserError("The loss must depend on the model's parameters, but none of them received a gradient.")
        if self.scaler is not None:
            torch._foreach_mul_(gradients, 1.0 / self.scaler.scale)
        return clip_gradients(gradients, max_norm, self.zclip, norms_over_ranks)

    def after_update(self, grad_norm: Tensor, applied: Tensor) -> None:
        """What the next step's scale and bound are learned from: the norm before clipping, and the verdict."""
        if self.scaler is not None:
            self.scaler.update(~torch.isfinite(grad_norm))
        if self.zclip is not None:
            self.zclip.update(grad_norm, applied)

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self.scaler is None else self.scaler.scale

    @property
    def can_be_lowered(self) -> Tensor | None:
        """Whether an overflow may be the loss scale's doing: it moves, and has not come down to 1. None: there is no
        such scale, and every overflow is the gradients' own."""
        return None if self.scaler is None or not self.scaler.dynamic else self.scaler.scale > 1.0

    def state_dict(self) -> dict:
        state: dict = {} if self.scaler is None else self.scaler.state_dict()
        if self.products is not None and not self.products.is_on:
            state = {**state, "products": "same"}
        return state if self.zclip is None else {**state, "zclip": self.zclip.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """What was not kept then, because a knob was another, starts anew. Products that were given up stay so, also
        in a state from before that."""
        if self.products is not None and state.get("products") == "same":
            self.products.is_on = False
        if self.scaler is not None and "scale" in state:
            self.scaler.load_state_dict(state)
        if self.zclip is not None and "zclip" in state:
            self.zclip.load_state_dict(state["zclip"])
