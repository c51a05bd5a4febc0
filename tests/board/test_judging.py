from __future__ import annotations

import os
from pathlib import Path

from tests.board.asking import add_rows, asking, get, make_run, train_row
from tests.conftest import needs

from trainbook.board import index as index_module
from trainbook.board.board import Board
from trainbook.board.judging import Judging
from trainbook.runs.labels import change_labels

pytestmark = needs("starlette", "httpx", "sse_starlette")

HEALTHY = [3.0 - step / 100 for step in range(60)]
LOST = [*HEALTHY[:30], *[float("nan")] * 30]


def judge_all(board: Board) -> int:
    board.index.look_again()
    judging = Judging(board.index, board.verdicts)
    return sum(1 for _ in iter(judging.judge_next, False))


def test_each_run_of_the_list_gets_its_verdict_without_being_opened(tmp_path: Path):
    make_run(tmp_path, "healthy", HEALTHY, status="interrupted")
    make_run(tmp_path, "lost", LOST, status="failed")
    with asking(tmp_path) as client:
        before = {row["name"]: row["findings"] for row in get(client, "/api/runs")["runs"]}
        assert before == {"healthy": None, "lost": None}
        assert judge_all(client.app.state.board) == 2  # type: ignore[attr-defined]
        found = {row["name"]: row["findings"] for row in get(client, "/api/runs")["runs"]}
        assert found["healthy"]["error"] == 0 and found["lost"]["error"] >= 1
        assert judge_all(client.app.state.board) == 0  # type: ignore[attr-defined]


def test_the_list_counts_the_findings_that_the_page_of_the_run_shows(tmp_path: Path):
    make_run(tmp_path, "improving", [3.0 * 0.98**step for step in range(200)], evaluations={100: 1.0, 200: 0.5})
    make_run(tmp_path, "lost", LOST)
    with asking(tmp_path) as client:
        judge_all(client.app.state.board)  # type: ignore[attr-defined]
        for row in get(client, "/api/runs")["runs"]:
            shown = [each["severity"] for each in get(client, f"/api/runs/{row['id']}")["findings"]]
            assert row["findings"] == {name: shown.count(name) for name in ("error", "warning", "info")}
            assert sum(row["findings"].values()) > 0
        assert len(get(client, "/api/runs", query="findings>=1")["runs"]) == 2


def test_runs_without_any_verdict_come_first_and_trials_last(tmp_path: Path):
    make_run(tmp_path, "recorded", HEALTHY)
    make_run(tmp_path / "study" / "trials", "trial-1", HEALTHY, status="interrupted")
    (tmp_path / "study" / "base.yaml").touch()
    make_run(tmp_path, "unjudged", HEALTHY, status="interrupted")
    with asking(tmp_path) as client:
        index = client.app.state.board.index  # type: ignore[attr-defined]
        index.look()
        asked = [place.path.name for place in iter(index.next_to_judge, None)]
        assert asked == ["unjudged", "trial-1", "recorded"]


def test_a_run_that_goes_on_is_judged_again_after_a_while_only(tmp_path: Path, monkeypatch):
    run = make_run(tmp_path, "running", HEALTHY, status="running")
    with asking(tmp_path) as client, run.lock():
        board = client.app.state.board  # type: ignore[attr-defined]
        assert judge_all(board) == 1
        add_rows(run, [train_row(61, 2.0)])
        assert judge_all(board) == 0
        monkeypatch.setattr(index_module, "JUDGED_AGAIN", 0.0)
        assert judge_all(board) == 1


def test_a_verdict_is_remembered_until_the_run_changes(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = make_run(tmp_path / "runs", "lost", LOST, status="failed")
    for expected in (1, 0):
        with asking(tmp_path / "runs", remembers=True) as client:
            assert judge_all(client.app.state.board) == expected  # type: ignore[attr-defined]
            (row,) = get(client, "/api/runs")["runs"]
            assert row["findings"]["error"] >= 1 and row["is_judged"]
    os.utime(run.metrics_file, (1, 1))
    with asking(tmp_path / "runs", remembers=True) as client:
        assert judge_all(client.app.state.board) == 1  # type: ignore[attr-defined]


def test_a_tag_or_a_note_keeps_the_verdict(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = make_run(tmp_path / "runs", "lost", LOST, status="failed")
    counts = []
    for expected in (1, 0, 0):
        with asking(tmp_path / "runs", remembers=True) as client:
            index = client.app.state.board.index  # type: ignore[attr-defined]
            assert judge_all(client.app.state.board) == expected  # type: ignore[attr-defined]
            counts.append(get(client, "/api/runs")["runs"][0]["findings"])
            change_labels(run.path, add=[f"tag-{len(counts)}"], note="seen")
            index.look_again()
            (row,) = get(client, "/api/runs")["runs"]
            assert row["is_judged"]
            counts.append(row["findings"])
        change_labels(run.path, note=f"after {len(counts)}")  # while no board runs
    assert counts[0]["error"] >= 1 and counts == counts[:1] * 6


def test_a_tag_keeps_why_there_is_no_verdict(tmp_path: Path, monkeypatch):
    run = make_run(tmp_path, "odd", HEALTHY, status="interrupted")
    monkeypatch.setattr("trainbook.board.findings.diagnose", lambda record: 1 / 0)
    with asking(tmp_path) as client:
        judge_all(client.app.state.board)  # type: ignore[attr-defined]
        change_labels(run.path, add=["odd"])
        client.app.state.board.index.look_again()  # type: ignore[attr-defined]
        assert get(client, "/api/runs")["runs"][0]["verdict_problem"].startswith("ZeroDivisionError")


def test_why_a_run_has_no_verdict_is_told(tmp_path: Path, monkeypatch):
    make_run(tmp_path, "odd", HEALTHY, status="interrupted")
    monkeypatch.setattr("trainbook.board.findings.diagnose", lambda record: 1 / 0)
    with asking(tmp_path) as client:
        assert judge_all(client.app.state.board) == 1  # type: ignore[attr-defined]
        (row,) = get(client, "/api/runs")["runs"]
        assert row["findings"] is None and row["verdict_problem"] == "ZeroDivisionError: division by zero"


def test_beside_a_run_in_training_the_pauses_are_long(tmp_path: Path):
    running = make_run(tmp_path, "running", HEALTHY, status="running")
    with asking(tmp_path) as client:
        board = client.app.state.board  # type: ignore[attr-defined]
        judging = Judging(board.index, board.verdicts)
        with running.lock():
            board.index.look_again()
            assert judging._rest_after(2.0) == 30.0
        board.index.look_again()  # nothing holds its lock: the process is gone
        assert judging._rest_after(2.0) == 6.0
