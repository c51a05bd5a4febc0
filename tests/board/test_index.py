"""The index finds runs and studies, reads only what has changed, and leads from ids to paths alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import add_rows, asking, get, make_run, refused, train_row
from tests.report.test_study_page import answers_of, write_study

from trainbook.board import index as index_module
from trainbook.board.finding_runs import Place, Places
from trainbook.board.index import Index, read_row
from trainbook.runs.labels import change_labels

LOG = {"log_history": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], "global_step": 2, "max_steps": 4}


def looked(*sources: Path) -> Index:
    index = Index(sources)
    index._looked = None
    index.look()
    return index


def look_again(index: Index) -> int:
    return index.look_again()


def test_runs_are_found_at_any_depth_and_logs_of_other_tools_beside_them(tmp_path: Path):
    make_run(tmp_path, "here")
    make_run(tmp_path / "team" / "week-3", "deep")
    (tmp_path / "output" / "checkpoint-2").mkdir(parents=True)
    (tmp_path / "output" / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(LOG))
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "metrics.csv").write_text("step,loss\n1,3\n2,2\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("nothing")
    rows = {row["id"]: row for row in looked(tmp_path).summaries()}
    assert rows.keys() == {"0~here", "0~team~week-3~deep", "0~output", "0~lightning"}
    assert rows["0~output"]["status"] == "Hugging Face trainer" and rows["0~output"]["loss"] == 1.5
    assert rows["0~lightning"]["spark"] == [3.0, 2.0] and rows["0~here"]["kind"] == "run"


def test_a_run_a_study_or_a_file_may_be_named_itself(tmp_path: Path):
    make_run(tmp_path, "alone")
    log = tmp_path / "steps.csv"
    log.write_text("step,loss\n1,3\n")
    study = write_study(tmp_path / "study", *answers_of("tune"))
    make_run(study / "trials", "trial-2")
    index = looked(tmp_path / "alone", log, study)
    assert {row["id"]: row["study"] for row in index.summaries()} == {
        "0": None,
        "1~steps.csv": None,
        "2~trials~trial-2": "2",
    }
    assert [place.id for place, _ in index.studies()] == ["2"]


def test_two_sources_of_one_name_are_told_apart(tmp_path: Path):
    for user in ("a", "b"):
        make_run(tmp_path / user / "runs")
    index = looked(tmp_path / "a" / "runs", tmp_path / "b" / "runs")
    assert [row["source"] for row in index.summaries()] == [str(tmp_path / "a" / "runs"), str(tmp_path / "b" / "runs")]
    assert [row["id"] for row in index.summaries()] == ["0~run", "1~run"]


def test_links_are_not_followed_and_what_lies_in_a_run_is_no_run(tmp_path: Path):
    run = make_run(tmp_path / "shown")
    make_run(run.path, "nested")
    make_run(tmp_path, "elsewhere")
    (tmp_path / "shown" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "shown" / "round").symlink_to(tmp_path / "shown")
    assert [row["id"] for row in looked(tmp_path / "shown").summaries()] == ["0~run"]


def test_names_that_have_letters_of_ids_or_are_no_utf8_are_told_apart(tmp_path: Path):
    make_run(tmp_path / "a", "b")
    make_run(tmp_path, "a~b")
    os.makedirs(os.fsencode(tmp_path) + b"/\xff")
    make_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), "x")
    with asking(tmp_path) as client:
        ids = [row["id"] for row in get(client, "/api/runs")["runs"]]
        assert sorted(ids) == ["0~!FF~x", "0~a!7Eb", "0~a~b"]
        for id in ids:
            assert get(client, f"/api/runs/{id}")["summary"]["id"] == id


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs = [make_run(tmp_path, f"run-{number}") for number in range(5)]
    index = looked(tmp_path)
    before = index.look()
    read: list[str] = []
    real = index_module.RunRow.row
    monkeypatch.setattr(index_module.RunRow, "row", lambda row: read.append(row.folder.name) or real(row))
    assert look_again(index) == before and read == []
    add_rows(runs[3], [train_row(4, 0.5)])
    after = look_again(index)
    assert after > before and read == ["run-3"]
    changes = index.since(before)
    assert (changes.changed, changes.removed) == (["0~run-3"], [])
    found = index.summary("0~run-3")
    assert found is not None and (found["step"], found["loss"]) == (4, 0.5)


def test_a_new_run_and_a_removed_one_are_noticed(tmp_path: Path):
    first = make_run(tmp_path, "first")
    index = looked(tmp_path)
    stamp = index.look()
    make_run(tmp_path, "second")
    for path in sorted(first.path.iterdir()):
        path.unlink()
    first.path.rmdir()
    look_again(index)
    changes = index.since(stamp)
    assert (changes.changed, changes.removed) == (["0~second"], ["0~first"])
    assert index.place("0~first") is None


def test_labels_that_the_command_line_changes_are_shown(tmp_path: Path):
    run = make_run(tmp_path)
    index = looked(tmp_path)
    change_labels(run.path, add=["good"], note="keep", archived=True)
    look_again(index)
    row = index.summary("0~run")
    assert row is not None and (row["tags"], row["note"], row["archived"]) == (["good"], "keep", True)


def test_archived_runs_are_left_out_unless_they_are_asked_for(tmp_path: Path):
    change_labels(make_run(tmp_path, "old").path, archived=True)
    make_run(tmp_path, "new")
    with asking(tmp_path) as client:
        assert [row["name"] for row in get(client, "/api/runs")["runs"]] == ["new"]
        assert len(get(client, "/api/runs", archived="1")["runs"]) == 2


def test_a_query_filters_sorts_and_tells_its_mistakes(tmp_path: Path):
    for name, rate in (("low", 1e-4), ("high", 1e-2)):
        make_run(tmp_path, name, losses=[rate * 100], settings={"optimizer.learning_rate": rate})
    with asking(tmp_path) as client:
        found = get(client, "/api/runs", query="rate>1e-3 status:finished")
        assert ([row["name"] for row in found["runs"]], found["total"]) == (["high"], 2)
        assert [row["name"] for row in get(client, "/api/runs", sort="-loss")["runs"]] == ["high", "low"]
        status, message = refused(client, "/api/runs", query="rat>1e-3")
        assert status == 400 and "Did you mean 'rate'?" in message


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema_version": 1, "name": 3}', '{"schema_version": 999}', "\0\0"]
)
def test_a_damaged_manifest_hides_no_other_run(tmp_path: Path, content: str):
    make_run(tmp_path, "good")
    make_run(tmp_path, "bad").manifest.write_text(content)
    with asking(tmp_path) as client:
        rows = {row["name"]: row for row in get(client, "/api/runs")["runs"]}
        assert rows["good"]["status"] == "finished"
        assert rows["bad"]["status"] == "damaged" and rows["bad"]["problem"]
        client.get("/api/runs/0~bad")  # whatever the answer is, the board goes on
        assert get(client, "/api/runs/0~good")["summary"]["name"] == "good"


def test_a_running_run_whose_process_is_gone_is_abandoned_without_a_change_of_its_files(tmp_path: Path):
    run = make_run(tmp_path, status="running")
    holder = {"pid": os.getpid(), "host": os.uname().nodename}
    run.lock_file.write_text(json.dumps(holder))
    index = looked(tmp_path)
    found = index.summary("0~run")
    assert found is not None and found["status"] == "running"
    entry = index._entries["0~run"]
    run.lock_file.write_text(json.dumps({**holder, "pid": 2**22 + 1}))
    entry.stamp = entry.place.stamp()  # as if nothing had been written
    look_again(index)
    found = index.summary("0~run")
    assert found is not None and found["status"] == "abandoned"


def test_a_long_file_is_shown_from_its_end_first_and_as_a_whole_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_module, "LONG", 1_000)
    monkeypatch.setattr(index_module, "TAIL_BYTES", 500)
    run = make_run(tmp_path, losses=[float(step) for step in range(1000, 0, -1)], evaluations={500: 0.25})
    later: list[Place] = []
    index = Index([tmp_path], later.append)
    index.look()
    row = index.summary("0~run")
    assert row is not None and row["loss"] == 1.0 and row["spark"] is None
    assert [place.id for place in later] == ["0~run"]
    add_rows(run, [train_row(1001, 0.5)])  # while it is read elsewhere
    whole = read_row(str(run.path))
    assert whole is not None
    index.install("0~run", whole)
    row = index.summary("0~run")
    assert row is not None and row["metric"]["value"] == 0.25 and row["loss"] == 0.5
    assert max(row["spark"]) == 1000.0 and min(row["spark"]) == 0.5


def test_folders_that_have_not_changed_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run(tmp_path / "a")
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "run"):
        os.utime(path, (1e9, 1e9))
    places = Places(tmp_path, 0)
    first = places.look()

    def fail(path: Any) -> Any:
        raise AssertionError(f"{path} was listed again")

    monkeypatch.setattr(os, "scandir", fail)
    assert places.look() == first


def test_what_was_read_is_remembered_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = (make_run(tmp_path / "runs", name, losses=[3.0, float("nan")]) for name in ("first", "second"))
    index = Index([tmp_path / "runs"], remembers=True)
    index.look()
    index.note_verdict("0~first", {"error": 1, "warning": 2}, ())
    index.remember()
    add_rows(second, [train_row(3, 0.5)])
    read: list[str] = []
    real = index_module.RunRow.row
    monkeypatch.setattr(index_module.RunRow, "row", lambda row: read.append(row.folder.name) or real(row))
    again = Index([first.path.parent], remembers=True)  # whichever number the source has
    again.look()
    assert read == ["second"]
    row = again.summary("0~first")
    assert row is not None and row["findings"] == {"error": 1, "warning": 2}
    assert row["spark"] == index.summary("0~first")["spark"]  # type: ignore[index]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"rows": 3}', '{"rows": {"~run": [[3], {}]}}', '{"rows": {"~run": 1}}']
)
def test_a_damaged_memory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_run(tmp_path / "runs")
    index = Index([tmp_path / "runs"], remembers=True)
    index.look()
    index.remember()
    (file,) = (tmp_path / "cache" / "trainbook" / "board").iterdir()
    file.write_text(content)
    again = Index([tmp_path / "runs"], remembers=True)
    again.look()
    assert again.summary("0~run")["loss"] == 1.0  # type: ignore[index]


def test_a_source_is_named_as_seen_from_where_the_board_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run(tmp_path / "work" / "runs", "first", [2.0])
    monkeypatch.chdir(tmp_path / "work")
    places = {"runs": "runs/first", ".": "runs/first", str(tmp_path / "work" / "runs"): "runs/first"}
    for given, path in places.items():
        index = Index([Path(given)])
        index.look()
        assert [row["path"] for row in index.summaries()] == [path]
    monkeypatch.chdir(tmp_path / "work" / "runs" / "first")
    for source, name in ((Path("."), "first"), (tmp_path, "first")):
        index = Index([source])
        index.look()
        (row,) = index.summaries()
        assert row["path"] == str(tmp_path / "work" / "runs" / "first") and row["name"] == name
