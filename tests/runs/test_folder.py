from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from trainbook.errors import RunFolderError
from trainbook.runs import Manifest, RunFolder, default_name, list_runs, name_of
from trainbook.runs.jsonl import JsonlWriter
from trainbook.runs.record import open_record


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return made(tmp_path, "a")


def made(runs_dir: Path, name: str) -> RunFolder:
    folder = RunFolder.create(runs_dir, name)
    folder.write_manifest(Manifest(name))
    return folder


def write(path: Path, *rows: dict) -> None:
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.append(row)


def row(step: int, segment: int, split: str = "train") -> dict:
    return {"step": step, "segment": segment, "split": split, "loss": 100.0 * segment + step}


def event(kind: str, step: int, segment: int) -> dict:
    return {"kind": kind, "step": step, "segment": segment}


def steps(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return [(row["step"], row["segment"]) for row in rows]


def test_a_made_folder_can_be_opened_by_path_and_by_name(run: RunFolder, tmp_path: Path):
    assert RunFolder.open(tmp_path / "a").name == "a"
    assert RunFolder.open("a", runs_dir=tmp_path).path == run.path


def test_a_folder_that_holds_a_run_is_not_made_again(run: RunFolder, tmp_path: Path):
    with pytest.raises(RunFolderError, match="already holds a run: resume it, or choose another name"):
        RunFolder.create(tmp_path, "a")


def test_what_a_process_killed_while_making_the_folder_left_is_taken_over(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").touch()
    (tmp_path / "a" / "lock").touch()
    made(tmp_path, "a")


@pytest.mark.parametrize("name", [".config.yaml.4711.tmp", ".manifest.json.4711.tmp", ".wandb-id.4711.tmp"])
def test_a_file_that_was_only_half_written_when_its_process_was_killed_blocks_no_name(tmp_path: Path, name: str):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").touch()
    (tmp_path / "a" / name).write_text("half of")
    folder = made(tmp_path, "a")
    folder.clear_leftovers()
    assert {path.name for path in folder.path.iterdir()} == {"lock", "manifest.json"}


def test_leftovers_are_cleared_away_and_nothing_else(run: RunFolder):
    kept = ["notes.tmp", ".notes.tmp", ".config.yaml.tmp", ".config.yaml.x.tmp", f".wandb-id.{os.getpid()}.tmp", "lock"]
    for name in [*kept, ".config.yaml.4711.tmp", ".quarantine.jsonl.4711.tmp", ".samples.jsonl.4711.tmp"]:
        (run.path / name).touch()
    for folder, name in ((run.tokenizer, "facts"), (run.network, "base"), (run.checkpoints, "facts")):
        folder.mkdir()
        (folder / f".{name}.json.4711.tmp").touch()
    run.clear_leftovers()
    left = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert left == {*kept, "manifest.json", "checkpoints/.facts.json.4711.tmp"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["precious.py"], "it holds precious.py;"),
        (["lock", "config.yaml", "notes.txt"], "it holds notes.txt;"),
        (["lock", ".notes.txt.4711.tmp"], "it holds .notes.txt.4711.tmp;"),
        (["config.yaml"], "it holds config.yaml;"),  # a run's folder has its lock before anything else
        (["tokenizer"], "it holds tokenizer;"),
    ],
)
def test_somebody_elses_folder_is_not_taken_over(tmp_path: Path, names: list[str], said: str):
    (tmp_path / "src").mkdir()
    for name in names:
        (tmp_path / "src" / name).write_text("precious")
    with pytest.raises(RunFolderError, match="already exists and is not a run folder: " + re.escape(said)):
        RunFolder.create(tmp_path, "src")
    assert {path.name for path in (tmp_path / "src").iterdir()} == set(names)


def test_what_is_not_a_runs_own_is_never_taken_away(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "a")
    for name in ("lock", "config.yaml", ".manifest.json.4711.tmp", "notes.txt"):
        (folder.path / name).touch()
    folder.tokenizer.mkdir()
    folder.discard()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]


def test_rows_without_a_manifest_are_not_taken_away(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "a")
    write(folder.metrics_file, row(1, 0))
    folder.discard()
    assert folder.metrics_file.exists()


def test_a_former_checkpoint_that_stepped_aside_is_one(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "a")
    (folder.checkpoints / ".writing-step-00000001-4711").mkdir(parents=True)
    assert not folder.has_checkpoints
    (folder.checkpoints / ".replaced-step-00000001-4711").mkdir()
    assert folder.has_checkpoints
    with pytest.raises(RunFolderError, match=r"holds checkpoints, but its manifest\.json is missing"):
        RunFolder.create(tmp_path, "a")


@pytest.mark.parametrize(
    "name",
    ["", "..", "a/b", "a\\b", ".x", "-x", " a", "a ", "a.", "a\nb", "a\u202eb", "a\u200bb", "a:b", "a$b"],
)
def test_a_name_must_be_one_plain_folder(tmp_path: Path, name: str):
    with pytest.raises(RunFolderError, match="a run's name must begin"):
        RunFolder.create(tmp_path, name)


