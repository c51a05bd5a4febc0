from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.run_folders import STARTED, configuration, make_run, write_lines

from trainbook.errors import RunFolderError
from trainbook.report.run_row import RunRow, changed_settings, count_findings, group_of, record_row, run_row
from trainbook.runs import RunFolder
from trainbook.runs.labels import change_labels
from trainbook.runs.record import open_record


def start(**facts: Any) -> dict[str, Any]:
    return {"step": 0, "segment": 0, "kind": "start", "total_updates": 10, "num_parameters": 1234, **facts}


def finding(cause: str, severity: str = "warning", kind: str = "finding") -> dict[str, Any]:
    return {"step": 2, "segment": 0, "kind": kind, "cause_id": cause, "severity": severity}


def test_a_row_has_what_a_list_shows(tmp_path: Path):
    run = make_run(
        tmp_path / "a",
        evaluations={1: {"loss": 2.5, "accuracy": 0.7, "best": True}, 3: {"loss": 2.0, "accuracy": 0.6, "best": False}},
        events=[
            start(),
            {"step": 2, "kind": "skip"},
            finding("x"),
            finding("y", "error"),
            finding("x", kind="withdrawn"),
        ],
        settings={"optimizer__learning_rate": 1e-2, "evaluation__metric_for_best_model": "accuracy"},
    )
    change_labels(run.path, add=["good"], note="a note")
    row = run_row(run, with_spark=True)
    assert row["name"] == "a" and row["status"] == "finished" and row["started"] == STARTED
    assert (row["step"], row["max_steps"], row["total_steps"], row["progress"]) == (3, 10, 10, 0.3)
    assert row["metric"] == {"name": "accuracy", "value": 0.7, "step": 1, "greater_is_better": True}
    assert (row["loss"], row["eval_loss"], row["metrics"]["eval_accuracy"]) == (1.0, 2.0, 0.6)
    assert row["parameters"] == 1234 and row["seed"] == 1 and row["task"] == "causal" and row["guard"] == 1
    assert row["findings"] == {"error": 1, "warning": 0}
    assert row["settings"]["optimizer.learning_rate"] == 1e-2
    assert (row["tags"], row["note"], row["archived"]) == (["good"], "a note", False)
    assert row["spark"] == [3.0, 2.0, 1.0] and row["notices"] == []
    json.dumps(row)


def test_a_row_is_kept_up_to_date(tmp_path: Path):
    run = make_run(tmp_path / "a", events=[start()])
    kept = RunRow(run)
    assert kept.row()["step"] == 3
    write_lines(run.metrics_file, [{"step": 4, "segment": 0, "split": "train", "loss": math.nan}], mode="a")
    write_lines(run.events_file, [{"step": 4, "segment": 0, "kind": "rollback"}], mode="a")
    change_labels(run.path, archived=True)
    row = kept.row()
    assert row["step"] == 4 and math.isnan(row["loss"]) and row["guard"] == 1 and row["archived"]
    assert {**row, "notices": []} == run_row(run)


def test_a_run_without_its_process_is_abandoned(tmp_path: Path):
    run = make_run(tmp_path / "a", status="running", events=[start()])
    assert run_row(run)["status"] == "abandoned"
    rows = [{"step": 5, "segment": 0, "split": "train", "loss": 1.0, "step_seconds": 2.0, "skipped_updates": 1}]
    write_lines(run.metrics_file, rows, mode="a")
    with run.lock():
        row = run_row(run)
    assert row["status"] == "running" and row["progress"] == 0.4 and row["seconds_left"] == 12.0
    assert row["total_steps"] == 11  # the step that was skipped is made up for


def test_runs_that_differ_in_the_seed_alone_are_a_group(tmp_path: Path):
    settings = {"optimizer__learning_rate": 1e-2}
    rows = [
        run_row(make_run(tmp_path / "a", seed=1, settings={**settings, "training__seed": 1})),
        run_row(
            make_run(tmp_path / "b", seed=2, settings={**settings, "training__seed": 2, "logging__logging_steps": 3})
        ),
        run_row(make_run(tmp_path / "c", seed=1, settings={"optimizer__learning_rate": 2e-2})),
    ]
    groups = [row["group"] for row in rows]
    assert groups[0] == groups[1] != groups[2]
    assert group_of("csv", {}, None) is None and group_of("csv", {"a.b": 1}, None) is None


def test_settings_of_a_stranger_are_only_those_that_are_knobs():
    tree = configuration(optimizer__learning_rate=5.0) | {"<b>": {"x": 1}, "model": "<script>"}
    tree["data"]["<i>"] = 1
    assert changed_settings(tree) == {"optimizer.learning_rate": 5.0}
    assert "model.hidden_size" not in changed_settings(configuration(model__hidden_size=8), "fit")


def test_findings_count_once_and_not_when_they_were_withdrawn():
    events = [finding("a"), finding("a", "error"), finding("b"), finding("b", kind="withdrawn"), {"kind": "finding"}]
    assert count_findings(events) == {"error": 1, "warning": 0}


def test_runs_of_other_tools_have_rows_too(tmp_path: Path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,val_loss\n1,3.0,3.5\n2,NaN,2.5\n3,2.0,2.75\n")
    row = record_row(open_record(path))
    assert (row["name"], row["status"], row["origin"], row["step"], row["loss"]) == (
        tmp_path.name,
        "CSV",
        "csv",
        3,
        2.0,
    )
    assert row["metric"] == {"name": "loss", "value": 2.5, "step": 2, "greater_is_better": False}
    assert row["findings"] is None and row["group"] is None
    json.dumps(row)


def test_odd_files_make_a_row_or_a_message(tmp_path: Path):
    run = make_run(tmp_path / "a", events=[{"step": "x", "kind": 3}, start(total_updates="many", num_parameters="<b>")])
    (run.path / "board.json").write_text("{")
    row = run_row(run)
    assert row["parameters"] is None and row["max_steps"] is None and "board.json" in row["notices"][0]
    os.unlink(run.metrics_file)
    assert run_row(run)["loss"] is None
    run.manifest.write_text("{")
    with pytest.raises(RunFolderError):
        run_row(RunFolder(run.path))


def test_lists_need_neither_torch_nor_numpy():
    code = "import sys, trainbook.report.run_row; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
