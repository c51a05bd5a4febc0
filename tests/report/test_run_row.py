from __future__ import annotations

import io
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
from trainbook.report.run_row import RunRow, changed_settings, count_findings, record_row, run_row
from trainbook.report.runs_table import _findings, list_rows, print_rows
from trainbook.report.seed_groups import group_name, group_names, group_of, repeats_of
from trainbook.runs import RunFolder, list_runs
from trainbook.runs.labels import change_labels
from trainbook.runs.record import open_record
from trainbook.terminal import new_console
from trainbook.tracking.console import Eta


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
    assert row["spark"] == [3.0, 2.0, 1.0] and row["spark_steps"] == [1, 2, 3] and row["notices"] == []
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


@pytest.mark.parametrize(
    ("status", "recipe", "step", "applied", "skipped", "total", "progress"),
    [
        pytest.param("failed", "gpt-tiny", 10, 0, 70, 300, 0.0, id="all skipped, and rolled back again and again"),
        pytest.param("interrupted", "gpt-tiny", 100, 97, 23, 300, 97 / 300, id="twenty rolled back"),
        pytest.param("running", "gpt-tiny", 100, 97, 23, 303, 97 / 300, id="three are made up for"),
        pytest.param("finished", "gpt-tiny", 303, 300, 43, 303, 1.0, id="three were made up for"),
        pytest.param("finished", "watch", 300, 289, 11, 300, 1.0, id="a loop that repeats nothing"),
        pytest.param("running", "watch", 150, 139, 11, 300, 0.5, id="a loop that will repeat nothing"),
    ],
)
def test_only_skipped_updates_that_are_made_up_for_are_further_steps(
    tmp_path: Path, status, recipe, step, applied, skipped, total, progress
):
    run = make_run(tmp_path / "a", losses=(), status=status, recipe=recipe, events=[start(total_updates=300)])
    counts = {"applied_updates": applied, "skipped_updates": skipped}
    write_lines(run.metrics_file, [{"step": step, "segment": 0, "split": "train", "loss": 1.0, **counts}])
    with run.lock():
        row = run_row(run)
    assert (row["total_steps"], row["progress"]) == (total, progress)


def test_a_run_that_ended_without_a_finite_training_loss_has_diverged(tmp_path: Path):
    for name, losses, status in (
        ("nan", (3.0, math.nan), "finished"),
        ("infinite", (3.0, math.inf), "finished"),
        ("recovered", (math.nan, 3.0), "finished"),
        ("going-on", (3.0, math.nan), "failed"),
    ):
        make_run(tmp_path / name, losses=losses, status=status)
    found = {run.name: run_row(run)["status"] for run in list_runs(tmp_path)}
    assert found == {"nan": "diverged", "infinite": "diverged", "recovered": "finished", "going-on": "failed"}
    told = [row["name"] for row in list_rows(tmp_path, "status:diverged").rows]
    assert sorted(told) == ["infinite", "nan"]


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


def test_without_an_evaluation_the_row_says_so_instead_of_a_training_loss(tmp_path: Path):
    run = make_run(tmp_path / "a", losses=[36.0, 147.0, 500.0], events=[start()])
    assert run_row(run)["metric"] is None and run_row(run)["metric_note"] == "no evaluation"
    going = make_run(tmp_path / "b", events=[start()], status="running")
    with going.lock():
        assert run_row(going)["metric_note"] == "no evaluation yet"
    back = make_run(
        tmp_path / "c",
        evaluations={3: {"loss": 2.0}},
        events=[start(), {"step": 1, "segment": 1, "kind": "rollback", "noticed": 3}],
    )
    assert run_row(back)["metric_note"] == "all evaluations were rolled back"
    broken = make_run(tmp_path / "d", evaluations={3: {"loss": math.inf}}, events=[start()])
    assert run_row(broken)["metric_note"] == "no finite evaluation"
    judged = make_run(tmp_path / "e", evaluations={3: {"loss": 2.0}}, events=[start()])
    assert run_row(judged)["metric_note"] == ""


def test_runs_with_injected_faults_are_a_group_of_their_own(tmp_path: Path):
    settings = {"optimizer__learning_rate": 1e-2}
    clean, other = (make_run(tmp_path / f"clean-{seed}", seed=seed, settings=settings) for seed in (1, 2))
    faulty = make_run(tmp_path / "faulty", seed=3, settings=settings, injected_faults=["random-labels@60"])
    rows = [run_row(run) for run in (clean, other, faulty)]
    assert rows[0]["group"] == rows[1]["group"] != rows[2]["group"]
    assert [row["faults"] for row in rows] == [[], [], ["random-labels@60"]]


