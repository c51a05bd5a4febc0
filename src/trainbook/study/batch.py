"""The largest micro-batch that fits, and the one from which on more rows at a time no longer make training faster.

Rows are doubled until memory is out. Memory grows along a straight line in rows, so the last two peaks say where the
limit lies; what they say is tried, and the bracket between what fits and what does not closes around it.

Doubling the rows doubles the throughput as long as the device is not busy, and adds nothing once it is. Throughput is
called flat from the smallest number of rows that reaches 90 % of the highest throughput measured. If the last doubling
still gained more than 10 %, it is not flat yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FLAT = 0.9  # of the highest throughput
PRECISION = 16  # the answer may be short of the largest by one row in so many
MOST_ROWS = 4096


@dataclass(frozen=True)
class BatchTrial:
    """What a few steps with so many rows at a time came to."""

    peak_bytes: int
    tokens_per_second: float


@dataclass
class BatchSearch:
    """What is known so far: a search that is cut short keeps it."""

    limit: int | None = None  # bytes; None: the device itself says when memory is out
    most: int = MOST_ROWS  # rows that are worth trying
    trials: dict[int, BatchTrial] = field(default_factory=dict)
    too_many: int | None = None  # the smallest number of rows that did not fit
    is_done: bool = False

    @property
    def largest(self) -> int | None:
        """Rows that fit; None while none was seen to."""
        return max(self.trials, default=None)

    @property
    def is_cap(self) -> bool:
        """More rows may fit than were tried."""
        return self.is_done and self.too_many is None

    @property
    def peaks(self) -> dict[int, int]:
        return {rows: trial.peak_bytes for rows, trial in sorted(self.trials.items())}

    @property
    def throughput(self) -> dict[int, float]:
        return {rows: trial.tokens_per_second for rows, trial in sorted(self.trials.items())}

    def run(self, attempt: Callable[[int], BatchTrial | None], start: int = 1) -> BatchSearch:
        """`attempt` gives None where memory was not enough."""
        rows: int | None = min(start, self.most)
        while rows is not None:
            self._try(rows, attempt)
            rows = self._next()
        self.is_done = True
        return self

    def _try(self, rows: int, attempt: Callable[[int], BatchTrial | None]) -> None:
        trial = None if self._would_not_fit(rows) else attempt(rows)
        if trial is None or (self.limit is not None and trial.peak_bytes > self.limit):
            self.too_many = rows if self.too_many is None else min(rows, self.too_many)
        else:
            self.trials[rows] = trial

    def _would_not_fit(self, rows: int) -> bool:
        """Where nothing but a stated limit says that memory is out, a step that goes beyond it must not be begun."""
        fitting = self._room_for()
        return fitting is not None and rows > fitting + 1

    def _next(self) -> int | None:
        largest = self.largest
        if largest is None:  # not even these: fewer, down to one
            assert self.too_many is not None
            return self.too_many // 2 or None
        if self.too_many is None:
            return None if largest >= self.most else min(2 * largest, self.most)
        if self.too_many - largest <= max(1, largest // PRECISION):
            return None
        return _between(largest, self.too_many, self._room_for())

    def _room_for(self) -> float | None:
        """Rows at which the line through the last two peaks meets the limit."""
        if self.limit is None or len(self.trials) < 2:
            return None
        (rows, peak), (more_rows, more) = sorted(self.peaks.items())[-2:]
        slope = (more - peak) / (more_rows - rows)
        return more_rows + (self.limit - more) / slope if slope > 0 else None


def _between(fits: int, does_not: int, guess: float | None) -> int:
    """The guess where it lies inside, or as little more as matters where it says that no more fit; else the middle."""
    if guess is None or guess >= does_not:
        return (fits + does_not) // 2
    return min(max(int(guess), fits + max(1, fits // PRECISION)), does_not - 1)


def flattens_at(throughput: Mapping[int, float]) -> int | None:
    """Rows from which on more of them gain next to nothing; None if it still grew when memory or patience ended."""
    if len(throughput) < 2:
        return None
    enough = FLAT * max(throughput.values())
    flat = min(rows for rows, speed in throughput.items() if speed >= enough)
    return None if flat == max(throughput) else flat
