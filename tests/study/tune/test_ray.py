"""Trials as tasks of a Ray that is started on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.study.tune.conftest import FIXED, Asks, worker_with

from trainbook.errors import Interrupted, MissingExtra
from trainbook.study.tune.ledger import opened
from trainbook.study.tune.run import Study
from trainbook.study.tune.study_file import StudyQuestion

pytestmark = pytest.mark.usefixtures("objectives_on_path")


def study(question: StudyQuestion, tmp_path: Path, objective: str) -> Study:
    command = worker_with(objective)
    made = Study(question, tmp_path / "runs" / "s", command=command, ray="local")
    made.prepare()
    return made


def test_without_ray_the_pip_line_is_told(tmp_path: Path, ask: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[ray\]'"):
        study(ask(), tmp_path, "bowl").run()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_two_tasks_at_a_time_finish_a_study_and_one_that_is_killed_loses_nothing(tmp_path: Path, ask: Asks) -> None:
    pytest.importorskip("ray")
    made = study(ask(budget=6, seeds=0, workers=2), tmp_path, "deadly")
    trials = made.run()
    assert len(trials) == 6 and {each.state for each in trials} <= {"done", "infeasible"}
    lines = [line.split() for line in (made.folder / "notes.txt").read_text().splitlines()]
    begun = Counter(number for what, number, _ in lines if what == "begun")
    assert begun == {str(number): 2 if number == 3 else 1 for number in range(6)}
    assert len({worker for _, _, worker in lines}) == 7, "a task for each trial, and one more for the one that died"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_study_lets_its_tasks_give_their_trials_back(tmp_path: Path, ask: Asks) -> None:
    pytest.importorskip("ray")
    made = study(ask(budget=4, seeds=0), tmp_path, "patient")

    def interrupt() -> None:
        while not (made.folder / "notes.txt").is_file():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="Ctrl-C: 0 trials have ended"):
        made.run()
    thread.join()
    with opened(made.url, made.name) as ledger:
        assert (ledger.trials()[0].state, ledger.trials()[0].attempts) == ("waiting", 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_workers_and_two_tasks_finish_one_study_in_a_database_that_is_killed_in_the_middle(
    tmp_path: Path, ask: Asks
) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("psycopg")
    from tests.study.tune.postgres import CannotStart, running

    question = ask(budget=20, seeds=1, workers=2)
    folder = tmp_path / "runs" / "s"
    with ExitStack() as held:
        try:
            server = held.enter_context(running())
        except CannotStart as reason:
            pytest.skip(f"no PostgreSQL server: {reason}")
        command = worker_with("slower")
        mine = Study(question, folder, server.url, command)
        mine.prepare()
        other = held.enter_context(_another_machine(tmp_path / "study.yaml", folder, server.url, command))
        notes = folder / "notes.txt"
        while not notes.is_file():  # it takes a while to start
            time.sleep(0.05)
        with server.killed_after(notes, ended=6):
            trials = mine.run()
        assert other.wait() == 0, (tmp_path / "other.log").read_text()[-2000:]
    assert [each.number for each in trials] == list(range(24))
    assert {each.state for each in trials} <= {"done", "infeasible"}
    lines = [line.split() for line in notes.read_text().splitlines()]
    begun = Counter(number for what, number, _ in lines if what == "begun")
    assert begun == {str(number): 1 for number in range(24)}, "nothing is lost, and nothing done twice"
    by = Counter(worker for what, _, worker in lines if what == "begun")
    assert sum(count > 1 for count in by.values()) == 2, "two workers with many trials"
    assert sum(count == 1 for count in by.values()) >= 2, "and tasks with one each"


@contextmanager
def _another_machine(file: Path, folder: Path, url: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from trainbook.study.tune.run import Study\n"
        "from trainbook.study.tune.study_file import read_question\n"
        "file, folder, url, command, fixed = json.loads(sys.argv[1])\n"
        "question = read_question(Path(file), fixed, budget=20, seeds=1, workers=2)\n"
        "study = Study(question, Path(folder), url, command, ray='local')\n"
        "study.prepare()\n"
        "study.run()\n"
    )
    told = json.dumps([str(file), str(folder), url, command, FIXED])
    with (
        open(file.with_name("other.log"), "wb") as log,
        subprocess.Popen([sys.executable, "-c", code, told], stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
