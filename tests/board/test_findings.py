"""No verdict is lost: whoever was told that the doctor reads a run is told when he has read it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import AtOnce, add_rows, asking, get, make_run, train_row
from tests.board.test_live import SOON, next_of

from trainbook.board.board import Board
from trainbook.board.findings import Worker
from trainbook.board.live import events
from trainbook.runs.labels import change_labels


class Later(Executor):
    """Work is done when `do` is called."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: work(*args, **named)))
        return future

    def do(self) -> None:
        for future, work in [self.waiting.pop() for _ in range(len(self.waiting))]:
            future.set_result(work())


def look_at(board: Board, id: str = "0~run") -> tuple[bool, int]:
    """As the page does: whether the verdict is of the run as it is, and the version from which its events go on."""
    board.index.look_again()
    version = board.index.version(id)
    return board.verdict(board.run(id))[1], version


async def next_run_event(board: Board, version: int) -> None:
    stream = events(board, board.index.newest, "0~run", every=0.01, rest=0.0, seen=version)
    while (await next_of(stream))[0] != "run":
        pass


def test_a_verdict_between_the_answer_and_the_first_event_is_told(tmp_path: Path):
    make_run(tmp_path)
    later = Later()
    board = Board([tmp_path], worker=Worker(later))
    is_current, version = look_at(board)
    later.do()
    assert not is_current
    asyncio.run(next_run_event(board, version))


def test_a_page_that_names_no_version_is_told_once_at_its_beginning(tmp_path: Path):
    make_run(tmp_path)
    board = Board([tmp_path], worker=Worker(AtOnce()))
    look_at(board)
    asyncio.run(next_run_event(board, 0))


def test_the_answer_for_a_page_names_the_version_from_which_its_events_go_on(tmp_path: Path):
    make_run(tmp_path)
    with asking(tmp_path) as client:
        index = client.app.state.board.index  # type: ignore[attr-defined]
        before = index.look_again()
        assert get(client, "/api/runs/0~run")["version"] == before < index.version("0~run")


def test_a_verdict_with_the_counts_of_the_one_before_is_told(tmp_path: Path):
    run = make_run(tmp_path)
    later = Later()
    board = Board([tmp_path], worker=Worker(later))
    look_at(board)
    later.do()
    board.verdicts.rest = 0.0
    add_rows(run, [train_row(4, 1.0)])
    is_current, version = look_at(board)
    assert not is_current and look_at(board)[1] == version
    later.do()
    assert board.index.version("0~run") > version and look_at(board)[0]


def test_a_verdict_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run(tmp_path)
    later = Later()
    board = Board([tmp_path], worker=Worker(later))
    version = look_at(board)[1]
    monkeypatch.setattr("trainbook.board.findings.diagnose", lambda record: 1 / 0)
    future, _ = later.waiting.pop()
    future.set_result((None, "ZeroDivisionError: division by zero"))
    assert board.index.version("0~run") > version


def test_who_waits_for_a_verdict_waits_until_it_is_known_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A future wakes those who wait for it before it calls back."""
    make_run(tmp_path)
    later = Later()
    board = Board([tmp_path], worker=Worker(later))
    run = board.run((board.index.look(), "0~run")[1])
    note = board.verdicts._note
    monkeypatch.setattr(board.verdicts, "_note", lambda *told: (time.sleep(0.2), note(*told)))
    board.ask_doctor("0~run")
    doing = threading.Timer(0.05, later.do)
    doing.start()
    assert board.verdict(run, wait=SOON)[1]
    doing.join()


def test_a_run_whose_judge_was_killed_is_judged_again(tmp_path: Path):
    make_run(tmp_path)
    later = Later()
    board = Board([tmp_path], worker=Worker(later))
    look_at(board)
    later.waiting.pop()[0].set_exception(RuntimeError("killed"))
    board.verdicts.rest = 0.0
    assert not look_at(board)[0] and len(later.waiting) == 1
    later.do()
    assert look_at(board)[0]


def test_work_that_cannot_be_handed_over_is_a_verdict_that_failed(tmp_path: Path):
    class Broken(Executor):
        def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
            raise OSError("no more processes")

    make_run(tmp_path)
    board = Board([tmp_path], worker=Worker(Broken()))
    board.index.look()
    verdict, is_current = board.verdict(board.run("0~run"))
    assert verdict is not None and "no more processes" in verdict.problem and not is_current


def test_a_tag_asks_for_no_new_verdict(tmp_path: Path):
    run = make_run(tmp_path)
    board = Board([tmp_path], worker=Worker(AtOnce()))
    look_at(board)
    change_labels(run.path, add=["good"])
    assert look_at(board)[0]


def test_what_a_run_records_after_its_verdict_is_shown(tmp_path: Path):
    run = make_run(tmp_path, status="running")
    board = Board([tmp_path], worker=Worker(AtOnce()))
    board.index.look()
    assert board.index.summary("0~run")["findings"] is None  # type: ignore[index]
    look_at(board)
    assert board.index.summary("0~run")["findings"] == {"error": 0, "warning": 0, "info": 0}  # type: ignore[index]
    with open(run.events_file, "a") as file:
        file.write('{"step": 3, "segment": 0, "kind": "finding", "cause_id": "x", "severity": "error"}\n')
    board.index.look_again()
    assert board.index.summary("0~run")["findings"] == {"error": 1, "warning": 0}  # type: ignore[index]


def test_a_server_that_was_started_again_tells_pages_of_the_one_before(tmp_path: Path):
    make_run(tmp_path)
    known = Board([tmp_path], worker=Worker(AtOnce())).index.look()
    time.sleep(0.01)
    board = Board([tmp_path], worker=Worker(AtOnce()))
    board.index.look()
    assert board.index.since(known).changed == ["0~run"]
