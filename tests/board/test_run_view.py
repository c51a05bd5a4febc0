"""The page of a run: everything that its files say, as JSON, whatever they say."""

from __future__ import annotations

import json
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import add_rows, asking, get, make_run, train_row

from trainbook.runs.jsonl import dumps

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m"


def view_of(root: Path, name: str = "run") -> Any:
    with asking(root) as client:
        return get(client, f"/api/runs/0~{name}")


def test_the_page_of_a_run_has_verdict_metrics_sections_and_card(tmp_path: Path):
    make_run(tmp_path, losses=[3.0 - step / 20 for step in range(50)], evaluations={25: 2.0, 50: 1.5})
    view = view_of(tmp_path)
    assert view["headline"].startswith("Finished after 50 steps. Best validation loss 1.5000 at step 50.")
    assert view["findings_state"] == "ready" and view["rules_checked"] > 10
    assert [each["name"] for each in view["metrics"]][:3] == ["loss", "eval:loss", "learning_rate"]
    assert {each["group"] for each in view["metrics"][:2]} == {"Loss"}
    titles = [section["title"] for section in view["sections"]]
    assert "Results" in titles and "Findings" not in titles and "Curves" not in titles
    assert all(block["kind"] != "chart" for section in view["sections"] for block in section["blocks"])
    assert view["card"].startswith("run  finished") and view["axes"] == ["step", "tokens", "time", "flops"]
    assert view["summary"]["progress"] == 1.0 and view["clip"] == 1.0


def test_findings_come_with_evidence_remedy_and_command_and_stand_on_the_curve(tmp_path: Path):
    losses = [3.0 - step / 20 for step in range(30)] + [float("nan")] * 5
    make_run(tmp_path, losses=losses)
    view = view_of(tmp_path)
    first = view["findings"][0]
    assert first["severity"] == "error" and first["cause"] == "non-finite" and first["steps"][0] == 31
    assert first["evidence"][0].endswith(".") and first["remedy"] and first["rule"] == "not-finite"
    mark = next(mark for mark in view["marks"] if mark["kind"] == "finding")
    assert view["findings"][mark["finding"]] == first and mark["first"] == 31
    with asking(tmp_path) as client:
        get(client, "/api/runs/0~run")
        assert get(client, "/api/runs")["runs"][0]["findings"]["error"] >= 1


def test_what_the_guard_did_is_marked_with_its_reason(tmp_path: Path):
    events = [
        {"step": 5, "kind": "skip", "reason": "the gradient norm is NaN"},
        {"step": 5, "kind": "quarantine", "reason": "none", "count": 0},
        {"step": 6, "kind": "checkpoint", "best": True},
        {"step": 8, "kind": "oom", "reason": "out of memory"},
    ]
    make_run(tmp_path, losses=[1.0] * 10, events=events)
    marks = view_of(tmp_path)["marks"]
    told = [(mark["kind"], mark["step"], mark["text"]) for mark in marks if mark["kind"] != "finding"]
    assert told == [("skip", 5, "the gradient norm is NaN"), ("checkpoint", 6, ""), ("oom", 8, "out of memory")]


def test_of_very_many_marks_those_that_stand_together_become_one(tmp_path: Path):
    events = [{"step": step, "kind": "skip", "reason": "spike"} for step in range(1, 3001)]
    make_run(tmp_path, losses=[1.0] * 10, events=events)
    marks = [mark for mark in view_of(tmp_path)["marks"] if mark["kind"] == "skip"]
    assert len(marks) <= 400 and sum(mark["count"] for mark in marks) == 3000


def test_the_configuration_names_what_differs_from_the_recipe_first(tmp_path: Path):
    make_run(tmp_path, settings={"optimizer.beta1": 0.5})
    rows = view_of(tmp_path)["configuration"]
    differing = [row["path"] for row in rows if row["differs"]]
    assert "optimizer.beta1" in differing and rows[: len(differing)] == [row for row in rows if row["differs"]]
    row = next(row for row in rows if row["path"] == "optimizer.beta1")
    assert (row["value"], row["usual"]) == ("0.5", "0.9") and row["one_line"]