@pytest.mark.parametrize("name", ["Übung eins", "опыт-2", "实验 3", "हिन्दी", "U\u0308bung"])
def test_a_name_may_have_letters_of_any_script_and_spaces(tmp_path: Path, name: str):
    folder = RunFolder.create(tmp_path, name)
    assert folder.name == unicodedata.normalize("NFC", name) and folder.path.is_dir()
    assert name_of(f"{name}.yaml") == folder.name.replace(" ", "-")


def test_a_place_where_no_folder_can_be_made_is_a_clear_error(tmp_path: Path):
    (tmp_path / "runs").touch()
    with pytest.raises(RunFolderError, match="cannot be created"):
        RunFolder.create(tmp_path / "runs", "a")


def test_a_misspelt_run_is_answered_with_the_nearest_one(tmp_path: Path):
    made(tmp_path, "gpt-tiny-2026-11-15-0207")
    made(tmp_path, "bert")
    with pytest.raises(RunFolderError, match=r"Did you mean .*/gpt-tiny-2026-11-15-0207\?"):
        RunFolder.open(tmp_path / "gpt-tny-2026-11-15-0207")
    with pytest.raises(RunFolderError, match=r"Did you mean .*/bert\?"):
        RunFolder.open("brt", runs_dir=tmp_path)


def test_an_empty_runs_folder_is_said_to_be_empty(tmp_path: Path):
    with pytest.raises(RunFolderError, match="holds no runs"):
        RunFolder.open(tmp_path / "a")


