"""Programs that train through Trainbook itself: `fit` and recipes. Their guard is the run's own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from guard.door import Door

# What a run of seconds leaves out: checkpoints, pictures, rows of a dashboard.
SMALL = (
    *("training.device=cpu", "checkpoint.save_total_limit=1", "checkpoint.save_steps=100"),
    "logging.logging_steps=1",
)
TINY_MODEL = (
    *("model.num_hidden_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "data.max_seq_length=32"),
)


def through_trainbook(door: Door, train: Callable[[str, str], Any], name: str = "loss") -> float:
    """Train in a folder of its own; `train` is called with the folder for runs and the knob for the guard. What the
    run's records say is told to the door. Gives the last evaluation loss."""
    from trainbook import api
    from trainbook.errors import Diverged

    with tempfile.TemporaryDirectory() as folder:
        verdict = None
        try:
            train(folder, f"guard.enabled={str(door.guards).lower()}")
        except Diverged as stop:
            verdict = stop
        opened = api.open_run(Path(folder) / "run")
        # Rows are read from the file when they are used, and the file is gone after this.
        rows, evaluations, events = [*opened.metrics("train")], [*opened.metrics("eval")], opened.events()
    door.updates = rows[-1]["step"] if rows else 0
    skips = [event for event in events if event["kind"] == "skip"]
    finite = [event for event in skips if math.isfinite(event.get("loss") or 0.0)]
    door.rejected, door.not_finite = len(finite), len(skips) - len(finite)
    if not door.guards:
        door.rejected = door.not_finite = 0
    door.rejected_at[name] = [event["step"] for event in skips]
    for event in events:
        if event["kind"] in ("skip", "quarantine", "rollback", "remedy", "release", "undo", "observe"):
            door.tell(name, event)
    if door.policy == "trace":
        door.traces[name] = [(row["loss"], row["grad_norm"]) for row in rows]
    if verdict is not None:
        door.tell(name, {"kind": "stop", "step": door.updates, "reason": str(verdict)})
        raise verdict
    return evaluations[-1]["loss"] if evaluations else math.nan


def recipe(seed: int, door: Door, *, name: str, overrides: Sequence[str]) -> float:
    """`trainbook train NAME …`, made small; quality is its last evaluation."""
    from trainbook import api

    knobs = (*TINY_MODEL, *SMALL, "evaluation.eval_max_samples=128", *overrides)

    def train(folder: str, guard: str) -> Any:
        return api.train(name, (*knobs, f"training.seed={seed}", guard), name="run", runs_dir=folder, quiet=True)

    return through_trainbook(door, train)


def fit(
    seed: int,
    door: Door,
    model: Any,
    data: Any,
    loss: Callable[[Any, Any], Any],
    quality: Callable[[], float],
    **knobs: Any,
) -> float:
    from trainbook import api

    def train(folder: str, guard: str) -> Any:
        settings = [each.split("=", 1) for each in (*SMALL, "evaluation.eval_strategy=no", guard)]
        given: dict[str, Any] = {key: _value(text) for key, text in settings} | {"training.seed": seed} | knobs
        return api.fit(model, data, loss=loss, name="run", runs_dir=folder, quiet=True, **given)

    through_trainbook(door, train)
    return quality()


def _value(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)