def test_samples_generations_classes_and_checkpoints_are_shown(tmp_path: Path):
    run = make_run(tmp_path)
    run.quarantine_file.write_text(dumps({"id": 7, "step": 3, "loss": 9.5, "text": "bad"}) + "\n")
    run.samples_file.write_text(dumps({"id": 1, "text": "good"}) + "\n")
    run.generations_file.write_text(dumps({"step": 2, "prompt": "Once", "text": "upon"}) + "\n")
    tables = [{"step": step, "labels": ["a", "b"], "matrix": [[3, step], [0, 4]]} for step in (1, 2)]
    run.classes_file.write_text("".join(dumps(each) + "\n" for each in tables))
    run.checkpoints.mkdir()
    (run.checkpoints / "step-00000002").mkdir()
    (run.checkpoints / "step-00000002" / "x").write_bytes(b"12345")
    (run.checkpoints / "index.json").write_text(json.dumps({"steps": [2], "best": 2, "latest": 2}))
    view = view_of(tmp_path)
    assert view["quarantined"][0] == {"id": 7, "source": None, "step": 3, "loss": 9.5, "reason": None, "text": "bad"}
    assert view["samples"][0]["text"] == "good"
    assert view["generations"] == [{"step": 2, "prompt": "Once", "text": "upon"}]
    assert view["classes"]["step"] == 2 and view["classes"]["matrix"] == [[3, 2], [0, 4]]
    scores = view["classes"]["per_class"]
    assert scores[0] == {"label": "a", "precision": 1.0, "recall": 0.6, "f1": 0.75, "support": 5}
    assert view["checkpoints"] == [{"step": 2, "roles": ["best", "latest"], "bytes": 5}]


@pytest.mark.parametrize(
    "table", [{"labels": 3}, {"labels": ["a"], "matrix": [["x"]]}, {"labels": ["a"], "matrix": []}]
)
def test_a_table_of_classes_that_is_none_is_left_out(tmp_path: Path, table: dict[str, Any]):
    make_run(tmp_path).classes_file.write_text(dumps({"step": 1, **table}) + "\n")
    assert view_of(tmp_path)["classes"] is None


def test_nothing_that_a_run_says_leaves_the_json(tmp_path: Path):
    settings = {"data.source": EVIL, "training.task": EVIL}
    events = [{"step": 1, "kind": "skip", "reason": EVIL}, {"step": 2, "kind": EVIL, "reason": EVIL}]
    run = make_run(tmp_path, EVIL.replace("/", "∕"), settings=settings, events=events, recipe=EVIL, status_detail=EVIL)
    add_rows(run, [train_row(9, 1.0, **{EVIL: 2.0}, grad_norms={EVIL: 1.0})])
    for file in (run.quarantine_file, run.samples_file, run.generations_file):
        file.write_text(dumps({"id": EVIL, "prompt": EVIL, "text": EVIL, "source": EVIL}) + "\n")
    run.classes_file.write_text(dumps({"step": 1, "labels": [EVIL], "matrix": [[1]]}) + "\n")
    with asking(tmp_path) as client:
        id = get(client, "/api/runs")["runs"][0]["id"]
        for path in (f"/api/runs/{id}", f"/api/runs/{id}/curves", "/api/runs", "/api/runs/<script>", "/<script>"):
            answer = client.get(path, params={"metric": EVIL, "query": "step>=0"})
            assert answer.headers["Content-Type"] == "application/json" and answer.json()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        view = get(client, f"/api/runs/{id}")
        names = [each["name"] for each in view["metrics"]]
        assert EVIL in names and f"grad_norms:{EVIL}" in names
        assert "\u202e" not in view["samples"][0]["text"] and "\x1b" not in view["samples"][0]["text"]
        assert get(client, f"/api/runs/{id}/curves", metric=f"grad_norms:{EVIL}")["curves"][0]["points"] == 1


ODD_ROWS = [
    {"rank_seconds": 3.5},
    {"rank_seconds": {"0": "NaN"}},
    {"skipped_updates": {"a": 1}},
    {"tokens": [1], "epoch": "x", "step_seconds": 1e308},
    {"grad_norms": [1], "memory_bytes": "<b>", "loss": {"a": {"b": 1}}},
    {"loss": None, "learning_rate": True, "time": -1},
]
ODD_EVENTS = [
    {"kind": []},
    {"kind": {}},
    {"kind": None, "step": 3},
    {"kind": "remedy", "factor": {"a": 1}},
    {"kind": "finding", "severity": 3, "steps": "x", "cause_id": [1]},
    {"kind": "start", "num_parameters": 1e308, "total_updates": [], "left_out": 7},
    {"kind": "quarantine", "count": "x", "reason": None},
    {"kind": "resume", "saved_in": 2**53},
]


@pytest.mark.parametrize(("row", "event"), list(zip(cycle(ODD_ROWS), ODD_EVENTS, strict=False)))
def test_rows_that_nobody_expects_do_not_keep_a_page_from_being_shown(tmp_path: Path, row: Any, event: Any):
    run = make_run(tmp_path, losses=[3.0, 2.0], evaluations={2: 2.0}, events=[{"step": 1, **event}])
    add_rows(run, [{**train_row(step, 1.0), **row} for step in (3, 4)])
    add_rows(run, [{**train_row(4, 1.0), **row, "split": "eval"}])
    with asking(tmp_path) as client:
        view = get(client, "/api/runs/0~run")
        assert view["headline"] and view["metrics"]
        for path in ("/api/runs", "/api/runs/0~run/curves?by=flops", "/api/compare?run=0~run&metric=loss"):
            assert client.get(path).status_code in (200, 400)