def test_of_two_runs_with_one_seed_the_first_that_finished_counts():
    def row(name: str, seed: int, status: str, group: str | None = "g") -> dict[str, Any]:
        return {"id": name, "name": name, "seed": seed, "status": status, "group": group}

    rows = [
        row("failed", 1, "failed"),
        row("first", 1, "finished"),
        row("later", 1, "finished"),
        row("other", 2, "running"),
        row("alone", 1, "finished", None),
    ]
    repeats = repeats_of(rows)
    assert repeats == {"failed": "first", "later": "first"}
    assert group_names(rows, repeats) == {"g": "first and 1 more seed"}
    assert group_names(rows[:3], repeats) == {}
    assert group_name(["c", "a", "b"]) == group_name(["b", "c", "a"]) == "a and 2 more seeds"


def test_findings_are_unknown_where_no_verdict_is_recorded(tmp_path: Path):
    failed = make_run(tmp_path / "a", status="failed", events=[start()])
    assert run_row(failed)["findings"] is None
    assert _findings(run_row(failed)) == "not judged"
    assert run_row(make_run(tmp_path / "b", events=[start()]))["findings"] == {"error": 0, "warning": 0}
    told = make_run(tmp_path / "c", status="failed", events=[start(), finding("x")])
    assert run_row(told)["findings"] == {"error": 0, "warning": 1}
    assert _findings(run_row(told)) == "1 warning"


def test_time_left_is_estimated_as_on_the_terminal(tmp_path: Path):
    run = make_run(tmp_path / "a", status="running", events=[start(total_updates=100)])
    times = {
        segment: [1.7e9 + 1e5 * segment + 10.0 * step + 60.0 * (step // 5) for step in range(30)] for segment in (0, 2)
    }
    rows = [
        {
            "step": step,
            "segment": segment,
            "split": "train",
            "time": times[segment][step],
            "step_seconds": 1.0,
            "loss": 1.0,
        }
        for segment, first, end in ((0, 1, 10), (2, 10, 29))
        for step in range(first, end)
    ]
    write_lines(run.metrics_file, rows)
    write_lines(run.events_file, [start(total_updates=100), {"step": 9, "segment": 1, "kind": "resume"}])
    terminal = Eta()
    expected = [terminal.seconds_left(row, 100) for row in rows if row["segment"] == 2][-1]
    with run.lock():
        assert expected is not None and expected > 71 * 10.0  # seconds of a step without the others
        assert run_row(run)["seconds_left"] == pytest.approx(expected)


def test_a_run_stands_where_it_was_saved_and_not_at_the_last_row(tmp_path: Path):
    events = [start(), {"step": 5, "segment": 0, "kind": "interrupt"}, {"step": 5, "segment": 0, "kind": "checkpoint"}]
    row = run_row(make_run(tmp_path / "a", status="interrupted", events=events))
    assert row["step"] == 5 and row["progress"] == 0.5
    back = {"step": 2, "segment": 1, "kind": "rollback", "noticed": 5}
    assert run_row(make_run(tmp_path / "b", losses=[3.0, 2.0], events=[*events, back]))["step"] == 2


def test_metrics_that_are_missing_or_damaged_are_a_notice(tmp_path: Path):
    run = make_run(tmp_path / "a", events=[start()])
    run.metrics_file.unlink()
    row = run_row(run)
    assert row["notices"] == [f"{run.metrics_file} is missing: what this run logged is lost, and it cannot be judged"]
    assert row["findings"] is None
    damaged = make_run(tmp_path / "b", events=[start()])
    with open(damaged.metrics_file, "ab") as file:
        file.write(
            b'"step": 4}\n{"step": 5, "se\n' + bytes(20) + b'\n{"step": 6, "segment": 0, "split": "train"}\n{"st'
        )
    with open(damaged.events_file, "ab") as file:
        file.write(b"nothing\n")
    assert run_row(damaged)["notices"] == [
        f"{damaged.metrics_file}: 2 unreadable lines",
        f"{damaged.events_file}: 1 unreadable line",
    ]
    begun = make_run(tmp_path / "c", status="failed", events=[start()])
    begun.metrics_file.unlink()
    assert run_row(begun)["notices"] == []  # it failed before its first step


def test_a_column_names_which_loss_it_has_and_only_columns_that_fit_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def shown(query: str) -> str:
        screen = io.StringIO()
        print_rows(list_rows(tmp_path, query), new_console(file=screen))
        return screen.getvalue()

    make_run(tmp_path / "first", losses=(3.0, 0.1), evaluations={2: {"loss": 0.5, "best": True}}, events=[start()])
    monkeypatch.delenv("COLUMNS", raising=False)
    head = shown("loss<0.2 eval_loss<1 rate>1e-9").splitlines()[1]
    names = ["best validation", "newest training loss", "newest validation loss", "learning_rate"]
    assert [name for name in names if name in head] == names
    monkeypatch.setenv("COLUMNS", "40")
    narrow = shown("loss<0.2").splitlines()
    assert max(map(len, narrow)) <= 40 and "Left out on this narrow terminal" in " ".join(narrow)
