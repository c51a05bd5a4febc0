"""The nearest right name, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

SHORT = 6  # letters of a name


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like this one, whatever its case; None when nothing is alike."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None


def nearest_run(name: str, known: Iterable[str]) -> str | None:
    """Names of runs are long, and half of one is enough; two letters of a short one are no likeness."""
    return nearest(name, known, cutoff=0.5 if len(name) > SHORT else 0.65)


def did_you_mean(
    name: str, known: Iterable[str], cutoff: float = 0.6, shown: Callable[[str], object] = "'{}'".format
) -> str:
    """A sentence to append to a message, with its leading space; empty when nothing is alike."""
    match = nearest(name, known, cutoff)
    return f" Did you mean {shown(match)}?" if match else ""
