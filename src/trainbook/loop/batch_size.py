"""How many samples a batch of anybody's has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def rows_of(item: Any) -> int | None:
    """The first dimension that all tensors of a batch share; None where they share none."""
    sizes = set(first_dimensions(item))
    return sizes.pop() if len(sizes) == 1 else None


def first_dimensions(item: Any) -> Iterator[int]:
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        for part in item:
            yield from first_dimensions(part)
    elif len(shape := getattr(item, "shape", ())) > 0:  # a tensor or an array
        yield int(shape[0])
