from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from trainbook.tracking import Mirror

ROW = {"step": 1, "split": "train", "loss": 1.0}


class Recorder:
    def __init__(self) -> None:
        self.rows: list[tuple[str, Mapping[str, Any]]] = []
        self.closed: list[str] = []
        self.threads: set[int] = set()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        self.threads.add(threading.get_ident())
        self.rows.append(("metrics", row))

    def log_event(self, row: Mapping[str, Any]) -> None:
        self.rows.append(("event", row))

    def close(self, status: str) -> None:
        self.closed.append(status)


class Raising(Recorder):
    def log_metrics(self, row: Mapping[str, Any]) -> None:
        raise ConnectionError("server said no\nwith a page of details")


class Exiting(Recorder):
    def log_metrics(self, row: Mapping[str, Any]) -> None:
        raise SystemExit(3)


class FailingAtClose(Recorder):
    def close(self, status: str) -> None:
        raise OSError("cannot upload")


class Hanging(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.release = threading.Event()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        self.entered.set()
        self.release.wait(30)
        super().log_metrics(row)


@pytest.fixture
def reports() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    tracker = Hanging()
    yield tracker
    tracker.release.set()


def mirror_of(tracker: Recorder, reports: list[tuple[str, str]], **options: Any) -> Mirror:
    return Mirror("m", lambda: tracker, lambda name, reason: reports.append((name, reason)), **options)


def test_rows_arrive_in_order_in_another_thread_and_a_good_tracker_is_not_reported(reports: list[tuple[str, str]]):
    tracker = Recorder()
    mirror = mirror_of(tracker, reports)
    for step in range(50):
        mirror.log_metrics({"step": step})
        mirror.log_event({"step": step, "kind": "skip"})
    mirror.close("interrupted")
    assert [row["step"] for _, row in tracker.rows] == [step for step in range(50) for _ in range(2)]
    assert tracker.closed == ["interrupted"] and threading.get_ident() not in tracker.threads
    assert reports == []


def test_a_row_is_mirrored_as_it_was_when_it_was_logged(hanging: Hanging, reports: list[tuple[str, str]]):
    mirror = mirror_of(hanging, reports)
    row = {"step": 1}
    mirror.log_metrics(row)
    row["step"] = 2
    hanging.release.set()
    mirror.close("finished")
    assert hanging.rows == [("metrics", {"step": 1})]


def test_a_raising_tracker_is_reported_once_and_its_losses_at_the_end(reports: list[tuple[str, str]]):
    tracker = Raising()
    mirror = mirror_of(tracker, reports)
    for _ in range(5):
        mirror.log_metrics(ROW)
    mirror.log_event(ROW)
    mirror.close("finished")
    assert reports == [
        ("m", "failed: ConnectionError: server said no"),
        ("m", "5 row(s) are missing there; the run's files have all rows"),
    ]
    assert tracker.rows == [("event", ROW)] and tracker.closed == ["finished"]  # what can be mirrored still is


def test_a_tracker_that_calls_exit_ends_nothing(reports: list[tuple[str, str]]):
    mirror = mirror_of(Exiting(), reports)
    mirror.log_metrics(ROW)
    mirror.close("finished")
    assert reports[0] == ("m", "failed: SystemExit: 3")


def test_a_tracker_that_cannot_be_made_is_reported_once_and_loses_every_row(reports: list[tuple[str, str]]):
    def build() -> Recorder:
        raise RuntimeError("no network")

    mirror = Mirror("m", build, lambda name, reason: reports.append((name, reason)))
    for _ in range(3):
        mirror.log_metrics(ROW)
    mirror.close("finished")
    assert reports == [
        ("m", "could not start: RuntimeError: no network"),
        ("m", "3 row(s) are missing there; the run's files have all rows"),
    ]


def test_a_tracker_failing_at_the_end_is_reported_once(reports: list[tuple[str, str]]):
    abandoned: list[bool] = []
    mirror = mirror_of(FailingAtClose(), reports, abandon=lambda: abandoned.append(True))
    mirror.log_metrics(ROW)
    mirror.close("finished")
    assert reports == [("m", "failed while closing: OSError: cannot upload")]
    assert abandoned == [True]


def test_a_tracker_that_closed_is_not_abandoned_even_when_it_lost_a_row(reports: list[tuple[str, str]]):
    abandoned: list[bool] = []
    mirror = mirror_of(Raising(), reports, abandon=lambda: abandoned.append(True))
    mirror.log_metrics(ROW)
    mirror.close("finished")
    assert abandoned == []


def test_a_hanging_tracker_holds_up_neither_rows_nor_the_end(hanging: Hanging, reports: list[tuple[str, str]]):
    abandoned: list[bool] = []
    mirror = mirror_of(hanging, reports, max_waiting_rows=3, close_seconds=0.05, abandon=lambda: abandoned.append(True))
    mirror.log_metrics(ROW)
    assert hanging.entered.wait(10)
    for _ in range(5):
        mirror.log_metrics(ROW)  # three wait, two are dropped
    assert reports == [("m", "does not keep up: 3 rows are queued, further ones are dropped")]
    mirror.close("finished")
    [(name, reason)] = reports[1:]
    assert name == "m"
    assert reason.startswith("did not finish within 0.05 s and was abandoned; 6 row(s) are missing there")
    assert abandoned == [True]


def test_a_tracker_that_was_left_behind_says_nothing_more_when_it_wakes_up(
    hanging: Hanging, reports: list[tuple[str, str]]
):
    mirror = mirror_of(hanging, reports, close_seconds=0.01)
    mirror.log_metrics(ROW)
    assert hanging.entered.wait(10)
    mirror.close("finished")
    said = list(reports)
    hanging.release.set()
    mirror._thread.join(10)
    assert not mirror._thread.is_alive() and reports == said and hanging.closed == []


def test_a_tracker_that_only_was_slow_loses_nothing(hanging: Hanging, reports: list[tuple[str, str]]):
    mirror = mirror_of(hanging, reports)
    for _ in range(3):
        mirror.log_metrics(ROW)
    hanging.release.set()
    mirror.close("finished")
    assert len(hanging.rows) == 3 and reports == []
