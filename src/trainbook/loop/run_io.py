"""What a training writes to and listens to, apart from its job: trackers, checkpoints, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from trainbook.checkpoints import CheckpointStore
from trainbook.loop.evaluation_record import EvaluationRecord
from trainbook.loop.faults.faults import Faults
from trainbook.loop.live_doctor import LiveDoctor
from trainbook.runs.disk import who_stops
from trainbook.terminal import folded
from trainbook.tracking import Trackers

# Ctrl-C, SIGTERM and SIGHUP: the first one finishes the step and saves, the second one stops at once.


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: a terminal that was closed
ECHO_SECONDS = 1.0


class Interrupts:
    def __init__(self, lock_file: Path | None = None) -> None:
        self._lock_file = lock_file
        self.requested: str | None = None
        self.can_save = False  # until the first step there is nothing to save: a signal then simply ends the program
        self._asked_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # as under nohup: the user wants it to run on without a terminal
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = self._name_of(number)
        if not self.can_save:
            raise KeyboardInterrupt(name)
        if self._is_echo(name):
            return
        if self.requested is not None:
            _say("stopped at once; the last complete checkpoint is kept")
            os._exit(130)
        self.requested, self._asked_at = name, time.monotonic()
        _say(f"{name}: finishing this step and saving; interrupt again to stop at once")

    def _name_of(self, number: int) -> str:
        """Ctrl-C, unless somebody else has sent the same signal and said so in the lock."""
        if number != signal.SIGINT:
            return signal.Signals(number).name
        who = who_stops(self._lock_file) if self._lock_file is not None else None
        return "Ctrl-C" if who is None else f"stopped from {who}"

    def _is_echo(self, name: str) -> bool:
        """Slurm and systemd signal every process of a job, and then our launcher passes on what it was sent itself."""
        is_launched = "TRAINBOOK_NOTE" in os.environ
        return is_launched and self.requested == name and time.monotonic() - self._asked_at < ECHO_SECONDS


def _say(line: str) -> None:
    # Straight to the descriptor: Python's own stream may be in use by what the signal broke into, or have none.
    with contextlib.suppress(OSError):
        # On a terminal in place of the status line, which is drawn again below; and the cursor comes back.
        begin, end = ("\r\x1b[2K", "\n\x1b[?25h") if os.isatty(2) else ("\n", "\n")
        os.write(2, f"{begin}{folded(line, stream=sys.stderr)}{end}".encode())


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
    """What a run writes to and what stops it. This base class serves ranks other than the first, rehearsals and
    benchmarks, whose run folder, if any, nobody reads; the first rank's is in `loop/session.py`."""

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

    def write_evaluation(self, step: int, record: EvaluationRecord | None, labels: tuple[str, ...]) -> None:
        """What an evaluation leaves beside its metrics."""

    def begin_segment(self, step: int) -> None:
        """After a rollback to this step."""

    def record(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of the run's other files."""
        return {}
