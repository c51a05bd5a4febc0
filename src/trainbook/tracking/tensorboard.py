"""Rows as TensorBoard event files, written without torch or TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from trainbook.tracking.tracker import scalars_of


class TensorBoardTracker:
    def __init__(self, folder: Path, *, start_step: int = 0) -> None:
        self._writer = EventFileWriter(str(folder))
        if start_step:
            # Tells TensorBoard to forget the points that an earlier segment wrote from this step on.
            self._add(start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars_of(row).items()]
        self._add(row["step"], row.get("time"), summary=Summary(value=values))

    def log_event(self, row: Mapping[str, Any]) -> None:
        tag = f"events/{row['kind']}"
        value = Summary.Value(
            tag=tag,
            metadata=create_summary_metadata(display_name=tag, description=""),
            tensor=make_tensor_proto(str(row.get("reason", ""))),
        )
        self._add(row["step"], row.get("time"), summary=Summary(value=[value]))

    def close(self, status: str) -> None:
        self._writer.close()

    def _add(self, step: int, time: float | None = None, **content: Any) -> None:
        self._writer.add_event(Event(step=step, wall_time=time or 0.0, **content))
        self._writer.flush()  # at logging steps only, so a live TensorBoard is never behind
