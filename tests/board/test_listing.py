from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import asking, get, make_run, refused
from tests.conftest import needs

from trainbook.runs.labels import change_labels
from trainbook.runs.query import sort_rows

pytestmark = needs("starlette", "httpx", "sse_starlette")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, rate in (("small", 1e-3), ("large", 3e-3)):
        make_run(tmp_path, name, settings={"optimizer.learning_rate": rate}, evaluations={3: 2.0}, status="finished")
    return tmp_path


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("best<2", "there is no field 'best'. Did you mean 'metric', the best evaluation?"),
        ("split:eval", "there is no field 'split'."),
        ("tokens>5", "there is no field 'tokens'."),
        ("grad_norms>1", "there is no field 'grad_norms'. Did you mean 'grad_norm'?"),
        ("metric<best", "metric must be compared with a number, but got 'best'."),
    ],
)
def test_a_query_for_what_no_run_can_have_is_a_mistake(query: str, told: str, runs: Path):
    with asking(runs) as client:
        status, error = refused(client, "/api/runs", query=query)
        assert status == 400 and told in error


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("small", ""),
        ("best", "No name and no tag has 'best'. Did you mean the field 'metric', the best evaluation?"),
        ("loss", "loss is a field: write loss>1, or another value."),
        ("smal1", "No name and no tag has 'smal1'. Did you mean 'small'?"),
        ("status:finishd", "No run has status:finishd. Did you mean 'finished'?"),
        ("learning_rate=fast", "No run has learning_rate=fast. It is a number: 0.001 to 0.003."),
        ("metric<1", "No run has metric<1. It is a number: 2."),
        ("perplexity<3", "No run has a value of perplexity."),
        ("small learning_rate>2e-3", "Some runs match each of the 2 terms, but none matches all of them."),
        ("-status:finished", "-status:finished leaves out all runs."),
    ],
)
def test_a_query_without_a_match_says_which_term_no_run_meets(query: str, hint: str, runs: Path):
    with asking(runs) as client:
        told = get(client, "/api/runs", query=query)
        assert hint in told["hint"] and bool(hint) == bool(told["hint"]) == (not told["runs"])


def comparable(root: Path, name: str, best: float, **more: Any) -> None:
    make_run(root, name, evaluations={3: best}, **more)


def test_the_best_is_of_all_comparable_runs_whatever_is_listed(tmp_path: Path):
    comparable(tmp_path, "good", 2.0)
    comparable(tmp_path, "worse", 3.0)
    comparable(tmp_path, "copied", 2.5, recipe="runs/worse/config.yaml")
    comparable(tmp_path, "diverged", 1.0, losses=(3.0, 2.0, math.nan))
    comparable(tmp_path, "other-task", 1.0, settings={"training.task": "classify"})
    comparable(tmp_path, "other-data", 1.0, settings={"data.source": ["other.txt"]})
    comparable(tmp_path, "archived", 1.0)
    with asking(tmp_path) as client:
        change_labels(tmp_path / "archived", archived=True)
        for query in ("", "good", "tag:none,good"):
            rows = get(client, "/api/runs", query=query)["runs"]
            best = {row["name"]: row["best_of"] for row in rows if row["best_of"]}
            assert best == ({"good": {"amount": 3}} if rows else {})
        assert get(client, "/api/runs", query="worse")["runs"][0]["best_of"] is None
        comparable(tmp_path, "better", 1.5)
        client.app.state.board.index.look_again()  # type: ignore[attr-defined]
        best = {row["name"]: row["best_of"] for row in get(client, "/api/runs")["runs"] if row["best_of"]}
        assert best == {"better": {"amount": 4}}


def test_a_run_is_the_best_only_of_those_that_were_trained_as_long_and_to_their_end(tmp_path: Path):
    def started(updates: int) -> dict[str, Any]:
        return {"step": 0, "kind": "facts", "total_updates": updates}

    comparable(tmp_path, "short", 2.0)
    comparable(tmp_path, "short-worse", 3.0)
    comparable(tmp_path, "long", 1.0, events=[started(150)])
    comparable(tmp_path, "stopped", 1.5, status="interrupted")
    comparable(tmp_path, "going-on", 1.5, status="running")
    with asking(tmp_path) as client:
        best = {row["name"]: row["best_of"] for row in get(client, "/api/runs")["runs"] if row["best_of"]}
        assert best == {"short": {"amount": 2}}


def test_runs_are_sorted_within_one_metric():
    def row(name: str, metric: str | None, value: float = 0.0) -> dict[str, Any]:
        found = {"name": metric, "value": value, "greater_is_better": metric == "accuracy"}
        return {"name": name, "metric": found if metric else None}

    rows = [
        row("none", None),
        row("accurate", "accuracy", 0.9),
        row("low", "loss", 0.5),
        row("inaccurate", "accuracy", 0.1),
        row("high", "loss", 5.0),
        row("middle", "loss", 1.0),
    ]
    names = [each["name"] for each in sort_rows(rows, "metric")]
    assert names == ["low", "middle", "high", "accurate", "inaccurate", "none"]
    names = [each["name"] for each in sort_rows(rows, "-metric")]
    assert names == ["high", "middle", "low", "inaccurate", "accurate", "none"]
