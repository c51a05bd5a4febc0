"""The tracker interface, and `Trackers`, which the loop logs to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from trainbook.runs.jsonl import Extent
from trainbook.runs.schema import Split
from trainbook.tracking.files import FileTracker


class Tracker(Protocol):
    """Rows arrive complete (step, segment, time), in the order in which they were written to the run's files."""

    def log_metrics(self, row: Mapping[str, Any]) -> None: ...

    def log_event(self, row: Mapping[str, Any]) -> None: ...

    def close(self, status: str) -> None:
        """`status` is the run's: finished, interrupted or failed."""
        ...


@runtime_checkable
class ShowsActivity(Protocol):
    def show_activity(self, text: str) -> None: ...


class Trackers:
    """The files first: an error there stops the run. Then all other trackers, whose errors do not."""

    def __init__(
        self,
        files: FileTracker,
        *,
        segment: int,
        start_step: int = 0,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._others: dict[str, Tracker] = {}
        self.segment = segment
        self._step = start_step
        self._on_event = on_event
        self._clock = clock
        self._reports: deque[tuple[str, str]] = deque()  # appended to by the mirrors' threads
        self._closed = False

    def add(self, name: str, tracker: Tracker) -> None:
        self._others[name] = tracker

    def begin_segment(self, segment: int, step: int) -> None:
        """The run continues from an earlier step: later rows replace those written beyond it."""
        self.segment, self._step = segment, step

    def log_metrics(self, step: int, split: Split, values: Mapping[str, Any]) -> None:
        self._step = max(self._step, step)
        row = {"step": step, "segment": self.segment, "split": split, "time": self._clock(), **values}
        self._files.log_metrics(row)
        self._tell_others("log_metrics", row)
        self._write_reports()

    def log_event(self, kind: str, step: int | None = None, **fields: Any) -> None:
        """`step` is the latest known one unless told otherwise; `reason` is what the terminal shows."""
        self._step = max(self._step, step or 0)
        self._write_event(kind, self._step if step is None else step, fields)
        self._write_reports()

    def show_activity(self, text: str) -> None:
        """Show on the terminal what is running now. Nothing is logged."""
        for tracker in self._others.values():
            if isinstance(tracker, ShowsActivity):
                tracker.show_activity(text)

    def report(self, tracker: str, reason: str) -> None:
        """Called by mirrors, from their threads: the event is written by the loop's own next call."""
        self._reports.append((tracker, reason))

    def fsync(self) -> None:
        """Facts about a checkpoint have to be on disk before the checkpoint is called complete."""
        self._files.fsync()

    def extents(self) -> dict[str, Extent]:
        """What the run's files of rows hold so far, each by its name."""
        return self._files.extents()

    def close(self, status: str) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            # Last added, first closed: the terminal is still there to show what a mirror lost, the files to keep it.
            while self._others:
                name, tracker = self._others.popitem()
                try:
                    tracker.close(status)
                except Exception as error:
                    self.report(name, f"failed while closing: {describe(error)}")
                self._write_reports()
        finally:
            self._files.close(status)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        interrupted = error is not None and (not isinstance(error, Exception) or getattr(error, "exit_code", 0) == 130)
        self.close("finished" if error is None else "interrupted" if interrupted else "failed")

    def _write_event(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        row = {"step": step, "segment": self.segment, "time": self._clock(), "kind": kind, **fields}
        self._files.log_event(row)
        self._tell_others("log_event", row)
        if self._on_event is not None:
            self._on_event(row)

    def _tell_others(self, method: str, row: Mapping[str, Any]) -> None:
        for name, tracker in list(self._others.items()):
            try:
                getattr(tracker, method)(row)
            except (Exception, SystemExit) as error:  # a terminal or pipe that was closed: the run goes on without it
                del self._others[name]
                self.report(name, f"disabled after an error: {describe(error)}")

    def _write_reports(self) -> None:
        while self._reports:
            tracker, reason = self._reports.popleft()
            self._write_event("tracker", self._step, {"tracker": tracker, "reason": f"{tracker}: {reason}"})


def describe(error: BaseException) -> str:
    """One line: trackers' own messages can be pages long."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
