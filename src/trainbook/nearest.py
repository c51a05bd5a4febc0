"""The nearest right name, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like this one, whatever its case; None when nothing is alike."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None


def did_you_mean(
    name: str, known: Iterable[str], cutoff: float = 0.6, shown: Callable[[str], object] = "'{}'".format
) -> str:
    """A sentence to append to a message, with its leading space; empty when nothing is alike."""
    match = nearest(name, known, cutoff)
    return f" Did you mean {shown(match)}?" if match else ""
