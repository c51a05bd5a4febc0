"""Everything that a step reads and changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.guard import Judge
from trainbook.guard.snapshots import copied
from trainbook.optim import load_optimizer_state, optimizer_state
from trainbook.parallel import Strategy
from trainbook.precision import Precision
from trainbook.tasks.adapters import load_saved_state, saved_state


class Remedy(NamedTuple):
    """A lower learning rate, from an update on."""

    update: int
    factor: float
    rewarm: int  # updates over which the rate climbs again from nothing


class RateTable:
    """The whole schedule on the device, looked up by the number of applied updates without a host sync."""

    def __init__(self, peak: float, shares: list[float], device: torch.device) -> None:
        self.scheduled = [peak * share for share in shares]
        self.rates = self.scheduled
        self.table = torch.tensor(self.rates, device=device)
        self.rate = self.table[0].clone()  # what parameter groups read, unless they have a multiplier
        self.multiplied: dict[float, Tensor] = {}

    def times(self, multiplier: float) -> Tensor:
        """The learning rate times a group's multiplier; it follows the schedule and remedies."""
        if multiplier == 1.0:
            return self.rate
        return self.multiplied.setdefault(multiplier, self.rate * multiplier)

    def apply(self, remedies: Iterable[Remedy]) -> None:
        """Apply these remedies to the schedule, in place of earlier ones."""
        self.rates = list(self.scheduled)
        for update, factor, rewarm in remedies:
            for later in range(update, len(self.rates)):
                self.rates[later] *= factor * min(1.0, (later - update + 1) / (rewarm + 1))
        self.table.copy_(torch.tensor(self.rates))

    def set_for(self, applied: Tensor) -> None:
        index = applied.clamp(max=len(self.rates) - 1).view(1)
        self.rate.copy_(self.table.index_select(0, index)[0])
        for multiplier, rate in self.multiplied.items():
            torch.mul(self.rate, multiplier, out=rate)

    def at(self, applied: int) -> float:
        return self.rates[min(applied, len(self.rates) - 1)]

    def factor(self, applied: int) -> float:
        """What remedies multiply the scheduled learning rate by."""
        scheduled = self.scheduled[min(applied, len(self.rates) - 1)]
        return self.at(applied) / scheduled if scheduled else 1.0


class Rechecks(Protocol):
    """Computes a rejected update again, before it is believed; see recheck.py."""

    def doubts_the_last(self) -> bool:
        """Whether the update before the one that is being computed was rejected, and is still to be settled."""
        ...

    def settle(self) -> None: ...

    def note(self, batch: Any, computed: Any, report: Any, watched: bool) -> Any:
        """The report of an update that was judged; another one if it was computed again."""
        ...


