"""The recorded runs of `trainbook board --demo`: what is told of them, and that nothing of a machine is in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import trainbook
from trainbook.board.sources import demo_runs
from trainbook.doctor import diagnose
from trainbook.knobs import load
from trainbook.report.card import next_commands
from trainbook.report.compare import compare
from trainbook.report.facts import RunFacts
from trainbook.report.notebook import OpenedRun
from trainbook.report.run_row import run_row
from trainbook.report.runs_table import list_rows
from trainbook.report.study_page import study_page
from trainbook.runs import RunFolder, list_runs
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

DEMO = Path(trainbook.__file__).parent / "board" / "demo"
STUDY = DEMO / "tune-small"


@cache
def record(name: str) -> RunRecord:
    return open_record(DEMO / name)


def test_it_is_small_and_has_no_checkpoints():
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 600_000
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".yaml", ".md"} and not any(
        map(Path.is_symlink, files)
    )


def test_commands_that_the_board_shows_find_their_files_also_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with demo_runs() as folder:
        commands = next_commands(RunFacts(RunFolder(folder / "spike-healed")))
        (folder / "healthy/board.json").unlink()
    [shown] = [command for command, _ in commands if command.endswith("config.yaml")]
    assert load(Path(shown.split()[2])).config.training.max_steps == 200
    assert not [command for command, _ in commands if "generate" in command or "export" in command]  # it has no weights
    with demo_runs() as folder:
        assert (folder / "healthy/board.json").is_file()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with demo_runs() as folder:
        assert (folder / "healthy/manifest.json").is_file()
    assert not folder.exists()


def test_nothing_of_the_machine_is_in_it():
    for path in (path for path in DEMO.rglob("*") if path.is_file()):
        content = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|Users|tmp|work|private)/", content), path
    for run in [*list_runs(DEMO), *list_runs(STUDY / "trials")]:
        manifest = run.read_manifest()
        assert manifest.hardware["host"] == "" and manifest.working_directory == ""
        assert manifest.command[0] == "trainbook" and "--worker" not in manifest.command


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("healthy", set()),
        ("tickets", set()),
        ("spike-healed", {"not-finite", "spikes"}),
        ("diverged", {"rate-for-the-case"}),
        ("overfitting", {"many-epochs"}),
    ],
)
def test_the_doctor_says_what_each_run_shows(name: str, causes: set[str]):
    spoken = [finding for finding in diagnose(record(name)).findings if finding.severity != "info"]
    found = {finding.rule for finding in spoken}
    assert causes <= found if causes else not found, found


def test_the_runs_show_what_their_notes_say():
    rows = {row["name"]: row for row in list_rows(DEMO).rows}
    assert {name: row["status"] for name, row in rows.items() if row["status"] != "finished"} == {
        "diverged": "diverged"
    }
    assert not any(row["notices"] for row in rows.values() if "notices" in row)
    assert rows["spike-healed"]["guard"] == 3 and (DEMO / "spike-healed/quarantine.jsonl").is_file()
    assert rows["diverged"]["loss"] != rows["diverged"]["loss"]  # NaN
    losses = record("overfitting").series("loss", "eval")[1]
    assert losses[-1] > 1.3 * min(losses)
    assert rows["tickets"]["metric"]["value"] > 0.85 and (DEMO / "tickets/classes.jsonl").is_file()
    assert (DEMO / "healthy/generations.jsonl").is_file() and (DEMO / "healthy/samples.jsonl").is_file()
    assert all(row["tags"] or row["note"] for row in rows.values())


def test_two_seeds_are_one_setting():
    one, two = (run_row(RunFolder(DEMO / f"lower-rate-seed-{seed}")) for seed in (1, 2))
    assert one["group"] == two["group"] is not None and one["seed"] != two["seed"]
    comparison = compare([record("healthy"), record("lower-rate-seed-1"), record("lower-rate-seed-2")])
    assert [len(group.sides) for group in comparison.groups] == [1, 2]


def test_the_study_has_its_answer_and_its_trials():
    page = study_page(STUDY, with_charts=False)
    assert page.status == "complete" and page.headline.startswith("Best: trial ")
    assert len(list_rows(STUDY).rows) >= 10 and diagnose(open_record(STUDY / "trials/trial-0001")).num_checked > 10


def test_a_run_of_it_shows_itself():
    run = trainbook.open_run(DEMO / "healthy")
    assert isinstance(run, OpenedRun) and "healthy" in run._repr_html_()
