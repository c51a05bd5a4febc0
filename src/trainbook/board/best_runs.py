"""The best of the runs that can be compared: of all runs of the board, whatever a page shows of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Summary = dict[str, Any]

# What decides whether the metrics of two runs can be compared: the data that they are evaluated on, and in what units.
EVALUATED_ON = (
    "data.source",
    "data.validation",
    "data.validation_ratio",
    "data.tokenizer",
    "data.vocab_size",
    "data.max_seq_length",
    "evaluation.eval_max_samples",
    "evaluation.target_unit",
)


def best_runs(rows: Iterable[Summary]) -> dict[str, Summary]:
    """By id, where two runs or more can be compared: of how many it is the best. The name of the recipe decides
    nothing: a run of a copied configuration has another. Archived runs do not count, nor those that have not reached
    their end, nor those whose newest loss is not finite."""
    groups: dict[tuple[str, ...], list[Summary]] = {}
    for row in rows:
        if not row["archived"] and _is_comparable(row):
            groups.setdefault(_compared_by(row), []).append(row)
    found = {}
    for group in groups.values():
        if len(group) > 1:
            found[min(group, key=_rank)["id"]] = {"amount": len(group)}
    return found


def _is_comparable(row: Summary) -> bool:
    metric = row.get("metric")
    has_result = metric is not None and _is_finite(metric["value"])
    has_ended = row["status"] == "finished"
    return has_result and has_ended and _is_sound(row) and row["kind"] == "run" and bool(row.get("task"))


def _compared_by(row: Summary) -> tuple[str, ...]:
    data = (repr(row["settings"].get(path)) for path in EVALUATED_ON)
    return row["task"], row["metric"]["name"], _length(row), *data


def _length(row: Summary) -> str:
    """In planned updates: more training alone makes a run better. Where no plan is known, the steps that were made."""
    planned = row.get("max_steps")
    return f"{row['step']} made" if planned is None else f"{planned} planned"


def _is_sound(row: Summary) -> bool:
    return row.get("loss") is None or _is_finite(row["loss"])


def _rank(row: Summary) -> float:
    metric = row["metric"]
    return -metric["value"] if metric["greater_is_better"] else metric["value"]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
