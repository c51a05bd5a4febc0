"""What a run remembers of its way: best metric, patience, the data's fingerprint, rows already seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data.prepare.split import SPLIT_VERSION
from trainbook.tasks import StepBatch


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


# Counts repeated rows, repeated batches and rows in source order, as batches pass. A few hashes a step, made where
# the batch was; nothing of the device is asked.


MOST_REMEMBERED = 100_000  # rows of each of two generations: the older one is forgotten when the newer one is full


def of_batch(batch: StepBatch, *, is_packed: bool) -> dict[str, float]:
    """Of one batch by itself: `target_share` and `ordered_rows`. Documents of a packed row always stand in order."""
    found: dict[str, float] = {}
    if batch.num_tokens:
        found["target_share"] = batch.num_targets / batch.num_tokens
    if len(batch.ids) > 1 and not is_packed:
        found["ordered_rows"] = float((np.diff(batch.ids) > 0).mean())
    return found


class RowsSeen:
    """Counts since the last metrics row. What it remembers is part of a checkpoint: a resumed run counts the same."""

    def __init__(self) -> None:
        self._older: set[int] = set()
        self._newer: set[int] = set()
        self._start()

    def note(self, batch: StepBatch) -> None:
        hashes = batch.hashes.tolist()
        if not hashes:
            return
        if len(self._newer) >= MOST_REMEMBERED:
            self._older, self._newer = self._newer, set()
        self._num_rows += len(hashes)
        self._num_batches += 1
        self._repeated += sum(map(self._was_met, hashes))
        if len(hashes) > 1:  # a single row that comes again says nothing of batches
            whole = (sum(hashes) + len(hashes)) & (2**64 - 1)  # in whatever order
            self._repeated_batches += self._was_met(whole)
            self._newer.add(whole)
        self._newer.update(hashes)

    def _was_met(self, row: int) -> bool:
        return row in self._newer or row in self._older

    def read(self) -> dict[str, float]:
        """What goes into the metrics row, `repeated_rows` and `repeated_batches`; counting begins anew."""
        found: dict[str, float] = {}
        if self._num_rows:
            found["repeated_rows"] = self._repeated / self._num_rows
            found["repeated_batches"] = self._repeated_batches / self._num_batches
        self._start()
        return found

    def state_dict(self) -> dict[str, Any]:
        counts = [self._num_rows, self._num_batches, self._repeated, self._repeated_batches]
        return {"older": _table(self._older), "newer": _table(self._newer), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._older, self._newer = (
            {int(row) for row in state[name].numpy().view(np.uint64)} for name in ("older", "newer")
        )
        self._num_rows, self._num_batches, self._repeated, self._repeated_batches = state["counts"]

    def _start(self) -> None:
        self._num_rows = self._num_batches = self._repeated = self._repeated_batches = 0


def _table(rows: set[int]) -> Tensor:
    """Hashes have 64 bits without a sign, which tensors on disk have not: the same bits, with one."""
    return torch.from_numpy(np.sort(np.fromiter(rows, dtype=np.uint64, count=len(rows))).view(np.int64).copy())
