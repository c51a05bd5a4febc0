"""A tracker in its own thread, so that it can neither stop nor slow down the run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from trainbook.tracking.tracker import Tracker, describe

Report = Callable[[str, str], None]


class Mirror:
    """Rows wait in a bounded queue; what does not fit is dropped and counted, since the run's files have it anyway.

    `build` is called in the thread too: making a tracker can need a network. The first failure is reported at once
    and only once; what was lost is reported at the end. `abandon` is called when the tracker did not close, to take
    back what it left to be done when the process ends.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], Tracker],
        report: Report,
        *,
        max_waiting_rows: int = 1000,
        close_seconds: float = 5.0,
        abandon: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._build = build
        self._report = report
        self._max_waiting_rows = max_waiting_rows
        self._close_seconds = close_seconds
        self._abandon = abandon

        self._changed = threading.Condition()
        self._waiting: deque[tuple[Literal["log_metrics", "log_event"], Mapping[str, Any]]] = deque()
        self._in_flight = 0
        self._lost_rows = 0
        self._failed = False  # the first failure has been reported
        self._started = True  # False once the tracker could not be built
        self._closing_status: str | None = None
        self._closed = False  # the tracker has closed without an error
        self._abandoned = False  # the thread did not end in time
        self._thread = threading.Thread(target=self._work, name=f"mirror-{name}", daemon=True)
        self._thread.start()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        self._put("log_metrics", row)

    def log_event(self, row: Mapping[str, Any]) -> None:
        self._put("log_event", row)

    def close(self, status: str) -> None:
        with self._changed:
            self._closing_status = status
            self._changed.notify()
        self._thread.join(self._close_seconds)
        with self._changed:
            self._abandoned = self._thread.is_alive()
            if self._abandoned:
                self._lost_rows += len(self._waiting) + self._in_flight
                self._waiting.clear()
            lost_rows = self._lost_rows
        if self._abandon is not None and not self._closed:
            self._abandon()
        outcome = [f"did not finish within {self._close_seconds:g} s and was abandoned"] if self._abandoned else []
        if lost_rows:
            outcome.append(f"{lost_rows} row(s) are missing there; the run's files have all rows")
        if outcome:
            self._report(self._name, "; ".join(outcome))

    def _put(self, method: Literal["log_metrics", "log_event"], row: Mapping[str, Any]) -> None:
        with self._changed:
            if self._closing_status is not None:
                return
            if len(self._waiting) < self._max_waiting_rows and self._started:
                self._waiting.append((method, dict(row)))
                self._changed.notify()
                return
            self._lost_rows += 1
        self._fail(f"does not keep up: {self._max_waiting_rows} rows are queued, further ones are dropped")

    def _work(self) -> None:
        try:
            tracker = self._build()
        except BaseException as error:  # some packages call sys.exit
            self._give_up(f"could not start: {describe(error)}")
            return
        while True:
            with self._changed:
                while not self._waiting and self._closing_status is None:
                    self._changed.wait()
                if not self._waiting:
                    break
                method, row = self._waiting.popleft()
                self._in_flight = 1
            try:
                getattr(tracker, method)(row)
                lost = 0
            except BaseException as error:
                lost = 1
                self._fail(f"failed: {describe(error)}")
            with self._changed:
                if self._abandoned:
                    return
                self._in_flight = 0
                self._lost_rows += lost
        try:
            tracker.close(self._closing_status or "failed")
            self._closed = True
        except BaseException as error:
            self._fail(f"failed while closing: {describe(error)}")

    def _give_up(self, reason: str) -> None:
        self._fail(reason)
        with self._changed:
            self._started = False
            self._lost_rows += len(self._waiting)
            self._waiting.clear()

    def _fail(self, reason: str) -> None:
        with self._changed:
            if self._failed or self._abandoned:
                return
            self._failed = True
        self._report(self._name, reason)
