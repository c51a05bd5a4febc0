"""Trackers that fail on purpose, for fault injection."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any


class DeadTracker:
    """Raises an error at every row from a step on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        if row["step"] >= self._step:
            self._fail()

    def log_event(self, row: Mapping[str, Any]) -> None:
        self.log_metrics(row)

    def close(self, status: str) -> None:
        pass

    def _fail(self) -> None:
        raise ConnectionError("the tracker cannot be reached (injected)")


class SlowTracker(DeadTracker):
    """Hangs forever instead."""

    def _fail(self) -> None:
        threading.Event().wait()
