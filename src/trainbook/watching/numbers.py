"""Numbers that a loop gives: a loss, a norm, the metrics of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainbook.errors import UserError
from trainbook.runs.foreign.metrics import place
from trainbook.runs.schema import METRICS

SAME_RESULT = 1e-4  # two evaluations that differ by less are the same


def evaluation_row(metrics: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """By our names, whatever usual name each has; and the names of those that are not recorded."""
    row: dict[str, float] = {}
    unknown = []
    for name, value in metrics.items():
        metric = METRICS.get(name) or METRICS.get(place(name)[1] or "")
        number = plain_number(value)
        if metric is not None and metric.per is None and "eval" in metric.splits and number is not None:
            row[metric.name] = number
        else:
            unknown.append(name)
    return row, unknown


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """In words: the metrics that two evaluations do not agree on."""
    pairs = {name: (plain_number(first.get(name)), plain_number(value)) for name, value in second.items()}
    return [
        f"{name} {one:.6g} and then {other:.6g}"
        for name, (one, other) in pairs.items()
        if one is not None and other is not None and abs(one - other) > SAME_RESULT * max(abs(one), abs(other))
    ]


def scalar(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise UserError(f"watch.step: must be one number, but got a tensor of shape {tuple(value.shape)}.")
        value = value.detach()
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).reshape(())  # pyright: ignore
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise UserError(f"watch.step: must be a number or a tensor, but got {value!r:.60}.")
    return torch.tensor(float(value))


def as_tensor(value: float | Tensor | None) -> Tensor | None:
    return value if value is None or isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


def plain_number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else None
    return float(value) if hasattr(value, "__float__") and not isinstance(value, (str, bytes)) else None
