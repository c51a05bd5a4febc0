"""What a list of runs needs of a metrics file: the newest rows, the evaluations and the shape of the loss.

A file is read once, and then only as far as it has grown. No line is parsed but those that are shown, which is some
thirty times as fast as reading all rows: lists have thousands of runs.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainbook.bounded.files import open_bytes
from trainbook.runs import jsonl
from trainbook.runs.schema import bounded, bounded_row

MOST_EVALUATIONS = 20_000  # beyond, the oldest that is not marked as best is let go
NEWEST = 5  # training rows
MOST_BUCKETS = 512  # of the loss: then neighbours are joined
MANY_LOSSES = 4_000  # read at once, each of which would take too long to place
_CHUNK_BYTES = 8 << 20
_MARK_BYTES = 64  # before the place up to which a file was read: they tell whether it was rewritten

_EVALUATION = re.compile(rb'"split": ?"eval"')
_LOSS = re.compile(rb'"loss": ?"?([^",}\s]+)')
_STEP = re.compile(rb'"step": ?(\d{1,15})')

Row = dict[str, Any]


class MetricsDigest:
    """Of one file; `update` reads what is new."""

    def __init__(self, path: Path, *, with_losses: bool = False) -> None:
        self.path = path
        self._with_losses = with_losses
        self._begin()

    def _begin(self) -> None:
        self._end, self._mark, self._inode = 0, b"", 0
        self.newest: deque[Row] = deque(maxlen=NEWEST)  # training rows, the last one is the newest
        self.evaluations: list[Row] = []
        self.losses = LossBuckets()

    def update(self) -> bool:
        """Whether there was something new. A file that is missing or cannot be read has nothing."""
        try:
            with open_bytes(self.path) as file:
                return self._read(file)
        except OSError:
            had_rows = self._end > 0
            self._begin()
            return had_rows

    def _read(self, file: Any) -> bool:
        facts = os.fstat(file.fileno())
        if not self._is_continued(file, facts):
            self._begin()
        self._inode = facts.st_ino
        before = self._end
        file.seek(self._end)
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            content = rest + chunk
            whole = content.rfind(b"\n") + 1
            self._take(content[:whole])
            rest = content[whole:]
            self._end += whole
            if whole:
                self._mark = content[max(0, whole - _MARK_BYTES) : whole]
            if len(rest) > _CHUNK_BYTES:  # no row is that long
                break
        return self._end != before

    def _is_continued(self, file: Any, facts: Any) -> bool:
        if facts.st_size < self._end or (self._inode and facts.st_ino != self._inode):
            return False
        file.seek(self._end - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _take(self, content: bytes) -> None:
        """Whole lines."""
        places, looked_at = [], -1
        for found in _EVALUATION.finditer(content):
            if found.start() < looked_at:
                continue
            start, looked_at = content.rfind(b"\n", 0, found.start()) + 1, content.find(b"\n", found.end())
            row = _row(content[start:looked_at])
            if row is not None and row["split"] == "eval":
                places.append((start, looked_at))
                self.evaluations.append(row)
        self._let_go()
        self.newest.extend(reversed(list(_newest(content))))
        if self._with_losses:
            for part in _between(content, places):
                losses = _LOSS.findall(part)
                self.losses.add([_number(text) for text in losses], _steps_in(part, len(losses)))

    def _let_go(self) -> None:
        if (excess := len(self.evaluations) - MOST_EVALUATIONS) > 0:
            old, new = self.evaluations[:-MOST_EVALUATIONS], self.evaluations[excess:]
            self.evaluations = [row for row in old if row.get("best") is True][-1:] + new


def up_to(rows: list[Row], events: list[Row]) -> list[Row]:
    """The rows that count: without those that a later segment has begun again. `events`: all that begin a segment."""
    began: dict[int, int] = {}
    for event in events:
        segment, step = event.get("segment", 0), event["step"]
        began[segment] = min(step, began.get(segment, step))
    if len(began) < 2:
        return rows
    ends, earliest = {}, math.inf
    for segment in sorted({*began, *(row.get("segment", 0) for row in rows)}, reverse=True):
        ends[segment] = earliest
        earliest = min(earliest, began.get(segment, math.inf))
    latest = {row["step"]: row for row in rows if row["step"] <= ends[row.get("segment", 0)]}
    return [latest[step] for step in sorted(latest)]


class LossBuckets:
    """The lowest and highest loss of stretches of rows, as they were written: nothing that was seen is left out."""

    def __init__(self) -> None:
        self._every, self._count = 1, 0  # rows in a bucket, and in the last one
        self._lows: list[float] = []
        self._highs: list[float] = []
        self._steps: list[int] = []  # of the first row of each bucket
        self._last_step = 0

    def add(self, values: Sequence[float], step_of: Callable[[int], int]) -> None:
        """`step_of` is asked for a few places among the values only."""
        start = 0
        while start < len(values):
            if self._count % self._every == 0:
                self._begin_bucket(step_of(start))
            end = start + self._every - self._count
            found = values[start:end]
            self._lows[-1] = min(self._lows[-1], *found)
            self._highs[-1] = max(self._highs[-1], *found)
            self._count += len(found)
            start = end
        self._last_step = step_of(len(values) - 1) if values else self._last_step

    def _begin_bucket(self, step: int) -> None:
        while self._steps and self._steps[-1] >= step:  # the run went back: what it did since was undone
            for kept in (self._lows, self._highs, self._steps):
                kept.pop()
        if len(self._lows) == MOST_BUCKETS:
            self._lows = list(map(min, self._lows[::2], self._lows[1::2]))
            self._highs = list(map(max, self._highs[::2], self._highs[1::2]))
            self._steps = self._steps[::2]
            self._every *= 2
        self._lows.append(math.inf)
        self._highs.append(-math.inf)
        self._steps.append(step)
        self._count = 0

    def values(self, most: int = 40) -> list[float]:
        """At most so many: each row if there are no more of them, else the lowest and highest of each stretch."""
        if self._every == 1 and len(self._lows) <= most:
            return list(self._lows)
        stretches = [slice(first, end) for first, end in pairwise(self._ends(most))]
        pairs = [(max(self._highs[stretch]), min(self._lows[stretch])) for stretch in stretches]
        return [value for pair in pairs for value in pair]

    def steps(self, most: int = 40) -> list[int]:
        """Of each value: of a stretch its first step, and the middle between it and the next."""
        if self._every == 1 and len(self._lows) <= most:
            return list(self._steps)
        steps = [*self._steps, self._last_step]
        stretches = pairwise(steps[end] for end in self._ends(most))
        return [step for first, following in stretches for step in (first, (first + following) // 2)]

    def _ends(self, most: int) -> list[int]:
        count = min(most // 2, len(self._lows))
        return [round(number * len(self._lows) / count) for number in range(count + 1)]


def _row(line: bytes) -> Row | None:
    row, _ = jsonl.row_of(line, _broken_law)
    return None if row is None else bounded_row(row)


def _broken_law(row: Mapping[str, Any]) -> str:
    for name in ("step", "segment"):
        if type(row.get(name, 0)) is not int or row.get(name, 0) < 0:
            return f"{name} must be a whole number"
    return "" if "step" in row and isinstance(row.get("split"), str) else "must have a step and a split"


def _newest(content: bytes) -> Iterator[Row]:
    """The last training rows of these lines, the newest first."""
    end, found, looked_at = len(content) - 1, 0, 0
    while end > 0 and found < NEWEST and looked_at < 100:
        start = content.rfind(b"\n", 0, end) + 1
        row = _row(content[start:end])
        if row is not None and row["split"] == "train":
            found += 1
            yield row
        end, looked_at = start - 1, looked_at + 1


def _between(content: bytes, places: list[tuple[int, int]]) -> Iterator[bytes]:
    """What is not in these places."""
    before = 0
    for start, end in places:
        yield content[before:start]
        before = end
    yield content[before:]


def _steps_in(content: bytes, count: int) -> Callable[[int], int]:
    """The step of each of these losses; of very many, the one where it lies if all lines are of one length."""
    if count > MANY_LOSSES:
        return lambda at: _step(content, int((at + 0.5) / count * len(content)))
    places = [found.start() for found in _LOSS.finditer(content)]
    return lambda at: _step(content, places[at])


def _step(content: bytes, place: int) -> int:
    """Of the line around a place; 0 where it has none."""
    found = _STEP.search(content, content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place))
    return int(found[1]) if found else 0


def _number(text: bytes) -> float:
    """What is not finite, or no number, counts as infinite."""
    try:
        value = bounded(float(text))  # also NaN and Infinity, which stand in quotes
    except ValueError:
        return math.inf
    return value if math.isfinite(value) else math.inf
