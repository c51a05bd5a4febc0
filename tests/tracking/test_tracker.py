from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import Interrupted, RunError
from trainbook.runs import RunFolder
from trainbook.tracking import FileTracker, Mirror, Trackers


class Recorder:
    def __init__(self, order: list[str] | None = None, files: Path | None = None) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.closed: list[str] = []
        self.order = [] if order is None else order
        self.files = files

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        if self.files is not None:
            self.order.append(self.files.read_text())
        self.rows.append(row)

    def log_event(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def close(self, status: str) -> None:
        self.closed.append(status)


class BrokenPipe(Recorder):
    def log_metrics(self, row: Mapping[str, Any]) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def close(self, status: str) -> None:
        raise AssertionError("a tracker that was switched off is not closed")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def trackers_of(run: RunFolder, **options: Any) -> Trackers:
    return Trackers(FileTracker(run), **{"segment": 2, "clock": lambda: 123.0, **options})


def test_rows_get_their_place_and_time(run: RunFolder):
    with trackers_of(run) as trackers:
        trackers.log_metrics(7, "train", {"loss": 1.5})
        trackers.log_event("skip", 8, reason="norm is NaN", evidence={"norm": 1.0})
    assert run.metrics() == [{"step": 7, "segment": 2, "split": "train", "time": 123.0, "loss": 1.5}]
    assert run.events() == [
        {"step": 8, "segment": 2, "time": 123.0, "kind": "skip", "reason": "norm is NaN", "evidence": {"norm": 1.0}}
    ]


def test_an_event_without_a_step_happened_at_the_latest_one(run: RunFolder):
    with trackers_of(run, start_step=5) as trackers:
        trackers.log_event("resume")
        trackers.log_metrics(9, "train", {})
        trackers.log_event("interrupt")
        trackers.log_event("checkpoint", 0)
    assert [event["step"] for event in run.events(raw=True)] == [5, 9, 0]


def test_files_are_written_before_anyone_else_is_told(run: RunFolder):
    seen: list[str] = []
    with trackers_of(run) as trackers:
        trackers.add("other", Recorder(seen, run.metrics_file))
        trackers.log_metrics(1, "train", {"loss": 1.0})
    assert '"loss": 1.0' in seen[0]


def test_an_unknown_metric_is_the_callers_mistake_and_reaches_nobody(run: RunFolder):
    other = Recorder()
    with trackers_of(run) as trackers:
        trackers.add("other", other)
        with pytest.raises(ValueError, match="unknown metric 'los'"):
            trackers.log_metrics(1, "train", {"los": 1.0})
        with pytest.raises(ValueError, match="unknown kind 'skipp'"):
            trackers.log_event("skipp")
    assert other.rows == [] and run.metrics() == [] and run.events() == []


def test_a_broken_terminal_is_switched_off_with_one_event_and_the_run_goes_on(run: RunFolder):
    with trackers_of(run) as trackers:
        trackers.add("console", BrokenPipe())
        for step in (1, 2, 3):
            trackers.log_metrics(step, "train", {"loss": 1.0})
    assert len(run.metrics()) == 3
    [event] = run.events()
    assert event["kind"] == "tracker" and event["tracker"] == "console" and event["step"] == 1
    assert event["reason"] == "console: disabled after an error: BrokenPipeError: [Errno 32] Broken pipe"


def test_a_mirrors_failure_becomes_an_event_written_by_the_runs_own_thread(run: RunFolder):
    failed = threading.Event()
    heard: list[Mapping[str, Any]] = []

    def build() -> Recorder:
        raise ConnectionError("no route")

    trackers = trackers_of(run, on_event=heard.append)

    def report(name: str, reason: str) -> None:
        trackers.report(name, reason)
        failed.set()

    trackers.add("m", Mirror("m", build, report))
    assert failed.wait(10)
    assert run.events() == []
    trackers.log_metrics(4, "train", {"loss": 1.0})
    [event] = run.events()
    assert event["reason"] == "m: could not start: ConnectionError: no route" and event["step"] == 4
    trackers.close("finished")
    assert [event["reason"] for event in run.events()[1:]] == [
        "m: 2 row(s) are missing there; the run's files have all rows"
    ]
    assert heard == run.events()


def test_the_terminal_still_shows_what_a_mirror_lost_at_the_end(run: RunFolder):
    class FailsAtEnd(Recorder):
        def close(self, status: str) -> None:
            raise OSError("gone")

    terminal = Recorder()
    trackers = trackers_of(run)
    trackers.add("console", terminal)
    trackers.add("m", FailsAtEnd())
    trackers.close("finished")
    assert [row["reason"] for row in terminal.rows] == ["m: failed while closing: OSError: gone"]
    assert terminal.closed == ["finished"]
    assert len(run.events()) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (RunError("x"), "failed"),
        (Interrupted("x"), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_how_the_context_is_left_is_the_status(run: RunFolder, error: BaseException | None, status: str):
    other = Recorder()
    try:
        with trackers_of(run) as trackers:
            trackers.add("other", other)
            if error is not None:
                raise error
    except BaseException as raised:
        assert raised is error
    assert other.closed == [status]


def test_closing_twice_closes_once(run: RunFolder):
    other = Recorder()
    trackers = trackers_of(run)
    trackers.add("other", other)
    trackers.close("interrupted")
    trackers.close("failed")
    assert other.closed == ["interrupted"]
