"""What our own studies found of a knob's values: generated from their results by studies/publish.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from trainbook.bounded import files, json_text
from trainbook.knobs.dumping import yaml_value


def measured(path: str) -> list[dict[str, Any]]:
    """Of a knob, one entry for each arm of a study that changed it."""
    return _of_all().get(path, [])


def largest_effect(path: str) -> float | None:
    """Of the values of a knob that were changed alone: what the one that matters most does to the loss, as a share of
    it. 0: none is known to matter. None: nothing was measured."""
    alone = [facts for facts in measured(path) if not facts["with"] and facts["scale"] == "share"]
    confirmed = [abs(facts["mean"]) for facts in alone if facts["verdict"] in ("better", "worse")]
    return max(confirmed, default=0.0) if alone else None


@cache
def _of_all() -> dict[str, list[dict[str, Any]]]:
    return json_text.loads(files.read_text(Path(__file__).parent / "measured.json"))


def measured_text(facts: dict[str, Any]) -> str:
    """What a study found of a value, beside the value of its base."""
    factor, unit, digits = (100.0, " %", 2) if facts["scale"] == "share" else (1.0, "", 4)
    mean, low, high = (factor * facts[name] for name in ("mean", "low", "high"))
    others = ", ".join(f"{path}={yaml_value(value)}" for path, value in facts["with"].items())
    also = f" (with {others})" if others else ""
    signs = {(low > 0) - (high < 0) for _, low, high in facts["by_data"].values()}
    apart = ", ".join(f"{data} {factor * of:+.{digits}f}{unit}" for data, (of, _, _) in facts["by_data"].items())
    differs = f"; it depends on the data: {apart}" if {1, -1} <= signs else ""
    # A difference that the interval alone would show, and that the study's other tests do not confirm.
    is_unconfirmed = facts["verdict"] == "no evidence" and not low <= 0 <= high
    verdict = "not confirmed" if is_unconfirmed else facts["verdict"]
    interval = f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}{unit}"
    return (
        f"{facts['metric']} {mean:+.{digits}f}{unit} ({interval}){also} "
        f"against the base's value in {facts['base']}: {verdict}; {facts['pairs']} pairs of runs, each at its best "
        f"learning rate{differs}; {facts['command']}"
    )
