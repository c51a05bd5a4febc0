"""A run as W&B's package writes it without a server: a .wandb file, which `wandb sync` sends."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainbook.errors import RunError

if TYPE_CHECKING:
    from trainbook.report.metrics_out import RunMetrics

PROJECT = "trainbook"


def write_run(metrics: RunMetrics, folder: Path) -> None:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its reports on itself
    import wandb

    record = metrics.record
    # A whole path: what writes there is a process of its own, which may have been started from another folder.
    with TemporaryDirectory(dir=folder.resolve()) as aside:
        try:
            run = wandb.init(
                project=PROJECT,
                name=record.name,
                dir=aside,
                config=dict(record.settings),
                mode="offline",
                settings=_settings(wandb),
            )
            # Its own step may never go back; charts take ours as their axis.
            run.define_metric("step", hidden=True)
            run.define_metric("*", step_metric="step")
            for rows in metrics.blocks():
                for row in rows:
                    run.log(_as_logged(row))
            run.finish(exit_code=0 if record.facts.get("status") in (None, "finished") else 1)
        except (OSError, wandb.Error) as error:
            raise RunError(f"W&B's package could not write the run: {error}") from None
        logs = list(Path(aside).glob("wandb/offline-run-*/*.wandb"))
        if len(logs) != 1:
            raise RunError("W&B's package wrote no log of the run.")
        os.replace(logs[0], folder / logs[0].name)


def _as_logged(row: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in row.items() if "/" in name}
    when = {"_timestamp": float(row["time"])} if "time" in row else {}
    return {"step": row["step"], **named, **when}


def _settings(wandb: Any) -> Any:
    """Nothing of this machine: neither its packages, nor its host, nor its load."""
    return wandb.Settings(
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
