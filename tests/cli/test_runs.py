from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from tests.run_folders import make_run

from trainbook.runs.labels import read_labels


@pytest.fixture
def runs(terminal, monkeypatch):
    """Three runs: `a` is good, `b` failed, `c` is archived. Tables have room for all columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    losses = {2: {"loss": 2.5, "best": True}}
    make_run(Path("runs/a"), evaluations=losses, settings={"optimizer__learning_rate": 5e-3})
    make_run(Path("runs/b"), status="failed", created="2026-07-22T08:00:00+00:00")
    make_run(Path("runs/c"))
    terminal("runs", "archive", "c")
    return terminal


def names(answer) -> list[str]:
    return [row["name"] for row in answer["runs"]]


def test_runs_are_listed_the_newest_first_and_archived_ones_on_request(runs):
    told = runs("runs").stdout
    assert told.index(" b ") < told.index(" a ") and " c " not in told
    assert "loss 2.5000" in told and "no evaluation" in told and "1 archived: list it with --all." in told
    assert names(runs.json("runs", "--json")) == ["b", "a"]
    assert names(runs.json("runs", "--all", "--sort", "name", "--json")) == ["a", "b", "c"]
    assert names(runs.json("runs", "list", "runs", "--json")) == ["b", "a"]


def test_a_filter_and_a_field_to_sort_by_have_a_column(runs):
    assert names(runs.json("runs", "--filter", "rate>1e-3", "--json")) == ["a"]
    assert names(runs.json("runs", "--filter", "-status:failed", "--json")) == ["a"]
    told = runs("runs", "--sort", "lr").stdout
    assert "learning_rate" in told and "0.005" in told
    assert runs("runs", "--filter", "nothing").stdout == "No run in runs matches the filter.\n"
    assert "All runs that match are archived (1)." in runs("runs", "--filter", "name=c").stdout


def test_runs_are_tagged_noted_and_archived(runs):
    assert runs("runs", "tag", "a", "runs/b", "paper 2").stdout == "a: tags paper 2\nb: tags paper 2\n"
    assert names(runs.json("runs", "--filter", 'tag:"paper 2"', "--json")) == ["b", "a"]
    runs("runs", "note", "a", "try\nagain")
    answer = runs.json("runs", "untag", "a", "paper 2", "--json")
    assert answer == {"runs": [{"name": "a", "path": "runs/a", "tags": [], "note": "try\nagain", "archived": False}]}
    assert "try again" in runs("runs").stdout
    assert runs("runs", "unarchive", "c").stdout == "c: no tags\n"
    assert names(runs.json("runs", "--json", "--sort", "name")) == ["a", "b", "c"]


def test_a_mistake_in_one_name_changes_nothing(runs):
    assert "Did you mean runs/a?" not in runs("runs", "tag", "a", "nope", "good", code=2).stderr
    assert read_labels(Path("runs/a")).labels.tags == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "there is no folder nowhere."),
        (("rusn",), "Did you mean runs?"),
        (("tga", "a", "x"), ""),
        (("tga",), "Did you mean trainbook runs tag?"),
        (("runs/a",), "runs/a is a run. To see it: trainbook report runs/a"),
        (("--filter", "rat>1"), "query, character 1, 'rat>1': there is no field 'rat'. Did you mean 'rate'?"),
        (("--sort", "los"), "sort: there is no field 'los'. Did you mean 'loss'?"),
        (("tag", "a"), "Missing argument"),
        (("tag", "a", "x,y"), "without commas"),
        (("note", "aa", "x"), "there is no run folder runs/aa."),
        (("delete", "runs"), "runs is not a run folder"),
        (("delete", "a", "--json"), "--json needs --yes"),
        (("--bogus",), "No such option"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(runs, arguments: tuple[str, ...], message: str):
    told = runs("runs", *arguments, code=2).stderr
    assert message in " ".join(told.split()) and "Traceback" not in told
    assert sorted(os.listdir("runs")) == ["a", "b", "c"]


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from trainbook.cli import runs as verb

    monkeypatch.setattr(verb, "read_answer", io.StringIO(text).readline)


def test_a_run_is_deleted_when_its_name_is_typed(runs, monkeypatch: pytest.MonkeyPatch):
    answering(monkeypatch, "x\nb\n")
    told = runs("runs", "delete", "a", "b", code=2).stdout
    assert "Type its name (a) to delete it: " in told and "runs/a is kept: that is not its name." in told
    assert "runs/b is deleted." in told and sorted(os.listdir("runs")) == ["a", "c"]
    answering(monkeypatch, "")
    assert "to delete without being asked, add --yes" in runs("runs", "delete", "a", code=2).stderr
    assert runs.json("runs", "delete", "a", "c", "--yes", "--json") == {"deleted": ["runs/a", "runs/c"]}
    assert os.listdir("runs") == []
    assert runs("runs").stdout == "runs holds no runs.\n"


def test_a_running_run_is_not_deleted(runs):
    from trainbook.runs import RunFolder

    with RunFolder("runs/a").lock():
        assert "is in use by process" in runs("runs", "delete", "b", "a", "--yes", code=2).stderr
    assert sorted(os.listdir("runs")) == ["a", "b", "c"]


def test_the_runs_of_a_study_are_listed_by_its_folder(runs):
    make_run(Path("runs/tuned/trials/trial-1"))
    Path("runs/tuned/base.yaml").touch()
    assert "Studies: tuned. To list the runs of one: trainbook runs runs/tuned" in runs("runs").stdout
    assert names(runs.json("runs", "runs/tuned", "--json")) == ["trial-1"]
    assert runs.json("runs", "--json")["studies"] == ["runs/tuned"]


def test_damaged_and_hostile_runs_are_told_and_shown_as_text(runs):
    make_run(Path("runs/\x1b[31mred<b>"), status="failed", settings={"data__source": "\x1b]0;x\x07"})
    Path("runs/b/manifest.json").write_text("{")
    Path("runs/a/board.json").write_text("[")
    answer = runs("runs", "--filter", "data.source:x", "--sort", "data.source")
    assert "\x1b" not in answer.output and "\\u001b[31mred<b>" in answer.stdout
    assert answer.stderr.count("notice: ") == 2 and "runs/b/manifest.json must be JSON" in answer.stderr
    assert runs("runs", "tag", "runs/\x1b[31mred<b>", "x").stdout.startswith("\\u001b[31mred<b>: tags x")


def test_every_action_has_help_and_torch_stays_unloaded(runs):
    import subprocess

    for action in ("list", "tag", "untag", "note", "archive", "unarchive", "delete"):
        assert action in runs("runs", "--help").stdout and "Usage" in runs("runs", action, "--help").stdout
    code = (
        "import sys; from trainbook.cli.main import app; app(['runs', '--json'], standalone_mode=False); "
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_has_the_options_of_the_list(terminal):
    told = terminal("runs", "--help").stdout
    assert all(option in told for option in ("--filter", "--sort", "--all", "--json", "--help", "delete"))
    assert terminal("runs", "tag", "--help").stdout.count("--filter") == 0
