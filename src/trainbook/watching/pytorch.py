"""`trainbook.watch` for a loop in plain PyTorch.

    with trainbook.watch(model, optimizer, name="mine") as watch:
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss, batch=batch)

It reads and never changes anything: the weights are bit for bit those of the same loop without it. Numbers stay on the
device until a row is due, and are read there without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from trainbook.runs.foreign.vocabulary import knobs_in
from trainbook.watching.watcher import Watch

# What PyTorch calls the knobs.
NAMES = {
    "optimizer.learning_rate": "lr",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.epsilon": "eps",
    "optimizer.momentum": "momentum",
}


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    logging_steps: int = 10,
    total_steps: int | None = None,
    start_step: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Watch:
    """Record a training loop as a run folder that `trainbook doctor`, `compare` and `report` read. Call `watch.step`
    once for each update, `watch.evaluation` after each evaluation, and `watch.close` at the end, or use it in `with`.

    Each of the first ten steps and then every `logging_steps` has a row. `total_steps` is the planned length. The
    optimizer tells its own settings; `settings` may name others (`max_grad_norm`, `batch_size`, …), by any name that
    Trainbook knows. A loop that continues from a checkpoint gives the step of that as `start_step`, and the same name.
    """
    return Watch(
        model,
        optimizer,
        name=name,
        runs_dir=runs_dir,
        logging_steps=logging_steps,
        start_step=start_step,
        settings=knobs_in(dict(settings or {}))[0],
        facts={"tool": "PyTorch", "names": NAMES, **({"total_updates": total_steps} if total_steps else {})},
    )
