"""Updates that a run of ours makes up for: those that were skipped on the way to where it is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def made_up_for(row: Mapping[str, Any], origin: str = "trainbook") -> int:
    """By a row of training. `skipped_updates` also counts those that a rollback took back, which are no steps of the
    run any more. The loop of a watched program repeats none: what it is asked for are attempts."""
    skipped = _count(row.get("skipped_updates"))
    if origin == "watch" or skipped is None:
        return 0
    applied, step = _count(row.get("applied_updates")), _count(row.get("step"))
    return skipped if applied is None or step is None else min(skipped, max(0, step - applied))


def _count(value: Any) -> int | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < 1e18 else None
