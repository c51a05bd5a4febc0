"""The run's own files. They are the source of truth: if a row cannot be written, the run ends with a RunError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainbook.runs import RunFolder, schema
from trainbook.runs.jsonl import Extent, JsonlWriter


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
