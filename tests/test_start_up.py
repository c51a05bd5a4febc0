from __future__ import annotations

import pytest

from trainbook import start_up
from trainbook.start_up import StartUp


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [100.0]
    monkeypatch.setattr(start_up.time, "time", lambda: now[0])
    return now


def test_parts_of_a_start_up_add_up_and_a_part_that_took_no_time_is_left_out(clock):
    began = StartUp(clock[0])
    for part, seconds in (("imports", 2.0), ("data", 0.001), ("model", 0.5), ("data", 0.25), ("first step", 1.25)):
        clock[0] += seconds
        began.end(part)
    assert began.told() == (
        "4.00 s from the command to the end of the first step: imports 2.00 s, data 0.25 s, model 0.50 s, "
        "first step 1.25 s"
    )


def test_the_last_part_is_told_however_short_it_was(clock):
    began = StartUp(clock[0])
    for part, seconds in (("imports", 2.0), ("data", 0.001), ("first step", 0.002)):
        clock[0] += seconds
        began.end(part)
    assert began.told().endswith(": imports 2.00 s, first step 0.00 s")
