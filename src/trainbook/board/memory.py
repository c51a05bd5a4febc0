"""Memory that was freed goes back to the system: glibc keeps it otherwise, and a board stands open for days."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any


@cache
def _trim() -> Callable[[int], int] | None:
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None  # of another library than glibc


def give_back() -> None:
    trim = _trim()
    if trim is not None:
        trim(0)


def giving_back(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    finally:
        give_back()
