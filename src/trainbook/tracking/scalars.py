"""What of a row a chart can show, under the names that TensorBoard and W&B group by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COORDINATES = ("step", "segment", "time")


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
    """`train/loss`, `eval/perplexity`…: numbers only, NaN included, without what places a row."""
    return {
        f"{row['split']}/{name}": value
        for name, value in row.items()
        if name not in _COORDINATES and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
