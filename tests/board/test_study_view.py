"""Studies: what their charts are drawn from, and damaged or unfinished ones."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import asking, get, make_run, refused
from tests.report.test_run_page import EVIL
from tests.report.test_study_page import RATE, TUNING, answers_of, trial, write_ledger, write_study


def view_of(root: Path, name: str = "study") -> Any:
    with asking(root) as client:
        return get(client, f"/api/studies/0~{name}")


def test_a_tuning_study_has_trials_axes_rates_and_its_conclusion(tmp_path: Path):
    folder = write_study(tmp_path / "study", *answers_of("tune"))
    make_run(folder / "trials", "trial-2")
    view = view_of(tmp_path)
    assert view["kind"] == "tune" and view["conclusion"][0] == "Best: trial 2 | plain."
    assert [each["loss"] for each in view["trials"]] == [3.0, 2.5, 2.0, None]
    assert view["trials"][0]["values"][RATE] == 2e-3  # the base, at its own values
    assert view["best_so_far"] == [{"number": 0, "best": 3.0}, {"number": 1, "best": 2.5}, {"number": 2, "best": 2.0}]
    assert view["axes"][0] == {"path": RATE, "scale": "log", "low": 1e-4, "high": 1e-2, "choices": []}
    assert view["rate_curves"][0]["points"] == [[2e-3, 2.5], [2e-3, 3.0], [3e-3, 2.0]]
    assert view["recommended"] == 2 and "learning_rate: 0.003" in view["recipe"]
    assert view["metric"] == {"name": "loss", "greater_is_better": False}
    assert not [b for section in view["sections"] for b in section["blocks"] if b["kind"] == "chart"]
    assert not [section for section in view["sections"] if section["title"].startswith("Recipe")]  # which is told above


def test_repetitions_of_the_base_have_its_values(tmp_path: Path):
    answers, recipe = answers_of("tune")
    answers["study.json"]["trials"].append(trial(4, 3.1, "repeat", of=0, values={}))
    write_study(tmp_path / "study", answers, recipe)
    assert view_of(tmp_path)["trials"][4]["values"] == {RATE: 2e-3, "optimizer.beta1": 0.9}


def test_trials_lead_to_their_runs(tmp_path: Path):
    answers, recipe = answers_of("tune")
    answers["study.json"]["trials"][2]["run"] = "somewhere/else/trials/trial-2"
    answers["study.json"]["importance"] = {"b": 0.2, "a": 0.8}
    folder = write_study(tmp_path / "study", answers, recipe)
    make_run(folder / "trials", "trial-2")
    view = view_of(tmp_path)
    assert [each["id"] for each in view["trials"]] == [None, None, "0~study~trials~trial-2", None]
    assert [each["path"] for each in view["importance"]["shares"]] == ["a", "b"]


def test_an_ablation_has_a_forest_of_intervals(tmp_path: Path):
    write_study(tmp_path / "study", *answers_of("ablate"))
    view = view_of(tmp_path)
    assert view["forest"]["unit"] == "%" and view["forest"]["epsilon"] == 1.0
    row = view["forest"]["rows"][0]
    assert [row[name] for name in ("difference", "low", "high")] == pytest.approx([-5.0, -8.0, -2.0])
    assert view["forest"]["rows"][1]["difference"] is None
    assert view["rate_curves"][0] == {"name": "control", "points": [[0.001, 3.1], [0.002, 3.0]]}


@pytest.mark.parametrize("kind", ["transfer", "proxy"])
def test_a_transfer_study_has_its_curves_by_size(tmp_path: Path, kind: str):
    write_study(tmp_path / "study", *answers_of(kind))
    view = view_of(tmp_path)
    assert view["kind"] == "transfer" and view["conclusion"]
    if kind == "transfer":
        assert view["rate_curves"][0]["name"] == "mup, width 16" and view["rate_curves"][0]["best_rate"] == 0.01
        assert view["rate_curves"][1]["points"] == [[0.001, 3.0]]
    else:
        assert len(view["trials"]) == 4


def test_an_unfinished_study_is_told_from_its_runs(tmp_path: Path):
    folder = tmp_path / "study"
    for number, rate in enumerate((1e-3, 1e-2)):
        settings = {"optimizer.learning_rate": rate, "optimizer.type": ("adamw", "lion")[number]}
        make_run(folder / "trials", f"trial-{number}", evaluations={3: 2.0 + number}, settings=settings)
    (folder / "base.yaml").write_text("")
    view = view_of(tmp_path)
    assert view["headline"] == "The study was stopped before it had an answer: 2 of 2 runs started so far have ended."
    assert [each["loss"] for each in view["trials"]] == [2.0, 3.0]
    assert {axis["path"]: axis["scale"] for axis in view["axes"]} == {RATE: "log", "optimizer.type": "choice"}
    assert view["summary"]["status"] == "unfinished" and view["summary"]["best"] == {"name": "loss", "value": 2.0}


def test_a_running_study_is_told_as_running_with_its_kind(tmp_path: Path):
    folder = tmp_path / "study"
    make_run(folder / "trials", "trial-0", evaluations={3: 2.0})
    (folder / "base.yaml").write_text("")
    lent = ("search", "running", time.time() + 60)
    write_ledger(folder, TUNING, ("base", "done", None), lent, trials=8)
    with asking(tmp_path) as client:
        study = get(client, "/api/runs")["studies"][0]
        assert (study["kind"], study["status"], study["trials"]) == ("tune", "running", 1)
        assert study["headline"] == "The study is running: 1 of 8 trials are done."
        assert study["progress"] == {"ended": 1, "running": 0, "planned": 8, "budget": "8 trials"}
        view = get(client, "/api/studies/0~study")
        assert view["kind"] == "tune" and view["headline"] == study["headline"]
        assert "run its command again" not in str(view["sections"])
        with closing(sqlite3.connect(folder / "study.db")) as database, database:
            database.execute("update trainbook_trials set state = 'waiting'")
        assert get(client, "/api/runs")["studies"][0]["status"] == "unfinished"


def test_studies_are_in_the_list_beside_the_runs(tmp_path: Path):
    folder = write_study(tmp_path / "study", *answers_of("tune"))
    make_run(folder / "trials", "trial-2")
    make_run(tmp_path, "alone")
    with asking(tmp_path) as client:
        found = get(client, "/api/runs")
        assert {row["id"]: row["study"] for row in found["runs"]} == {
            "0~alone": None,
            "0~study~trials~trial-2": "0~study",
        }
        study = found["studies"][0]
        assert (study["id"], study["kind"], study["status"], study["trials"]) == ("0~study", "tune", "complete", 4)
        assert study["best"] == {"name": "loss", "value": 2.05}
        assert refused(client, "/api/studies/0~alone")[0] == refused(client, "/api/runs/0~study")[0] == 404


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"trials": 3, "conclusion": 7}', '{"trials": [{}], "best": []}'])
@pytest.mark.parametrize("name", ["study.json", "ablation.json", "answer.json", "transfer.json"])
def test_a_damaged_answer_hides_neither_the_list_nor_the_page(tmp_path: Path, name: str, content: str):
    write_study(tmp_path / "study", {name: content, "question.json": "{}"})
    make_run(tmp_path, "alone")
    with asking(tmp_path) as client:
        assert len(get(client, "/api/runs")["runs"]) == 1
        view = get(client, "/api/studies/0~study")
        assert view["trials"] == [] and view["headline"]


@pytest.mark.parametrize("kind", ["tune", "ablate", "transfer", "proxy"])
def test_hostile_studies_stay_json(tmp_path: Path, kind: str):
    write_study(tmp_path / "study", *answers_of(kind, EVIL))
    with asking(tmp_path) as client:
        answer = client.get("/api/studies/0~study")
        assert answer.headers["Content-Type"] == "application/json" and answer.json()["conclusion"]
