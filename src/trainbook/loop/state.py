"""Everything that a step reads and changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.guard import Guard
from trainbook.optim import load_optimizer_state, optimizer_state
from trainbook.parallel import SingleDevice
from trainbook.precision import Precision
from trainbook.tasks.adapters import load_saved_state, saved_state


class RateTable:
    """The whole schedule on the device, looked up by the number of applied updates without asking the host."""

    def __init__(self, peak: float, shares: list[float], device: torch.device) -> None:
        self.rates = [peak * share for share in shares]
        self.table = torch.tensor(self.rates, device=device)
        self.rate = self.table[0].clone()  # the one tensor that every parameter group reads

    def set_for(self, applied: Tensor) -> None:
        index = applied.clamp(max=len(self.rates) - 1).view(1)
        self.rate.copy_(self.table.index_select(0, index)[0])

    def at(self, applied: int) -> float:
        return self.rates[min(applied, len(self.rates) - 1)]


@dataclass
class TrainState:
    task: nn.Module  # owns the parameters
    losses: Callable[[Any], dict[str, Tensor]]  # named loss sums of a micro-batch
    optimizer: Optimizer
    rates: RateTable
    precision: Precision
    strategy: SingleDevice
    guard: Guard
    device: torch.device
    seed: int
    max_grad_norm: float | None
    parameters: list[nn.Parameter]
    buffers: list[Tensor]  # what the forward pass itself changes, such as the averages of batch norms
    step: int = 0  # attempted updates
    tokens: int = 0  # tokens in attempted updates
    samples: int = 0  # samples in attempted updates: where the next batch begins
    applied: Tensor = field(init=False)  # applied updates: what the schedule counts
    clipped: Tensor = field(init=False)  # steps whose gradients were clipped, since the last logged row
    steps_since_row: int = 0
    block: int = 0  # samples of like length that an epoch's order keeps together: as the run began, so it goes on

    def __post_init__(self) -> None:
        self.applied = torch.zeros((), dtype=torch.int64, device=self.device)
        self.clipped = torch.zeros((), dtype=torch.int64, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """All that a bit-exact continuation needs. Random numbers need none: each step seeds them from (seed, step)."""
        return {
            "model": saved_state(self.task),
            "optimizer": optimizer_state(self.optimizer),
            "precision": self.precision.state_dict(),
            "guard": self.guard.state_dict(),
            "loop": {
                "step": self.step,
                "tokens": self.tokens,
                "samples": self.samples,
                "applied": self.applied,
                "clipped": self.clipped,
                "steps_since_row": self.steps_since_row,
                "block": self.block,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_saved_state(self.task, state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.precision.load_state_dict(state["precision"])
        self.guard.load_state_dict(state["guard"])
        loop = state["loop"]
        self.step, self.tokens, self.samples = loop["step"], loop["tokens"], loop["samples"]
        self.steps_since_row = loop["steps_since_row"]
        self.block = loop.get("block", self.block)
        self.applied.copy_(loop["applied"])
        self.clipped.copy_(loop["clipped"])
