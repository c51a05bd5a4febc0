"""Loss scaling for fp16: gradients too small for the type are lifted into its range, and lowered again before use.

PyTorch's rule (torch.amp.GradScaler): double after `growth_interval` clean steps, halve at an overflow. Overflow is
read off the gradient norm, which the step computes anyway, so that there is one verdict and no host sync.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
