"""The progress of a run: best metric, patience, fingerprint of its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainbook.data.split import SPLIT_VERSION


@dataclass
class RunProgress:
    """Saved with each checkpoint."""

    best_value: float | None = None
    best_step: int | None = None
    best_loss: float | None = None  # of that evaluation: of equal values the one with the lower loss is the best
    patience_value: float | None = None  # the value that patience is measured from
    evaluations_without_gain: int = 0
    data_fingerprint: str = ""
    split_version: int = SPLIT_VERSION  # how documents were held out for validation
    metric: str = "loss"  # what best_value and patience_value are values of
    evaluated_step: int | None = None

    def would_be_best(self, value: float, loss: float | None, *, higher_is_better: bool) -> bool:
        """What is not a number is never the best: nothing would ever be better than it."""
        if self.best_value is None or math.isnan(value):
            return not math.isnan(value)
        if value == self.best_value:  # a checkpoint of an earlier version does not know the loss: the first one stays
            return loss is not None and self.best_loss is not None and loss < self.best_loss
        return value > self.best_value if higher_is_better else value < self.best_value


def load_progress(progress: RunProgress, saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        setattr(progress, name, value)
