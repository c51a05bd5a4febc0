"""Runs side by side: curves, exact means of groups, and what differs."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
from tests.board.asking import asking, get, make_run, refused

SEEDS = (1, 2, 3)


def three_seeds(root: Path, rate: float = 1e-3, name: str = "run", shift: float = 0.0) -> None:
    for seed in SEEDS:
        losses = [3.0 - step / 100 + seed / 10 + shift for step in range(100)]
        settings = {"training.seed": seed, "optimizer.learning_rate": rate}
        make_run(
            root,
            f"{name}-{seed}",
            losses,
            evaluations={50: 2.0 + seed + shift, 100: 1.0 + seed + shift},
            settings=settings,
        )


def asked(*names: str, **params: object) -> str:
    runs = "&".join(f"run=0~{name}" for name in names)
    return f"/api/compare?{runs}&{'&'.join(f'{name}={value}' for name, value in params.items())}"


def test_runs_are_laid_over_each_other(tmp_path: Path):
    three_seeds(tmp_path)
    with asking(tmp_path) as client:
        found = get(client, asked("run-1", "run-2"))
    assert (found["metric"], found["range"]) == ("eval:loss", [50, 100])
    assert [curve["low"] for curve in found["curves"]] == [[3.0, 2.0], [4.0, 3.0]]
    assert [curve["run"] for curve in found["curves"]] == ["0~run-1", "0~run-2"]
    assert {"eval:loss", "loss"} <= {each["name"] for each in found["metrics"]}
    assert found["differences"] == [{"path": "training.seed", "values": ["1", "2"]}]


def test_the_mean_is_that_of_exactly_the_runs_of_a_group(tmp_path: Path):
    three_seeds(tmp_path)
    three_seeds(tmp_path, 1e-2, "high", 1.0)
    names = [f"{name}-{seed}" for name in ("run", "high") for seed in SEEDS]
    with asking(tmp_path) as client:
        found = get(client, asked(*names, metric="loss", width=100))
        alone = get(client, asked(*names[:3], metric="loss", width=100))
    bands = {band["runs"][0]: band for band in found["bands"]}
    assert [len(band["runs"]) for band in found["bands"]] == [3, 3]
    at_start = [3.0 + seed / 10 for seed in SEEDS]
    assert bands["0~run-1"]["mean"][0] == pytest.approx(fmean(at_start))
    assert (bands["0~run-1"]["low"][0], bands["0~run-1"]["high"][0]) == (min(at_start), max(at_start))
    assert alone["bands"][0]["mean"] == bands["0~run-1"]["mean"]  # whatever else is shown
    assert get_without_groups(tmp_path, names) == []


def get_without_groups(root: Path, names: list[str]) -> list[object]:
    with asking(root) as client:
        return get(client, asked(*names, metric="loss", group=0))["bands"]


def test_where_a_run_of_a_group_is_not_finite_there_is_no_mean(tmp_path: Path):
    for seed, losses in ((1, [1.0] * 40), (2, [1.0] * 20 + [math.nan] * 20)):
        make_run(tmp_path, f"run-{seed}", losses, settings={"training.seed": seed})
    with asking(tmp_path) as client:
        band = get(client, asked("run-1", "run-2", metric="loss", width=400))["bands"][0]
    known = [x for x, mean in zip(band["x"], band["mean"], strict=True) if mean is not None]
    assert known and max(known) < 21.1 and None in band["mean"]


def test_a_band_ends_where_the_shortest_run_of_the_group_ends(tmp_path: Path):
    for seed, steps in ((1, 100), (2, 50)):
        make_run(tmp_path, f"run-{seed}", [1.0] * steps, settings={"training.seed": seed})
    with asking(tmp_path) as client:
        band = get(client, asked("run-1", "run-2", metric="loss", width=200))["bands"][0]
    assert max(band["x"]) == pytest.approx(50, abs=1) and band["mean"][0] == 1.0


def test_the_statistics_are_those_of_the_command(tmp_path: Path):
    from trainbook.report.compare import compare
    from trainbook.report.compare_view import as_json
    from trainbook.runs.record import open_record

    three_seeds(tmp_path)
    three_seeds(tmp_path, 1e-2, "high", 1.0)
    names = [f"{name}-{seed}" for name in ("run", "high") for seed in SEEDS]
    wanted = as_json(compare([open_record(tmp_path / name) for name in names], "eval_loss"))
    with asking(tmp_path) as client:
        told = get(client, asked(*names, statistics="only"))["statistics"]
        assert get(client, asked(*names, statistics=0)).keys().isdisjoint({"statistics"})
    assert told["conclusion"] == wanted["conclusion"] and told["comparisons"] == wanted["comparisons"]
    assert told["groups"] == wanted["groups"] and told["remarks"] == wanted["remarks"]
    assert {run["name"]: run["final"] for run in told["runs"]} == {run["name"]: run["final"] for run in wanted["runs"]}


def test_runs_of_other_tools_are_compared_with_ours(tmp_path: Path):
    make_run(tmp_path, "ours", [2.0, 1.0])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "metrics.csv").write_text("step,loss\n1,3\n2,2\n")
    with asking(tmp_path) as client:
        found = get(client, asked("ours", "theirs", metric="loss"))
    assert [curve["low"] for curve in found["curves"]] == [[2.0, 1.0], [3.0, 2.0]]
    assert found["differences"] == [] and found["bands"] == []  # of theirs, no setting is known


def test_many_unread_runs_are_read_by_two_processes_to_the_same_answer(tmp_path: Path):
    names = [f"run-{number}" for number in range(12)]
    for number, name in enumerate(names):
        make_run(tmp_path, name, [float(number), 1.0], settings={"training.seed": number})
    with asking(tmp_path) as client:
        first = get(client, asked(*names, metric="loss", statistics=0))
        again = get(client, asked(*names, metric="loss", statistics=0))
    assert first == again and [curve["low"][0] for curve in first["curves"]] == [float(n) for n in range(12)]


def test_questions_that_cannot_be_answered_are_refused(tmp_path: Path):
    three_seeds(tmp_path)
    with asking(tmp_path) as client:
        assert refused(client, "/api/compare")[0] == 400
        assert refused(client, asked("run-1", "nobody"))[0] == 404
        status, message = refused(client, asked("run-1", "run-2", metric="perplexity"))
        assert status == 400 and "no run has 'perplexity'" in message
        assert refused(client, asked(*(["run-1"] * 2), by="moons"))[0] == 400
        assert get(client, asked("run-1"))["statistics"] is None


def test_a_repeated_seed_and_injected_faults_are_in_no_mean(tmp_path: Path):
    settings = {"training.seed": 1, "optimizer.learning_rate": 1e-2}
    make_run(tmp_path, "a", [1.0, 1.0], settings=settings)
    make_run(tmp_path, "again", [9.0, 9.0], settings=settings)
    make_run(tmp_path, "b", [3.0, 3.0], settings={**settings, "training.seed": 2})
    faults = {"settings": {**settings, "training.seed": 3}, "injected_faults": ["random-labels@1"]}
    make_run(tmp_path, "faulty", [100.0, 100.0], **faults)
    with asking(tmp_path) as client:
        found = get(client, asked("a", "again", "b", "faulty", metric="loss", group=1))
        rows = {row["name"]: row for row in get(client, "/api/runs")["runs"]}
    (band,) = found["bands"]
    assert band["runs"] == ["0~a", "0~b"] and set(band["mean"]) == {2.0}
    assert band["name"] == rows["a"]["group_name"] == "a and 1 more seed"
    assert {"path": "injected faults", "values": ["none", "none", "none", "random-labels@1"]} in found["differences"]
    assert rows["again"]["repeat_of"] == "0~a" and rows["a"]["repeat_of"] is None
    assert rows["faulty"]["group"] != rows["a"]["group"] and rows["faulty"]["group_name"] is None


def test_the_steps_of_a_run_are_one_number_everywhere(tmp_path: Path):
    """Steps that were made: rows are logged every few steps only."""
    for seed, name in enumerate(("one", "other")):
        events = [{"step": 298, "kind": "finish"}]
        losses = [2.0] * 290
        make_run(tmp_path, name, losses, events=events, evaluations={290: 2.0}, settings={"training.seed": seed})
    with asking(tmp_path) as client:
        listed = {row["name"]: row["step"] for row in get(client, "/api/runs")["runs"]}
        told = get(client, "/api/compare", run=["0~one", "0~other"], metric="eval:loss")["statistics"]["runs"]
        page = get(client, "/api/runs/0~one")
    assert listed == {"one": 298, "other": 298} == {each["name"]: each["steps"] for each in told}
    assert page["headline"].startswith("Finished after 298 steps.") and "298 steps" in page["card"]
