from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from tests.run_folders import write_lines

from trainbook.runs import RunFolder
from trainbook.runs.digest import LossBuckets, MetricsDigest, up_to


def rows_of(first: int, last: int, segment: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in range(first, last + 1):
        found.append({"step": step, "segment": segment, "split": "train", "loss": 5.0 / step})
        if step % 10 == 0:
            found.append({"step": step, "segment": segment, "split": "eval", "loss": 6.0 / step})
    return found


def test_it_has_what_reading_all_rows_has(tmp_path: Path):
    write_lines(tmp_path / "metrics.jsonl", rows_of(1, 95))
    digest = MetricsDigest(tmp_path / "metrics.jsonl", with_losses=True)
    assert digest.update() and not digest.update()
    folder = RunFolder(tmp_path)
    assert digest.evaluations == list(folder.metrics("eval"))
    assert list(digest.newest) == folder.metrics("train")[-5:]
    losses = [row["loss"] for row in folder.metrics("train")]
    values = digest.losses.values(40)
    assert len(values) <= 40 and min(values) == min(losses) and max(values) == max(losses)


def test_only_what_is_new_is_read_and_half_a_line_waits(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    digest = MetricsDigest(path, with_losses=True)
    assert not digest.update()  # there is no file yet
    write_lines(path, rows_of(1, 20))
    assert digest.update() and digest.newest[-1]["step"] == 20
    with open(path, "a") as file:
        file.write('{"step": 21, "segment": 0, "split": "train", "loss"')
    assert not digest.update()
    with open(path, "a") as file:
        file.write(': 9.5}\n{"step": 30, "split": "eval", "loss": "NaN"}\n')
    assert digest.update() and digest.newest[-1]["loss"] == 9.5
    assert len(digest.evaluations) == 3 and math.isnan(digest.evaluations[-1]["loss"])
    assert digest.losses.values(60)[-1] == 9.5
    assert digest.losses.steps(60) == list(range(1, 22))


def test_the_steps_of_many_losses_are_those_of_their_rows(tmp_path: Path):
    """Denser at the start, as a schedule of logging writes them."""
    steps = [*range(1, 2_001), *range(2_010, 60_001, 10)]
    rows = [{"step": step, "segment": 0, "split": "train", "loss": float(step)} for step in steps]
    write_lines(tmp_path / "metrics.jsonl", rows)
    digest = MetricsDigest(tmp_path / "metrics.jsonl", with_losses=True)
    digest.update()
    found = digest.losses.steps(40)
    assert len(found) == 40 and found == sorted(found) and found[0] == 1
    wanted = [digest.losses.values(40)[at + 1] for at in range(0, 40, 2)]  # the lowest loss of a stretch is its first
    assert found[::2] == pytest.approx(wanted, abs=900)  # which is less than two pixels


def test_a_file_that_was_rewritten_is_read_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, rows_of(1, 20))
    digest = MetricsDigest(path)
    digest.update()
    write_lines(path, rows_of(1, 40, segment=3))  # longer, with the same inode
    assert digest.update() and len(digest.evaluations) == 4 and digest.newest[-1]["segment"] == 3
    write_lines(path, rows_of(1, 10))
    assert digest.update() and len(digest.evaluations) == 1
    path.unlink()
    assert digest.update() and not digest.evaluations and not digest.newest


def test_hostile_lines_are_passed_over(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    marks = '"split": "eval"' * 20_000
    lines = [
        "no json",
        '{"split": "eval"}',
        '{"step": "x", "split": "eval", "loss": 1}',
        '{"step": true, "split": "eval"}',
        '{"step": 1e9, "split": "eval"}',
        marks,
        '{"step": 1, "split": "train", "note": "\\"split\\": \\"eval\\"", "loss": "<b>"}',
        "[" * 5_000,
        '{"step": 2, "split": "train", "loss": 1e999}',
    ]
    path.write_text("\n".join(lines) + "\n")
    digest = MetricsDigest(path, with_losses=True)
    assert digest.update()
    assert digest.evaluations == [] and [row["step"] for row in digest.newest] == [1, 2]
    assert digest.losses.values()[-1] == math.inf


def test_evaluations_that_a_later_segment_has_begun_again_do_not_count(tmp_path: Path):
    write_lines(tmp_path / "metrics.jsonl", rows_of(1, 40) + rows_of(21, 30, segment=1))
    events = [
        {"step": 0, "segment": 0, "kind": "start"},
        {"step": 20, "segment": 1, "kind": "resume"},
    ]
    write_lines(tmp_path / "events.jsonl", events)
    digest = MetricsDigest(tmp_path / "metrics.jsonl")
    digest.update()
    counting = up_to(digest.evaluations, events)
    assert counting == list(RunFolder(tmp_path).metrics("eval"))
    assert [(row["step"], row["segment"]) for row in counting] == [(10, 0), (20, 0), (30, 1)]


def test_buckets_are_the_same_however_the_values_come_and_lose_no_spike():
    random.seed(1)
    values = [random.random() for _ in range(20_000)]
    values[12_345] = 99.0
    whole, piecewise = LossBuckets(), LossBuckets()
    whole.add(values, lambda at: 10 * at)
    for start in range(0, len(values), 7):
        piecewise.add(values[start : start + 7], lambda at, start=start: 10 * (start + at))
    assert whole.values(40) == piecewise.values(40) and whole.steps(40) == piecewise.steps(40)
    assert whole.steps(40) == sorted(whole.steps(40)) and whole.steps(40)[0] == 0 and len(whole.steps(40)) == 40
    assert abs(whole.steps(40)[whole.values(40).index(99.0)] - 123_450) <= 10_000
    assert max(whole.values(40)) == 99.0 and min(whole.values(40)) == min(values) and len(whole.values(40)) == 40
    assert LossBuckets().values() == LossBuckets().steps() == []


@pytest.mark.parametrize("length", [40, 3000])
def test_what_a_rollback_has_undone_is_not_in_the_curve(tmp_path: Path, length: int):
    back = length // 2
    write_lines(tmp_path / "metrics.jsonl", [*rows_of(1, length), *rows_of(back, length + 10, segment=1)])
    digest = MetricsDigest(tmp_path / "metrics.jsonl", with_losses=True)
    digest.update()
    steps = digest.losses.steps(60)
    assert steps == sorted(steps) and steps[0] == 1 and steps[-1] >= 0.9 * length
    assert len(digest.losses.values(60)) == len(steps)
