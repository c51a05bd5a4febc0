from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from trainbook.runs.schema import fixed
from trainbook.tracking import ConsoleTracker
from trainbook.tracking.console import Eta, StatusLine, clock, number_parts


def row(step: int, time: float = 0.0, **values: Any) -> dict[str, Any]:
    return {"step": step, "segment": 0, "split": "train", "time": time, **values}


def printed(*rows: dict[str, Any], total_steps: int = 600) -> list[str]:
    output = io.StringIO()
    tracker = ConsoleTracker(total_steps, console=Console(file=output, width=100))
    for item in rows:
        (tracker.log_event if "kind" in item else tracker.log_metrics)(item)
    tracker.close("finished")
    return output.getvalue().splitlines()


NUMBERS = {"loss": 1.83416, "learning_rate": 9.1e-4, "grad_norm": 0.8312, "tokens_per_second": 12345.4}


def test_a_training_row_is_one_line():
    assert printed(row(120, step_seconds=0.0854, **NUMBERS)) == [
        "step    120/600  loss 1.8342  lr 9.1e-04  norm 0.83  12,345 tok/s  eta 0:41"
    ]


def test_what_is_not_known_is_left_out():
    assert printed(row(1, loss=2.0)) == ["step      1/600  loss 2.0000"]


def test_an_evaluation_is_one_line():
    place = {"step": 120, "segment": 0, "split": "eval", "time": 0.0}
    assert printed(
        {**place, "loss": 1.7421, "perplexity": 5.7091, "best": True},
        {**place, "loss": 1.9, "perplexity": 6.686, "accuracy": 0.5, "bits_per_token": 2.7411, "best": False},
    ) == [
        "eval    120  loss 1.7421  perplexity 5.71  best",
        "eval    120  loss 1.9000  perplexity 6.69  accuracy 0.5000  bits per token 2.7411",
    ]


def test_nan_is_shown_as_nan():
    assert printed(row(3, loss=math.nan, learning_rate=1e-3, grad_norm=math.inf)) == [
        "step      3/600  loss nan  lr 1.0e-03  norm inf"
    ]


def test_the_time_left_follows_the_rows_own_times():
    lines = printed(row(10, 100.0, step_seconds=0.1), row(20, 120.0, step_seconds=0.1))  # an evaluation took its time
    assert lines == ["step     10/600  eta 0:59", "step     20/600  eta 19:20"]


def test_skipped_updates_are_made_up_for_by_further_steps():
    assert printed(row(605, 0.0, skipped_updates=8, step_seconds=1.0)) == ["step    605/608  eta 0:03"]


def test_skipped_updates_that_were_rolled_back_are_not_made_up_for():
    counts = {"applied_updates": 102, "skipped_updates": 8, "step_seconds": 1.0}
    assert printed(row(105, 0.0, **counts)) == ["step    105/603  eta 8:18"]


def test_events_that_matter_are_printed_and_others_are_not():
    event = {"segment": 0, "time": 0.0}
    assert printed(
        {**event, "step": 0, "kind": "start"},
        {**event, "step": 121, "kind": "skip", "reason": "gradient norm is nan [update kept out]"},
        {**event, "step": 500, "kind": "checkpoint"},
        {**event, "step": 500, "kind": "checkpoint_damaged", "reason": "step-00000500: model.safetensors is cut short"},
        {**event, "step": 480, "kind": "resume"},
    ) == [
        "skip    121  gradient norm is nan [update kept out]",
        "checkpoint damaged    500  step-00000500: model.safetensors is cut short",
        "resume    480  training resumes from a checkpoint; `step` is the checkpoint's",
    ]


def test_a_long_line_is_not_broken_outside_a_terminal():
    [line] = printed({"segment": 0, "time": 0.0, "step": 1, "kind": "notice", "reason": "x " * 200})
    assert len(line) > 400


def terminal(**options: Any) -> tuple[io.StringIO, Console]:
    output = io.StringIO()
    return output, Console(file=output, width=100, force_terminal=True, legacy_windows=False, **options)


