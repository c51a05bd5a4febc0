"""The tracker interface, and `Trackers`, which the loop logs to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from trainbook.runs import RunFolder, schema
from trainbook.runs.jsonl import Extent, JsonlWriter
from trainbook.runs.schema import Split

# Which steps are logged.


def is_due(step: int, logging_steps: int, dense_steps: int, final_step: int | None = None) -> bool:
    """Every step of the first `dense_steps`, then every `logging_steps`; the first and the final one always."""
    return step == 1 or step <= dense_steps or step % logging_steps == 0 or step == final_step


# The numbers of a row that a chart can show, under names that TensorBoard and W&B group by.


_COORDINATES = ("step", "segment", "time")


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
    """`train/loss`, `eval/perplexity`, `train/grad_norms/body.blocks.3`…: numbers only, NaN included, without what
    places a row."""
    values = {name: value for name, value in row.items() if name not in _COORDINATES}
    return dict(_numbers(values, f"{row['split']}/"))


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


# The run's own files. They are the source of truth: if a row cannot be written, the run ends with a RunError.


class FileTracker:
    def __init__(self, run: RunFolder) -> None:
        self._metrics = JsonlWriter(run.metrics_file)
        self._events = JsonlWriter(run.events_file)

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        schema.check_metrics(row)
        self._metrics.append(row)

    def log_event(self, row: Mapping[str, Any]) -> None:
        schema.check_event(row)
        self._events.append(row)

    def fsync(self) -> None:
        self._metrics.fsync()
        self._events.fsync()

    def extents(self) -> dict[str, Extent]:
        """By file: what was written to it so far."""
        return {writer.path.name: writer.extent for writer in (self._metrics, self._events)}

    def close(self, status: str) -> None:
        self._metrics.close()
        self._events.close()


class NoFiles(FileTracker):
    """Of a process that is not the one to write."""

    def __init__(self) -> None:
        pass

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        pass

    def log_event(self, row: Mapping[str, Any]) -> None:
        pass

    def fsync(self) -> None:
        pass

    def extents(self) -> dict[str, Extent]:
        return {}

    def close(self, status: str) -> None:
        pass


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
