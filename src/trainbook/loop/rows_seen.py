"""What batches are made of, as they pass: rows that were met before, and rows in the order of the source.

A few hashes a step, made where the batch was; nothing of the device is asked.
"""

from __future__ import annotations

import numpy as np

from trainbook.tasks import StepBatch

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
    """Counts since the last metrics row; memory is of this process, and so of what came since it was started."""

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

    def _start(self) -> None:
        self._num_rows = self._num_batches = self._repeated = self._repeated_batches = 0
