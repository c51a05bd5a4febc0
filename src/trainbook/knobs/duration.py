"""How long a run is, in the unit in which it was stated."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

from trainbook.knobs.config import Config

Unit = Literal["steps", "epochs", "tokens"]


@dataclass(frozen=True)
class Duration:
    value: int | float
    unit: Unit

    @classmethod
    def of(cls, config: Config) -> Duration | None:
        training = config.training
        if training.max_steps is not None:
            return cls(training.max_steps, "steps")
        if training.num_train_epochs is not None:
            return cls(training.num_train_epochs, "epochs")
        if training.max_tokens is not None:
            return cls(training.max_tokens, "tokens")
        return None

    def steps(self, samples_per_epoch: int, global_batch: int, tokens_per_sample: int | Fraction) -> int:
        """The number of updates that cover the duration: the last one may reach beyond it."""
        # The decimal that was written, not its nearest binary: 1.1 epochs of 100 samples are 110, not 110.00…01.
        value = Fraction(repr(self.value))
        if self.unit == "steps":
            return ceil(value)
        if self.unit == "epochs":
            return max(1, ceil(value * samples_per_epoch / global_batch))
        return max(1, ceil(value / (global_batch * tokens_per_sample)))

    def __str__(self) -> str:
        number = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,g}"
        return f"{number} {self.unit.removesuffix('s') if self.value == 1 else self.unit}"
