"""The numbers of a row that a chart can show, under names that TensorBoard and W&B group by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_COORDINATES = ("step", "segment", "time")


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
    """`train/loss`, `eval/perplexity`, `train/grad_norms/body.blocks.3`…: numbers only, NaN included, without what
    places a row."""
    values = {name: value for name, value in row.items() if name not in _COORDINATES}
    return dict(_numbers(values, f"{row['split']}/"))


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
