"""Bad trials are stopped early: asynchronous successive halving (ASHA, arXiv 1810.05934), or several as in Hyperband.

A trial pauses at each rung, a share of its whole length, with the schedule of the whole. It goes on if it is in the
best third of those that have come so far; the first ones there have nobody to be compared with, and go on.

What is good early is not always best at the end, where the schedule has brought the rate down. That is why pruning has
to be asked for; and why importance is not read from a pruned study.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

KEPT = 3  # one in so many goes on
RUNGS = (1 / 9, 1 / 3)  # shares of the whole run
PRUNINGS = ("none", "asha", "hyperband")


def bracket_of(pruning: str, position: int) -> int:
    """The bracket of a trial by its position among the searched ones of its arm: 0 has all rungs, the last one none.

    Hyperband hedges: of 17 trials 9 are in the first bracket, 5 in the second and 3 in the last, evenly mixed.
    """
    if pruning == "none":
        return len(RUNGS)
    return _ORDER[position % len(_ORDER)] if pruning == "hyperband" else 0


def rungs_of(pruning: str, position: int) -> tuple[float, ...]:
    """Where a trial pauses before its end."""
    return RUNGS[bracket_of(pruning, position) :]


def expected_share(pruning: str) -> float:
    """What a trial takes of a whole run, where one in so many goes on at each rung."""
    brackets = [bracket_of(pruning, position) for position in range(len(_ORDER))]
    return sum(map(_share_of_bracket, brackets)) / len(brackets)


def _share_of_bracket(bracket: int) -> float:
    ends = (0.0, *RUNGS[bracket:], 1.0)
    return sum((end - begin) / KEPT**rung for rung, (begin, end) in enumerate(itertools.pairwise(ends)))


def _hyperband_order() -> tuple[int, ...]:
    most = len(RUNGS)
    counts = [math.ceil((most + 1) / (most - skipped + 1) * KEPT ** (most - skipped)) for skipped in range(most + 1)]
    order = sorted((place / count, bracket) for bracket, count in enumerate(counts) for place in range(count))
    return tuple(bracket for _, bracket in order)


_ORDER = _hyperband_order()


def goes_on(value: float, others: Sequence[float]) -> bool:
    """Whether a trial is among the best third at its rung. Lower is better; what is not a number never goes on."""
    if not math.isfinite(value):
        return False
    seen = sorted([value, *(other for other in others if math.isfinite(other))])
    return len(others) + 1 < KEPT or seen.index(value) < max(1, (len(others) + 1) // KEPT)
