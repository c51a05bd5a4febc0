"""A trial of two states: is the model worse than it was, or has the data changed?

A loss alone cannot tell. So the next batches are given to an earlier state. If one of them costs it most of what the
loss has risen by, or more than any of its own cost the present state, the data has changed, and the run goes on where
it was: after one batch, as a rule. If the earlier state is better on all of its batches, the model is to blame; by
chance that happens once in two hundred times. The present state's batches are those that raised the suspicion, and,
where these were rejected, more of them in turn with the earlier state's.

The same holds for values that are not finite: if an earlier state has them, too, they come from the data. If it has
none, the bad batches may just be over, so both states are given all of their batches in turn.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainbook.guard.ladder import Suspicion

BATCHES = 4  # that the earlier state is given, at most
ENOUGH = 2  # of them, where losses differ by far more from state to state than from batch to batch
FAR = 4.0  # times the spread within a state
MOST = 0.5  # of what the loss has risen by


@dataclass
class StateTrial:
    present: dict[str, Any]  # states of the guarded objects
    earlier: dict[str, Any]
    target: int  # the step of the earlier one
    suspicion: Suspicion
    of_present: list[float] = field(default_factory=list)  # losses
    of_earlier: list[float] = field(default_factory=list)
    is_earlier: bool = True  # whose turn it is

    @property
    def is_worse(self) -> bool | None:
        """Whether the present state is; None: it is not known yet."""
        # What is not a number is the worst loss, whichever state has it.
        earlier, present = (
            [loss if math.isfinite(loss) else math.inf for loss in losses]
            for losses in (self.of_earlier, self.of_present)
        )
        trouble = self.suspicion.trouble
        most = trouble.usual + MOST * (trouble.now - trouble.usual)
        if earlier and (max(earlier) >= min(present) or max(earlier) >= most):
            return False
        if not trouble.is_of_the_model:
            return True if len(earlier) == BATCHES else None
        within = max(_spread(earlier), _spread(present))
        if not earlier or (within > 0 and len(earlier) < ENOUGH):
            return None
        is_clear = min(present) - max(earlier) > FAR * within  # NaN is False: of two infinite losses nothing is known
        return True if is_clear or len(earlier) == BATCHES else None

    def cost(self, loss: float, grad_norm: float) -> float:
        """What a batch counts for a state. Where values are not finite, that may be the gradient's alone."""
        return loss if self.suspicion.trouble.is_of_the_model or math.isfinite(grad_norm) else math.inf

    @property
    def outcome(self) -> str:
        """In words."""
        reason = self.suspicion.trouble.reason
        if not self.suspicion.trouble.is_of_the_model:
            if self.is_worse:
                return f"{reason}; the state of step {self.target} is fine on the same data: the model is worse"
            return (
                f"{reason}; the state of step {self.target} is no better on this data: the data is bad, and is skipped "
                "until it is better"
            )
        costs = (
            f"the next batches cost {statistics.median(self.of_earlier):.4g} at the state of step {self.target} and "
            f"{statistics.median(self.of_present):.4g} at the present one"
        )
        found = "model is worse" if self.is_worse else "data has changed"
        return f"{reason}; {costs}: the {found}"


def _spread(losses: Sequence[float]) -> float:
    return max(losses) - min(losses) if losses else 0.0
