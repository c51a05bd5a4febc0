"""Studies in folders with odd names, with odd seeds, and with something in the way of their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL
from tests.study.tune.conftest import Asks, worker_with
from tests.study.tune.test_methods import BASE as VALUES
from tests.study.tune.test_methods import BETA, RATE, search_all, space

from trainbook.errors import MissingExtra, RunFolderError, UserError
from trainbook.study.space import BASE
from trainbook.study.tune.ledger import opened, sqlite_url
from trainbook.study.tune.methods import PointSearch
from trainbook.study.tune.run import LEDGER, Study
from trainbook.study.tune.workers import LOGS, Workers


@pytest.mark.parametrize("name", ["q?x", "q%20x", "100%", "a b+c", "é@#;:&=", "q?password=x"])
def test_a_ledger_lies_where_its_path_says_whatever_that_holds(name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "study.db"
    path.parent.mkdir()
    with opened(sqlite_url(path), "s") as ledger:
        ledger.open({"budget": 3})
    with opened(sqlite_url(path), "s") as ledger:
        assert ledger.question() == {"budget": 3}
    assert list(tmp_path.rglob("*")) == [path.parent, path]


@pytest.mark.usefixtures("objectives_on_path")
def test_the_workers_of_a_study_find_a_ledger_in_an_odd_place(tmp_path: Path, ask: Asks) -> None:
    made = Study(ask(budget=3, seeds=0), tmp_path / "q?x%20" / "s", command=worker_with("bowl"))
    made.prepare()
    assert {each.state for each in made.run()} <= {"done", "infeasible"}
    assert {path.name for path in tmp_path.iterdir()} == {"q?x%20", "study.yaml"}


def test_a_path_that_no_address_can_hold_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFolderError, match="a study's database cannot have this path"):
        sqlite_url(tmp_path / "q\udcffx" / "study.db")
    monkeypatch.setattr(URL, "render_as_string", lambda self, hide_password: f"sqlite:///{self.database}")  # of 2.0
    with pytest.raises(RunFolderError, match=r"q\?x: a study's database cannot have this path"):
        sqlite_url(tmp_path / "q?x" / "study.db")


def test_without_sqlalchemy_the_pip_line_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Asks) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[tune\]'"):
        Study(ask(), tmp_path / "s").prepare()


@pytest.mark.parametrize("method", ["tpe", "gp"])
@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, 2**70])
def test_a_seed_may_be_larger_than_optuna_takes(method: str, seed: int) -> None:
    assert len(search_all(method, PointSearch(space(RATE, BETA), 4, seed, VALUES))) == 4


def test_a_file_in_the_place_of_the_logs_is_told_before_there_is_a_ledger(tmp_path: Path, ask: Asks) -> None:
    made = Study(ask(), tmp_path / "s")
    made.folder.mkdir()
    (made.folder / LOGS).touch()
    with pytest.raises(RunFolderError, match="logs cannot be created: File exists"):
        made.prepare()
    assert not (made.folder / LEDGER).exists()
    with pytest.raises(RunFolderError, match="logs cannot be created: File exists"):
        Workers(made.folder, made.url, 1).start(0)


def test_a_folder_in_the_place_of_a_log_is_a_message(tmp_path: Path) -> None:
    (tmp_path / LOGS / "worker-0.log").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"worker-0.log is a folder, but should be a file"):
        Workers(tmp_path, "sqlite://", 1).start(0)


def test_a_base_that_is_no_text_any_more_is_a_message(tmp_path: Path, ask: Asks) -> None:
    made = Study(ask(), tmp_path / "s")
    made.prepare()
    (made.folder / BASE).write_bytes(b"model:\n  type: \xff\xfe\n")
    with pytest.raises(UserError, match=r"base.yaml: is not a UTF-8 text file"):
        made.prepare()