def test_a_folder_without_a_manifest_is_not_a_run(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(RunFolderError, match="is not a run folder: it has no manifest"):
        RunFolder.open(tmp_path / "a")


def test_where_a_run_is_asked_for_a_study_is_told_what_it_is(tmp_path: Path):
    study = tmp_path / "tuned"
    study.mkdir()
    for name in ("base.yaml", "study.db"):
        (study / name).touch()
    for opened in (RunFolder.find, RunFolder.open, open_record):
        with pytest.raises(RunFolderError, match=r"tuned is a study, not a run\. trainbook report .*tuned shows"):
            opened("tuned", tmp_path)


def test_a_log_of_another_tool_is_told_what_reads_it(tmp_path: Path):
    (tmp_path / "log.csv").write_text("step,loss\n1,2\n")
    (tmp_path / "out").mkdir()
    for name, why in (("log.csv", "is a file, but a run folder is needed"), ("out", "it has no manifest.json")):
        with pytest.raises(RunFolderError, match=f"{why}. Only trainbook doctor and trainbook compare read"):
            RunFolder.open(tmp_path / name)


def test_a_run_that_was_killed_before_its_first_step_is_to_be_started_again(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").touch()
    with pytest.raises(RunFolderError, match="ended before its first step: start it again"):
        RunFolder.open(tmp_path / "a")


def test_default_names_say_recipe_and_minute_and_are_unique(tmp_path: Path):
    now = datetime(2026, 11, 15, 2, 7)
    assert default_name("gpt-tiny", tmp_path, now) == "gpt-tiny-2026-11-15-0207"
    made(tmp_path, "gpt-tiny-2026-11-15-0207")
    assert default_name("gpt-tiny", tmp_path, now) == "gpt-tiny-2026-11-15-0207-2"
    made(tmp_path, "gpt-tiny-2026-11-15-0207-2")
    assert default_name("gpt-tiny", tmp_path, now) == "gpt-tiny-2026-11-15-0207-3"


def test_a_run_that_is_configured_by_another_one_is_named_after_it(tmp_path: Path):
    now = datetime(2026, 11, 15, 2, 7)
    for name, expected in (("mine", "mine"), ("gpt-tiny-2026-11-14-2359-2", "gpt-tiny")):
        file = made(tmp_path, name).path / "config.yaml"
        file.touch()
        assert default_name(str(file), tmp_path, now) == f"{expected}-2026-11-15-0207"
    study = tmp_path / "tune-mine"
    study.mkdir()
    for name in ("base.yaml", "best.yaml", "study.db"):
        (study / name).touch()
    assert default_name(str(study / "best.yaml"), tmp_path, now) == "tune-mine-2026-11-15-0207"
    (tmp_path / "config.yaml").touch()
    assert default_name(str(tmp_path / "config.yaml"), tmp_path, now) == "config-2026-11-15-0207"


def test_default_names_are_valid_names_for_any_recipe_file(tmp_path: Path):
    now = datetime(2026, 11, 15, 2, 7)
    assert default_name("my recipes/My run (2).yaml", tmp_path, now) == "My-run-2-2026-11-15-0207"
    made(tmp_path, default_name("…", tmp_path, now))


def test_runs_are_listed_by_name_and_other_folders_are_not(tmp_path: Path):
    made(tmp_path, "b")
    made(tmp_path, "a")
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").touch()
    assert [run.name for run in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "none") == []


def test_a_step_written_twice_counts_as_the_later_segment_has_it(run: RunFolder):
    write(run.metrics_file, row(1, 0), row(2, 0), row(2, 1), row(3, 1))
    assert steps(run.metrics()) == [(1, 0), (2, 1), (3, 1)]


def test_rows_beyond_the_step_that_a_resume_went_on_from_are_dropped(run: RunFolder):
    # The older segment logged each step, the later one every ten: 11 to 19 never come again, but did not happen.
    write(run.metrics_file, *(row(step, 0) for step in range(1, 20)), row(20, 1), row(30, 1))
    write(run.events_file, event("start", 0, 0), event("resume", 10, 1))
    assert steps(run.metrics()) == [(step, 0) for step in range(1, 11)] + [(20, 1), (30, 1)]


def test_without_an_event_the_first_row_of_the_later_segment_says_where_it_began(run: RunFolder):
    write(run.metrics_file, row(10, 0), row(20, 0), row(30, 0), row(20, 1))
    assert steps(run.metrics()) == [(10, 0), (20, 1)]


def test_a_later_segment_that_went_further_back_overrules_those_between(run: RunFolder):
    write(run.metrics_file, row(10, 0), row(15, 0), row(20, 0), row(20, 1), row(30, 1), row(10, 2), row(20, 2))
    assert steps(run.metrics()) == [(10, 2), (20, 2)]


def test_a_segment_that_began_anew_leaves_nothing_of_the_older_one(run: RunFolder):
    write(run.metrics_file, row(10, 0), row(20, 0))
    write(run.events_file, event("start", 0, 0), event("skip", 4, 0), event("start", 0, 1))
    assert run.metrics() == []
    assert [(e["kind"], e["segment"]) for e in run.events()] == [("start", 0), ("start", 1)]


def test_splits_are_told_apart(run: RunFolder):
    write(run.metrics_file, row(10, 0), row(10, 0, "eval"), row(10, 1, "eval"), row(20, 1))
    write(run.events_file, event("resume", 10, 1))
    assert steps(run.metrics("train")) == [(10, 0), (20, 1)]
    assert steps(run.metrics("eval")) == [(10, 1)]
    assert len(run.metrics()) == 3


def test_events_of_a_past_that_was_given_up_are_dropped_and_those_at_its_end_stay(run: RunFolder):
    write(run.metrics_file, row(10, 0), row(19, 0), row(20, 1))
    write(
        run.events_file,
        event("checkpoint", 10, 0),
        event("skip", 15, 0),
        event("resume", 10, 1),
        event("tracker", 0, 1),  # an event without a place of its own does not move where a segment began
        event("skip", 15, 1),
    )
    assert [(e["kind"], e["segment"]) for e in run.events()] == [
        ("checkpoint", 0),
        ("resume", 1),
        ("tracker", 1),
        ("skip", 1),
    ]


def test_raw_gives_everything(run: RunFolder):
    write(run.metrics_file, row(1, 0), row(2, 0), row(1, 1))
    write(run.events_file, event("skip", 2, 0), event("resume", 0, 1))
    assert steps(run.metrics(raw=True)) == [(1, 0), (2, 0), (1, 1)]
    assert len(run.events(raw=True)) == 2


def test_segments_are_counted_from_all_that_recorded_one(run: RunFolder):
    assert run.next_segment() == 0
    write(run.metrics_file, row(1, 0))
    assert run.next_segment() == 1
    write(run.events_file, event("resume", 0, 1))
    assert run.next_segment() == 2
    manifest = run.read_manifest()
    manifest.start_segment(2, 0)  # killed before its first row
    run.write_manifest(manifest)
    assert run.next_segment() == 3


def test_a_run_that_is_not_there_is_named_as_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    RunFolder.create("runs", "first").write_manifest(Manifest("first"))
    for asked in ("runs/firts", "firts"):
        with pytest.raises(RunFolderError, match=r"no run folder runs/firts\. Did you mean runs/first\?"):
            RunFolder.open(asked, "runs")
    with pytest.raises(RunFolderError, match=r"no run folder elsewhere/x\. elsewhere holds no runs"):
        RunFolder.open("elsewhere/x", "runs")


@pytest.mark.parametrize(
    ("file", "name"), [("metrics.jsonl", "step"), ("events.jsonl", "step"), ("events.jsonl", "kind")]
)
def test_a_row_that_lacks_what_every_row_has_is_skipped_and_named(run: RunFolder, file: str, name: str):
    whole = {"step": 1, "segment": 0, "kind": "start", "split": "train"}
    write(run.path / file, whole, {key: value for key, value in whole.items() if key != name})
    assert len(run.metrics()) == (file == "metrics.jsonl")
    assert run.notices() == [f"skipped an unreadable line: {run.path / file}:2: must have a {name}"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("name", ["step", "segment"])
@pytest.mark.parametrize("value", ["ten", 1.5, None, True])
def test_a_row_that_cannot_be_put_in_order_is_skipped_and_named(run: RunFolder, file: str, name: str, value: object):
    whole = {"step": 1, "segment": 0, "kind": "start", "split": "train"}
    write(run.path / file, whole, {**whole, name: value})
    assert len(run.metrics()) == (file == "metrics.jsonl")
    law = f"{name} must be a whole number, but got {value!r}"
    assert run.notices() == [f"skipped an unreadable line: {run.path / file}:2: {law}"]
