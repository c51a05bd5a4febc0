"""A writer killed at any moment leaves whole checkpoints only: the former or the new one, never a mixture."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainbook

PROGRAM = Path(__file__).with_name("crash_points.py")


@pytest.fixture(scope="module")
def seen_after_each_kill(tmp_path_factory):
    """For each scenario, what readers saw after a kill at the first call, at the second, … and after no kill."""
    environment = {**os.environ, "PYTHONPATH": str(Path(trainbook.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("crash_points"))]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def in_order(values):
    return [value for value, _ in itertools.groupby(values)]


def test_killed_at_any_point_of_the_first_save(seen_after_each_kill):
    seen = seen_after_each_kill["first"]
    assert len(seen) > 20
    assert in_order(point["latest"] for point in seen) == [None, "one"]
    assert in_order(point["best"] for point in seen) == [None, "one"]


@pytest.mark.parametrize("scenario", ["rotation", "background"])
def test_killed_at_any_point_of_a_save_that_moves_the_best_and_rotates(seen_after_each_kill, scenario):
    seen = seen_after_each_kill[scenario]
    assert len(seen) > 40
    assert in_order(point["latest"] for point in seen) == ["two", "three"]
    assert in_order(point["best"] for point in seen) == ["one", "three"]
    assert in_order(point["steps"] for point in seen) == [[1, 2], [1, 2, 3], [2, 3], [3]]


def test_killed_at_any_point_of_replacing_the_only_checkpoint(seen_after_each_kill):
    seen = seen_after_each_kill["replacement"]
    assert len(seen) > 30
    assert in_order(point["latest"] for point in seen) == ["one", "one again"]
    assert in_order(point["best"] for point in seen) == ["one", "one again"]


def test_killed_at_any_point_of_marking_the_best(seen_after_each_kill):
    seen = seen_after_each_kill["mark"]
    assert len(seen) > 5
    assert in_order(point["best"] for point in seen) == ["one", "two"]
    assert {point["latest"] for point in seen} == {"two"}


def test_killed_at_any_point_of_cleaning_up_after_an_earlier_kill(seen_after_each_kill):
    seen = seen_after_each_kill["recovery"]
    assert len(seen) > 5
    assert {point["latest"] for point in seen} == {"one"} == {point["best"] for point in seen}
