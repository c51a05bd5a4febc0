"""Run folders without a training, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainbook.knobs.config import Config
from trainbook.runs import RunFolder, jsonl

STARTED = "2026-07-21T08:00:00+00:00"


def configuration(**settings: Any) -> dict[str, Any]:
    """As a manifest has it; `optimizer__learning_rate=1e-2` sets a knob."""
    tree = Config().model_dump(mode="json")
    for name, value in settings.items():
        section, knob = name.split("__")
        tree[section][knob] = value
    return tree


def make_run(
    path: Path,
    *,
    losses: Sequence[float] = (3.0, 2.0, 1.0),
    evaluations: Mapping[int, Mapping[str, Any]] | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> RunFolder:
    """A row of training for each loss, steps from 1 on; evaluations by step."""
    path.mkdir(parents=True, exist_ok=True)
    facts = {
        "schema_version": 1,
        "name": path.name,
        "recipe": "gpt-tiny",
        "seed": 1,
        "status": "finished",
        "created": STARTED,
        "updated": STARTED,
        "config": configuration(**(settings or {})),
    }
    (path / "manifest.json").write_text(json.dumps({**facts, **manifest}))
    folder = RunFolder(path)
    rows: list[dict[str, Any]] = []
    for step, loss in enumerate(losses, start=1):
        rows.append({"step": step, "segment": 0, "split": "train", "loss": loss, "learning_rate": 1e-3, "tokens": 8})
        if evaluations and step in evaluations:
            rows.append({"step": step, "segment": 0, "split": "eval", **evaluations[step]})
    write_lines(folder.metrics_file, rows)
    write_lines(folder.events_file, events)
    return folder


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]], mode: str = "w") -> None:
    with open(path, mode, encoding="utf-8") as file:
        file.writelines(jsonl.dumps(row) + "\n" for row in rows)