def test_numbers_that_json_has_not_are_words(tmp_path: Path):
    make_run(tmp_path, losses=[1.0, float("nan")])
    with asking(tmp_path) as client:
        assert get(client, "/api/runs")["runs"][0]["loss"] == "NaN"


def test_a_log_of_another_tool_has_its_page_and_verdict(tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    rows = "".join(f"{step},{3 - step / 50},{1e-3}\n" for step in range(1, 101))
    (tmp_path / "theirs" / "metrics.csv").write_text(f"step,train_loss,lr\n{rows}")
    view = view_of(tmp_path, "theirs")
    rows = "A run from a CSV file: 100 steps, 100 rows, 0 evaluations."
    assert view["headline"] == f"{rows} The doctor reports no error, no warning and 2 infos."
    assert {each["name"] for each in view["metrics"]} == {"loss", "learning_rate"}
    assert view["findings_state"] == "ready" and view["card"] is None
    assert ["train loss", "train_loss"] in view["sections"][0]["blocks"][1]["rows"]


def test_a_run_that_grows_is_read_on_and_one_that_was_rewritten_from_its_beginning(tmp_path: Path):
    run = make_run(tmp_path, losses=[3.0, 2.0])
    with asking(tmp_path) as client:
        path = "/api/runs/0~run/curves?metric=loss"
        assert get(client, path)["curves"][0]["low"] == [3.0, 2.0]
        for step in range(3, 150):
            add_rows(run, [train_row(step, 1.0)])
            if step % 30 == 0:
                assert get(client, path)["curves"][0]["points"] == step
        with open(run.metrics_file, "a") as file:
            file.write('{"step": 150, "seg')  # half a line
        assert get(client, path)["curves"][0]["points"] == 149
        run.metrics_file.write_text(dumps(train_row(1, 9.0)) + "\n")
        assert get(client, path)["curves"][0]["low"] == [9.0]


def test_a_run_that_goes_on_is_judged_now_and_then_and_at_last(tmp_path: Path):
    run = make_run(tmp_path, losses=[3.0] * 20)
    with asking(tmp_path) as client:
        verdicts = client.app.state.board.verdicts  # type: ignore[attr-defined]
        assert get(client, "/api/runs/0~run")["findings_state"] == "ready"
        add_rows(run, [train_row(21, float("nan"))])
        verdicts.rest = 1e6
        assert get(client, "/api/runs/0~run")["findings_state"] == "pending"  # with what was found before
        assert verdicts._later == {"0~run"}
        verdicts.rest = 0.0
        view = get(client, "/api/runs/0~run")
        assert view["findings_state"] == "ready" and view["findings"][0]["cause"] == "non-finite"


def test_looking_at_a_run_changes_none_of_its_files(tmp_path: Path):
    run = make_run(tmp_path, losses=[3.0, 2.0], evaluations={2: 2.0})
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    with asking(tmp_path) as client:
        for path in ("/api/runs", "/api/runs/0~run", "/api/runs/0~run/curves", "/api/compare?run=0~run", "/api/data"):
            get(client, path)
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }
    shutil.rmtree(run.path)


def test_a_run_whose_metrics_are_missing_is_not_called_healthy(tmp_path: Path):
    run = make_run(tmp_path)
    run.metrics_file.unlink()
    with asking(tmp_path) as client:
        view = get(client, "/api/runs/0~run")
        (row,) = get(client, "/api/runs")["runs"]
    lost = f"{run.metrics_file} is missing: what this run logged is lost, and it cannot be judged"
    assert "metrics.jsonl is missing" in view["headline"] and "no error" not in view["headline"]
    assert (view["findings_state"], view["findings_problem"], view["notices"]) == ("failed", lost, [lost])
    assert row["notices"] == [lost] and row["findings"] is None


def test_of_many_samples_the_number_is_told(tmp_path: Path):
    run = make_run(tmp_path)
    run.quarantine_file.write_text("".join(dumps({"id": number, "text": "a"}) + "\n" for number in range(416)))
    view = view_of(tmp_path)
    assert view["totals"]["quarantined"] == 416 and len(view["quarantined"]) == 200
    assert view["quarantined"][-1]["id"] == 415


def test_a_quarantined_sample_is_told_with_its_loss_once(tmp_path: Path):
    run = make_run(tmp_path)
    told = "its loss is 6.373; the median of accepted samples is 2.908"
    run.quarantine_file.write_text(dumps({"id": 7, "step": 3, "loss": 6.3731, "reason": told, "text": "bad"}) + "\n")
    with asking(tmp_path) as client:
        [sample] = get(client, "/api/runs/0~run")["quarantined"]
    assert (sample["loss"], sample["reason"]) == (None, "loss 6.373 (median of accepted samples: 2.908)")
