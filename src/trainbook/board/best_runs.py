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
    """By id, where two runs or more can be compared: of how many it is the best, and of which recipe. Archived runs do
    not count, and a run whose newest loss is not finite is never the best."""
    groups: dict[tuple[str, ...], list[Summary]] = {}
    for row in rows:
        if not row["archived"] and _is_comparable(row):
            groups.setdefault(_compared_by(row), []).append(row)
    found = {}
    for group in groups.values():
        sound = [row for row in group if _is_sound(row)]
        if sound and len(group) > 1:
            best = min(sound, key=_rank)
            found[best["id"]] = {"amount": len(group), "recipe": _recipe_name(best["recipe"])}
    return found


def _is_comparable(row: Summary) -> bool:
    metric = row.get("metric")
    has_result = metric is not None and _is_finite(metric["value"])
    return has_result and row["kind"] == "run" and bool(row.get("recipe")) and bool(row.get("task"))


def _compared_by(row: Summary) -> tuple[str, ...]:
    data = (repr(row["settings"].get(path)) for path in EVALUATED_ON)
    return row["recipe"], row["task"], row["metric"]["name"], *data


def _is_sound(row: Summary) -> bool:
    return row.get("loss") is None or _is_finite(row["loss"])


def _rank(row: Summary) -> float:
    metric = row["metric"]
    return -metric["value"] if metric["greater_is_better"] else metric["value"]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _recipe_name(recipe: str) -> str:
    """Of a study's base.yaml the name of the study."""
    for ending in ("/base.yaml", "/base.yml", ".yaml", ".yml"):
        recipe = recipe.removesuffix(ending)
    return recipe.rpartition("/")[2]