@dataclass
class TrainState:
    task: nn.Module  # owns the parameters
    losses: Callable[[Any], dict[str, Tensor]]  # named loss sums of a micro-batch
    optimizer: Optimizer
    rates: RateTable
    precision: Precision
    strategy: Strategy
    judge: Judge
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
    micro_batch: int = 0  # rows that are computed at a time
    most_rows: int | None = None  # of them that there is memory for; None: it was always enough
    kept_out: list[int] = field(default_factory=list)  # ids of samples that are trained on no more
    remedies: list[Remedy] = field(default_factory=list)
    recheck: Rechecks | None = None
    is_recomputed: bool = False  # what is computed just now was computed before

    def __post_init__(self) -> None:
        self.applied = torch.zeros((), dtype=torch.int64, device=self.device)
        self.clipped = torch.zeros((), dtype=torch.int64, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-exact resume needs. Random numbers need no state: each step seeds them from (seed, step)."""
        return {
            "model": self.strategy.whole_model(saved_state(self.task)),
            "optimizer": self.strategy.whole_optimizer(optimizer_state(self.optimizer)),
            **self._besides(),
        }

    @property
    def unread_parts(self) -> tuple[str, ...]:
        """The parts of a checkpoint of which this rank reads only its own slices."""
        return ("model", "optimizer") if self.strategy.reads_slices else ()

    def held_state(self) -> dict[str, Any]:
        """The same for what this rank holds, for `go_back`."""
        return {
            "model": self.strategy.held_model(saved_state(self.task)),
            "optimizer": optimizer_state(self.optimizer),
            **self._besides(),
        }

    def _besides(self) -> dict[str, Any]:
        return {
            "precision": self.precision.state_dict(),
            "guard": self.judge.state_dict(),
            "loop": {
                "step": self.step,
                "tokens": self.tokens,
                "samples": self.samples,
                "applied": self.applied,
                "clipped": self.clipped,
                "steps_since_row": self.steps_since_row,
                "block": self.block,
                "most_rows": self.most_rows,
                "kept_out": self.kept_out,
                "remedies": [list(remedy) for remedy in self.remedies],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._load_saved(state)
        self.precision.load_state_dict(state["precision"])
        self.judge.load_state_dict(state["guard"])
        self.most_rows = state["loop"]["most_rows"]
        self.micro_batch = min(self.micro_batch, self.most_rows or self.micro_batch)
        self.kept_out = sorted({*self.kept_out, *state["loop"]["kept_out"]})  # what the user has kept out since, too
        self.remedies = [Remedy(*remedy) for remedy in state["loop"]["remedies"]]
        self.rates.apply(self.remedies)
        self._load_place(state["loop"])

    def _load_saved(self, state: dict[str, Any]) -> None:
        load_saved_state(self.task, dict(self.strategy.own_model(state["model"])))
        load_optimizer_state(self.optimizer, self.strategy.own_optimizer(state["optimizer"]))

    @contextmanager
    def model_of(self, held: dict[str, Any], keep_on: torch.device | None) -> Generator[None]:
        """The model of an earlier `held_state`, for a look at what it makes of data; the present one waits on this
        device (None: on its own)."""
        present = copied(self.strategy.held_model(saved_state(self.task)), keep_on)
        load_saved_state(self.task, dict(self.strategy.from_held(held["model"])))
        try:
            yield
        finally:
            load_saved_state(self.task, dict(self.strategy.from_held(present)))

    def go_back(self, state: dict[str, Any], *, is_held: bool) -> None:
        """Roll back to an earlier state of this run. Quarantine, micro-batch size and remedies since then stay.

        `is_held`: the state is a `held_state`, not that of a checkpoint.
        """
        if is_held:
            load_saved_state(self.task, dict(self.strategy.from_held(state["model"])))
            load_optimizer_state(self.optimizer, state["optimizer"])
        else:
            self._load_saved(state)
        self.precision.load_state_dict(state["precision"])
        self.judge.go_back(state["guard"], judged=state["loop"]["step"])
        self._load_place(state["loop"])

    def _load_place(self, loop: dict[str, Any]) -> None:
        self.step, self.tokens, self.samples = loop["step"], loop["tokens"], loop["samples"]
        self.steps_since_row = loop["steps_since_row"]
        self.block = loop["block"]
        self.applied.copy_(loop["applied"])
        self.clipped.copy_(loop["clipped"])


# Random seeds as a function of the run's position, so that no generator state has to be saved.


def seed_everything(seed: int, *place: int) -> None:
    """Seed Python, NumPy and PyTorch (all devices) for one place in the run, such as a step."""
    mixed = np.random.SeedSequence([seed, *place]).generate_state(2, np.uint64)
    # As torch.manual_seed, which also formats a traceback for every device that is not in use: dear, once a step.
    torch.default_generator.manual_seed(int(mixed[0]) >> 1)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(int(mixed[0]) >> 1)
    random.seed(int(mixed[1]))
    np.random.seed(int(mixed[1]) & 0xFFFFFFFF)


def seed_step(state: TrainState) -> None:
    """For the step that comes next. Each rank its own, so that dropout is not the same in all; the first one's are
    those of one alone."""
    rank = state.strategy.ranks.rank
    seed_everything(state.seed, state.step, *([rank] if rank else []))
