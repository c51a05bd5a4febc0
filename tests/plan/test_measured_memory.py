"""The formulas of memory against what a GPU measured: the committed figures of benchmarks/memory.py."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """What was measured, with what is predicted for it now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from memory_cases import CASES  # pyright: ignore[reportMissingImports]
        from memory_table import error_of, predicted  # pyright: ignore[reportMissingImports]
    cases = {case.name: case for case in CASES}
    rows = json.loads((BENCHMARKS / "results" / "memory-h200.json").read_text(encoding="utf-8"))["rows"]
    rows = [
        row | {"predicted": predicted(cases[row["name"]], row["total_memory"])} for row in rows if "failed" not in row
    ]
    return [row | {"error": error_of(row)} for row in rows]


def test_the_median_is_within_5_percent_and_the_worst_within_12(rows):
    errors = {row["name"]: abs(row["error"]) for row in rows}
    assert len(errors) >= 24
    assert statistics.median(errors.values()) <= 0.05
    assert {name: error for name, error in errors.items() if error > 0.12} == {}


def test_weights_and_optimizer_state_are_those_that_were_held_before_the_first_step(rows):
    """But for what the allocator rounds up, tables of the model that are no parameters, and the guard's own numbers."""
    for row in rows:
        parts = row["predicted"]["parts"]
        assert row["held_bytes"] == pytest.approx(parts["weights"] + parts["optimizer state"], rel=0.03), row["name"]


def test_what_was_measured_covers_what_a_user_may_choose(rows):
    cases = [row["case"] for row in rows]
    chosen = {name: {case[name] for case in cases} for name in cases[0] if name != "knobs"}
    assert {name.split("-")[0] for name in chosen["model"]} == {"gpt", "llama", "bert", "t5"}
    assert chosen["compute"] == {"fp32", "bf16", "fp16"} and chosen["weights"] == {"fp32", "bf16"}
    assert chosen["recompute"] == {"off", "selective", "full"}
    assert {"adamw", "adamw_8bit", "sgd"} <= chosen["optimizer"]
    assert len(chosen["length"]) > 3 and len(chosen["rows"]) > 3
    assert chosen["compiled"] == {True, False} and len(chosen["accumulation"]) > 1
    assert min(row["parameters"] for row in rows) < 22e6 and max(row["parameters"] for row in rows) > 1.5e9
