"""A trial of two states: is the model worse than it was, or has the data changed?

A loss alone cannot tell. So the next batches are given to an earlier state and to the present one in turn, and none of
them updates anything. Where the earlier state is better on every batch than the present one on any, the model is to
blame; by chance that happens once in nine hundred times. As soon as one pair says otherwise, the trial is over, and the
run goes on where it was: after two or three batches, as a rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

BATCHES = 6  # of each state, at most
ENOUGH = 2  # of each, where they differ by far more from state to state than from batch to batch
FAR = 4.0  # times the spread within a state


@dataclass
class Trial:
    present: dict[str, Any]  # states of the guarded objects
    earlier: dict[str, Any]
    target: int  # the step of the earlier one
    losses: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})  # True: of the earlier state
    is_earlier: bool = True  # whose turn it is

    def add(self, loss: float) -> None:
        """Of the state whose turn it is; the next turn is the other's."""
        # What is not a number is the worst loss, whichever state has it.
        self.losses[self.is_earlier].append(loss if math.isfinite(loss) else math.inf)
        self.is_earlier = not self.is_earlier

    @property
    def is_worse(self) -> bool | None:
        """Whether the present state is; None: it is not known yet."""
        earlier, present = self.losses[True], self.losses[False]
        if earlier and present and max(earlier) >= min(present):
            return False
        if len(present) < ENOUGH or len(earlier) < ENOUGH:
            return None
        within = max(max(earlier) - min(earlier), max(present) - min(present))
        is_clear = min(present) - max(earlier) > FAR * within  # NaN is False: of two infinite losses nothing is known
        return True if is_clear or len(present) == BATCHES else None
