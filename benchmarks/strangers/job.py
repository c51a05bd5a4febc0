"""What is to be trained, before any program has seen it: data, network, optimizer, schedule and habits of logging.

A family makes a healthy job; a fault changes it. The changes that are mistakes in code are functions in lists, which
each program calls at the place where a stranger would have made the mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from strangers.data.table import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    Surgery = Callable[[nn.Module], None]
    Criterion = Callable[[Tensor, Tensor], Tensor]
    Batches = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]

IGNORED = -100


@dataclass
class Job:
    program: str
    family: str
    task: str  # classify, regress, causal, masked, seq2seq
    seed: int
    train: Table
    valid: Table
    true_valid: Table = field(init=False)  # what the model is really meant for, whatever is done to `valid`
    num_classes: int = 0  # or of numbers to predict
    vocab: int = 0
    network: str = ""  # the name of what `build` makes: mlp, conv, recurrent, bag, encoder, factors, or a program's own
    shape: dict[str, Any] = field(default_factory=dict)  # arguments of the network
    # The update
    optimizer: str = "adamw"  # adamw, adam, sgd
    rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9  # of sgd; Adam's beta1
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = None
    batch_size: int = 32
    steps: int = 200
    accumulation: int = 1
    schedule: str = "constant"  # constant, linear, cosine, step, onecycle, polynomial
    warmup: int = 0
    power: float = 1.0  # of polynomial
    label_smoothing: float = 0.0
    shuffle: bool = True
    # Habits
    eval_every: int = 20
    log_every: int = 10
    style: str = ""  # of programs that can be written in several ways
    knobs: dict[str, Any] = field(default_factory=dict)  # further settings of Trainbook or of TrainingArguments
    # Mistakes in code
    surgery: list[Surgery] = field(default_factory=list)  # done to the network once it is built
    criteria: list[Callable[[Criterion], Criterion]] = field(default_factory=list)  # around the loss function
    batches: list[Batches] = field(default_factory=list)  # (step, x, y) of a training batch, to what is trained on
    rate_at: Callable[[int], float] | None = None  # a factor of the learning rate, instead of the schedule's
    optimized: Callable[[nn.Module], list] | None = None  # the parameters that the optimizer is given
    gradients: str = "zeroed"  # or: kept (never zeroed), lost (zeroed before the step)
    at_step: dict[int, Surgery] = field(default_factory=dict)  # done to the network before that step
    aligned: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None  # outputs and targets of a language model
    metric: Callable[[Tensor, Tensor], Tensor] | None = None  # which predictions are right, instead of the usual
    forgets: str = ""  # what a loop makes anew in each epoch: optimizer, weights
    evaluates_copy: bool = False  # of the network, as it was at the start
    undivided: bool = False  # micro-batches of a step are summed, not averaged

    def __post_init__(self) -> None:
        self.true_valid = self.valid.copy()

    @property
    def is_text(self) -> bool:
        return self.program in ("builtin", "own")

    @property
    def is_language(self) -> bool:
        return self.task in ("causal", "masked", "seq2seq")

    def everywhere(self, change: Callable[[Table], Table]) -> None:
        """In both splits, and in what the model is meant for."""
        self.train, self.valid, self.true_valid = (change(table) for table in (self.train, self.valid, self.true_valid))

    def factor(self, step: int) -> float:
        """Of the learning rate at a step, counted from 0."""
        return self.rate_at(step) if self.rate_at is not None else self.usual_factor(step)

    def usual_factor(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        if self.schedule in ("linear", "polynomial"):
            return max(0.0, 1 - done) ** self.power
        if self.schedule == "step":
            return 0.1 ** min(2, int(3 * done))
        if self.schedule == "onecycle":
            return 0.1 + 0.9 * done / 0.3 if done < 0.3 else max(0.01, 1 - (done - 0.3) / 0.7)
        return 1.0

    @property
    def steps_per_epoch(self) -> int:
        return max(1, len(self.train) // (self.batch_size * self.accumulation))

    @property
    def has_faulty_loss(self) -> bool:
        return bool(self.criteria or self.aligned)


@dataclass
class Chance:
    """Everything drawn for a run: `base` is shared with its twin, `fault` says how bad the mistake is."""

    base: Random
    fault: Random
    rng: np.random.Generator  # for the data of the job
    fault_rng: np.random.Generator

    @classmethod
    def of(cls, *names: object) -> Chance:
        base, fault = Random(f"base {names}"), Random(f"fault {names}")
        return cls(
            base, fault, np.random.default_rng(base.getrandbits(63)), np.random.default_rng(fault.getrandbits(63))
        )

    def share(self, low: float, high: float) -> float:
        return self.fault.uniform(low, high)

    def times(self, low: float, high: float) -> float:
        """Evenly on a logarithmic scale."""
        return math.exp(self.fault.uniform(math.log(low), math.log(high)))