def test_a_terminal_gets_a_bar_with_events_above_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    output, console = terminal()
    tracker = ConsoleTracker(600, console=console)
    tracker.log_metrics(row(120, step_seconds=0.0854, **NUMBERS))
    tracker.log_event({"step": 121, "segment": 0, "time": 0.0, "kind": "skip", "reason": "norm is nan"})
    tracker.close("finished")
    text = output.getvalue()
    assert "step 120/600" in text and "loss 1.8342  lr 9.1e-04  norm 0.83  12,345 tok/s  eta 0:41" in text
    assert "━" in text
    assert "skip    121  norm is nan" in text
    assert "step    120/600" not in text  # the plain line is for files
    assert "\x1b[?25h" in text.rpartition("eta")[2]  # the cursor is back
    assert "\x1b[33m" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    output, console = terminal()
    tracker = ConsoleTracker(600, console=console)
    tracker.log_event({"step": 121, "segment": 0, "time": 0.0, "kind": "skip", "reason": "norm is nan"})
    tracker.close("finished")
    assert "\x1b[33m" not in output.getvalue()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    output, console = terminal(color_system=None)
    tracker = ConsoleTracker(600, console=console)
    tracker.log_metrics(row(1, loss=2.0))
    tracker.close("finished")
    assert output.getvalue() == "step      1/600  loss 2.0000\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.005, "0.01"),
        (3.2e-9, "3.200e-09"),
        (999.999, "1000.00"),
        (2.5e9, "2.500e+09"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_stay_readable(value: float, text: str):
    assert fixed(value, 2) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (90061, "25:01:01")])
def test_time_left_is_written_as_a_clock(seconds: float, text: str):
    assert clock(seconds) == text


def test_a_narrow_terminal_keeps_step_and_time_left():
    line = StatusLine(120, 600, number_parts(row(120, **NUMBERS), 3725.0))
    assert line.fitted(60).plain == "step 120/600  loss 1.8342  12,345 tok/s  eta 1:02:05"
    assert line.fitted(40).plain == "step 120/600  loss 1.8342  eta 1:02:05"
    assert line.fitted(30).plain == "step 120/600  eta 1:02:05"
    assert line.fitted(12).plain == "step 120/600"
    line.activity = "evaluating 3/13"
    assert line.fitted(60).plain == "step 120/600  evaluating 3/13  loss 1.8342  eta 1:02:05"
    wide = line.fitted(120).plain
    assert len(wide) <= 120 and "━" in wide and "norm 0.83" in wide


@pytest.mark.parametrize("width", range(1, 140, 7))
def test_the_status_line_is_never_wider_than_the_terminal(width: int):
    line = StatusLine(599, 600, number_parts(row(599, **NUMBERS), 3725.0), "generating 100/100")
    assert len(line.fitted(width).plain) <= max(width, len("step 599/600"))


def test_a_terminal_breaks_lines_between_words_and_takes_its_bar_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    output = io.StringIO()
    console = Console(file=output, width=60, force_terminal=True, legacy_windows=False)
    tracker = ConsoleTracker(600, console=console)
    tracker.log_event({"step": 1, "segment": 0, "time": 0.0, "kind": "notice", "reason": "interrupted " * 12})
    tracker.show_activity("evaluating 1/2")
    tracker.log_metrics(row(120, **NUMBERS))
    tracker.close("interrupted")
    text = output.getvalue()
    assert text.count("interrupted") == 12  # none of them in two
    assert text.rstrip("\n").rpartition("eta")[2].count("\x1b[2K") >= 1  # erased at the end


def test_an_activity_ends_with_the_next_row():
    tracker = ConsoleTracker(600, console=Console(file=io.StringIO(), width=100))
    tracker.show_activity("evaluating 1/2")
    tracker.log_metrics(row(120, **NUMBERS))
    assert tracker._line.activity == ""


def test_after_a_rollback_the_time_left_is_counted_from_there():
    eta = Eta()
    rows = [(1, 0.0), (30, 60.0), (1, 60.5), (2, 61.0)]
    left = [eta.seconds_left({"step": step, "time": time, "step_seconds": 0.5}, 102) for step, time in rows]
    assert left[2:] == [0.5 * 101, 0.5 * 100]
