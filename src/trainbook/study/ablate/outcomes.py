"""What a run of an ablation came to, from its folder alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from trainbook.doctor.rules.stability import find_spikes
from trainbook.doctor.view import View
from trainbook.errors import TrainbookError
from trainbook.runs import RunFolder
from trainbook.runs.run_record import read_run


class Point(NamedTuple):
    """An evaluation."""

    step: int
    tokens: float
    seconds: float  # of training
    value: float


@dataclass(frozen=True)
class RunOutcome:
    points: tuple[Point, ...]
    first_loss: float  # of training, before anything was learned
    tokens_per_second: float | None
    peak_bytes: int | None
    spikes: int
    skipped: int  # updates
    guessing_loss: float | None = None  # of guessing by frequency, where that is known
    span: tuple[float, float] = (0.0, 0.0)  # from its first row to its last, in seconds of the clock

    def best(self, sign: int) -> float:
        return sign * min((sign * each.value for each in self.points), default=math.inf)

    def reaches(self, target: float, sign: int) -> Point | None:
        """The first evaluation at least as good as this, and between it and the one before on a straight line."""
        before: Point | None = None
        for each in self.points:
            if sign * each.value <= sign * target:
                if before is None or before.value == each.value:
                    return each
                share = (before.value - target) / (before.value - each.value)
                tokens = before.tokens + share * (each.tokens - before.tokens)
                return Point(each.step, tokens, before.seconds + share * (each.seconds - before.seconds), target)
            before = each
        return None


def read_outcome(path: Path, metric: str) -> RunOutcome | None:
    """None: the folder is gone, or holds nothing yet."""
    folder = RunFolder(path)
    try:
        rows, evaluations = folder.metrics("train"), folder.metrics("eval")
        events = folder.events()
    except (OSError, TrainbookError):
        return None
    if not rows:
        return None
    way = _way(rows)
    points = [
        Point(row["step"], *_at(way, row["step"]), float(row[metric]))
        for row in evaluations
        if _is_number(row.get(metric))
    ]
    speeds = [row["tokens_per_second"] for row in rows[1:] if _is_number(row.get("tokens_per_second"))]
    memory = [row["memory_bytes"] for row in rows if _is_number(row.get("memory_bytes"))]
    return RunOutcome(
        tuple(points),
        next((float(row["loss"]) for row in rows if _is_number(row.get("loss"))), math.nan),
        statistics.median(speeds) if speeds else None,
        int(max(memory)) if memory else None,
        _spikes(folder),
        sum(event["kind"] == "skip" for event in events),
        next((float(event["prior_loss"]) for event in events if _is_number(event.get("prior_loss"))), None),
        (rows[0]["time"], rows[-1]["time"]),
    )


def at_once(outcomes: Iterable[RunOutcome]) -> int:
    """How many runs, at most, were under way at the same time."""
    ends = sorted((time, change) for each in outcomes for time, change in zip(each.span, (1, -1), strict=True))
    return max(accumulate(change for _, change in ends), default=0)


def _spikes(folder: RunFolder) -> int:
    try:
        view = View(read_run(folder))
    except (OSError, TrainbookError):
        return 0
    return len(find_spikes(view)) if len(view.losses()[1]) > 8 else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _way(rows: Sequence[dict[str, Any]]) -> list[tuple[int, float, float]]:
    """Step, tokens and seconds of training at each row; time in which nothing was trained does not count."""
    found, seconds, before = [], 0.0, 0
    for row in rows:
        each = row.get("step_seconds")
        seconds += (row["step"] - before) * each if _is_number(each) else 0.0
        before = row["step"]
        found.append((row["step"], float(row.get("tokens") or 0), seconds))
    return found


def _at(way: Sequence[tuple[int, float, float]], step: int) -> tuple[float, float]:
    passed = [(tokens, seconds) for at, tokens, seconds in way if at <= step]
    return passed[-1] if passed else (0.0, 0.0)
