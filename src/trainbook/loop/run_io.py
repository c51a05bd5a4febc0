"""What a training writes to and listens to, apart from its job."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbook.checkpoints import CheckpointStore
from trainbook.loop.faults.faults import Faults
from trainbook.loop.interrupts import Interrupts
from trainbook.loop.live_doctor import LiveDoctor
from trainbook.tracking import Trackers


class StoreEvents:
    """Events of the checkpoint store, which may come from its own thread; the loop's thread writes them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self._waiting.append((kind, facts))

    def write(self, trackers: Trackers) -> None:
        while self._waiting:
            kind, facts = self._waiting.popleft()
            step = facts.pop("step", None)
            trackers.log_event(kind, step, **facts)


class RunIO:
    """That of any rank but the first, of a rehearsal or a benchmark: nobody else reads its run folder, if it has one.
    The first rank of a run has more of it (`loop/session.py`)."""

    live_doctor: LiveDoctor | None = None
    quarantine_file: Path | None = None
    shortage_file: Path | None = None

    def __init__(
        self,
        trackers: Trackers,
        store: CheckpointStore,
        interrupts: Interrupts,
        store_events: StoreEvents | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.trackers, self.store, self.interrupts = trackers, store, interrupts
        self.store_events, self.faults = store_events or StoreEvents(), faults or Faults()

    def write_store_events(self) -> None:
        self.store_events.write(self.trackers)

    def begin_segment(self, step: int) -> None:
        """After a rollback to this step."""

    def record(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of the run's other files."""
        return {}
