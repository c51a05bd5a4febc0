"""Scoring: who counts as found, and that a page can be written from the scores alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "doctor"))

import page
from score import Judged, by_kind, lines, read, summary, write


def judged(kind: str, causes: tuple[str, ...], *findings: tuple[str, str], **facts: Any) -> Judged:
    given = {"architecture": "gpt", "seed": 5, "half": "held-out", "ended": "finished", **facts}
    said = tuple((severity, cause, 0.5, "a-rule") for severity, cause in findings)
    return Judged(kind=kind, causes=causes, findings=said, **given)


RIGHT = ("learning-rate-high", "warmup-short")


@pytest.mark.parametrize(
    ("findings", "answers"),  # noticed, found, first, among three, among three of all that is printed
    [
        ((("error", "learning-rate-high"),), (True, True, True, True, True)),
        ((("error", "warmup-short"),), (True, True, False, True, True)),
        ((("info", "learning-rate-high"),), (False, False, False, False, True)),
        (
            (("info", "a"), ("info", "b"), ("info", "c"), ("info", "learning-rate-high")),
            (False, False, False, False, False),
        ),
        ((("info", "a"), ("info", "a"), ("info", "b"), ("info", "warmup-short")), (False, False, False, False, True)),
        ((("warning", "beta2-low"),), (True, False, False, False, False)),
        (
            (("error", "a"), ("error", "b"), ("warning", "b"), ("warning", "learning-rate-high")),
            (True, True, False, True, True),
        ),
        (
            (("error", "a"), ("error", "b"), ("warning", "c"), ("warning", "learning-rate-high")),
            (True, True, False, False, False),
        ),
        ((), (False, False, False, False, False)),
    ],
)
def test_a_cause_counts_where_it_is_warned_of(findings: tuple, answers: tuple[bool, ...]) -> None:
    run = judged("rate-x30", RIGHT, *findings)
    found = (run.is_noticed, run.is_found, run.is_first, run.is_among_three, run.is_among_three_listed)
    assert found == answers


RUNS = [
    judged("rate-x30", RIGHT, ("error", "learning-rate-high")),
    judged("rate-x30", RIGHT, ("error", "learning-rate-high"), seed=6),
    judged("rate-x30", RIGHT, ("warning", "beta2-low"), architecture="bert"),
    judged("decay-x100", ("decay-high",), half="development", seed=0),
    judged("clean", (), architecture="gpt-lion"),
    judged("clean", (), ("warning", "clipping-tight"), architecture="gpt-muon"),
    judged("clean", (), ("info", "training-short"), architecture="bert"),
]


def test_shares_are_of_the_runs_of_each_half() -> None:
    found = summary(RUNS)
    assert found["faults"]["held-out"]["cause found"][:2] == (2, 3)
    assert found["faults"]["held-out"]["cause first, of those noticed"][:2] == (2, 3)
    assert found["faults"]["development"]["cause found"][:2] == (0, 1)
    assert found["clean"]["all"]["error"][:2] == (0, 3) and found["clean"]["all"]["warning"][:2] == (1, 3)


def test_a_row_says_what_was_named_instead() -> None:
    rows = by_kind([run for run in RUNS if run.causes])
    assert [row["instead"] for row in rows] == [{}, {"beta2-low": 1}, {"nothing": 1}]
    assert any("gpt-muon 5: warning clipping-tight" in line for line in lines(summary(RUNS), RUNS))


def test_scores_are_read_as_they_were_written_and_make_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "scores.json", summary(RUNS), RUNS, {"python": "3.12.1", "torch": "2.11.0"})
    head, again = read(tmp_path / "scores.json")
    assert again == RUNS and head["clean"]["all"]["warning"]["hits"] == 1
    page.write_page(tmp_path / "scores.json", tmp_path)
    text = (tmp_path / "doctor-bench.md").read_text()
    assert "| 3 | 2 | 2 | 2 | beta2-low 1 |" in text and "gpt-muon, seed 5: warning, clipping-tight" in text
    assert "Python 3.12.1, PyTorch 2.11.0" in text
    assert (tmp_path / "doctor-bench.png").stat().st_size > 1000


def test_a_page_without_scores_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="score --half held-out"):
        page.write_page(tmp_path / "scores.json", tmp_path)
