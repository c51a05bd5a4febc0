"""The progress of a run: best metric, patience, fingerprint of its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainbook.data.split import SPLIT_VERSION


@dataclass
class RunProgress:
    """Saved with each checkpoint."""

    best_value: float | None = None
    best_step: int | None = None
    patience_value: float | None = None  # the value that patience is measured from
    evaluations_without_gain: int = 0
    data_fingerprint: str = ""
    split_version: int = SPLIT_VERSION  # how documents were held out for validation
    metric: str = "loss"  # what best_value and patience_value are values of
    evaluated_step: int | None = None


def load_progress(progress: RunProgress, saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        setattr(progress, name, value)
