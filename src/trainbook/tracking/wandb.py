"""Rows as a Weights & Biases run, which a resumed Trainbook run continues."""

from __future__ import annotations

import atexit
import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from trainbook.bounded.files import read_text
from trainbook.runs import RunFolder, write_text_atomically
from trainbook.tracking.tracker import scalars_of

PROJECT = "trainbook"
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}


class WandbTracker:
    """Made inside a mirror's thread: reaching the server can take long, or fail.

    Without an account the rows go to the run folder, from where `wandb sync` can send them later.
    """

    def __init__(self, run: RunFolder, config: Mapping[str, Any], report: Callable[[str], None]) -> None:
        # W&B's reports on itself would hold up the end of a run by ten seconds more when no server answers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Silent also means that W&B never asks for a key on the terminal.
        settings = wandb.Settings(silent=True, console="off", save_code=False, disable_git=True)
        session = wandb.setup(settings)
        mode = None  # as WANDB_MODE or the user's W&B settings say
        if session.settings.mode in ("online", "run", "shared") and not wandb.login(prompt=False):
            mode = "offline"
            report(f"no API key is set: logging offline to {run.path / 'wandb'}. Upload later with: wandb sync")
        self._run = wandb.init(
            project=PROJECT,
            name=run.name,
            id=_stored_id(run),
            resume="allow",
            dir=str(run.path),
            config=dict(config),
            mode=mode,
            settings=settings,
        )
        # Its own step may never go back, but a resumed run's does: charts take ours as their axis instead.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._event_counts: Counter[str] = Counter()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        self._run.log({"step": row["step"], **scalars_of(row)})

    def log_event(self, row: Mapping[str, Any]) -> None:
        self._event_counts[row["kind"]] += 1
        self._run.log({"step": row["step"], f"events/{row['kind']}": self._event_counts[row["kind"]]})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=_EXIT_CODES.get(status, 1))


def abandon() -> None:
    """Take back W&B's exit hooks: they talk to its own process, and print a traceback when that is gone."""
    atexit.unregister(_AnyHookOfWandb())  # pyright: ignore[reportArgumentType]


class _AnyHookOfWandb:
    """`atexit.unregister` compares by equality, and this equals every function that W&B defined."""

    def __eq__(self, hook: object) -> bool:
        return str(getattr(hook, "__module__", "")).split(".")[0] == "wandb"

    __hash__ = None  # type: ignore[assignment]


def _stored_id(run: RunFolder) -> str:
    file = run.path / "wandb-id"
    if not file.exists():
        write_text_atomically(file, uuid.uuid4().hex[:8] + "\n")
    return read_text(file).strip()
