"""What a person may do to a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.board.asking import TOKEN, asking, get, make_run

from trainbook.board import actions
from trainbook.board.guarding import Access
from trainbook.runs import disk

SOON = 30
TRAINER = """
import signal, sys, time
from trainbook.runs import RunFolder, disk
run = RunFolder(sys.argv[1])
with run.lock():
    try:
        print("training", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("stopped from", disk.who_stops(run.lock_file), flush=True)
"""


@contextmanager
def acting(root: Path) -> Iterator[TestClient]:
    with asking(root, access=Access(token=TOKEN), allows_actions=True) as client:
        client.headers["X-Trainbook-Token"] = TOKEN
        yield client


def do(client: TestClient, name: str, run: str = "0~run", **asked: Any) -> tuple[int, Any]:
    answer = client.post(f"/api/runs/{run}/{name}", json=asked)
    return answer.status_code, answer.json()


def test_tags_notes_and_archiving_are_kept_beside_the_run(tmp_path: Path):
    run = make_run(tmp_path)
    with acting(tmp_path) as client:
        assert do(client, "tag", add=["good", "to show"]) == (200, {"tags": ["good", "to show"]})
        assert do(client, "tag", remove=["good"]) == (200, {"tags": ["to show"]})
        assert do(client, "note", note="the best so far") == (200, {"note": "the best so far"})
        assert do(client, "archive", archived=True) == (200, {"archived": True})
        row = get(client, "/api/runs", archived="1", tag="to show")["runs"][0]
        assert (row["tags"], row["note"], row["archived"]) == (["to show"], "the best so far", True)
        assert do(client, "archive", archived=False)[0] == 200
        assert len(get(client, "/api/runs")["runs"]) == 1
    assert json.loads((run.path / "board.json").read_text())["note"] == "the best so far"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("tag", {"add": "good"}),
        ("tag", {"add": ["a,b"]}),
        ("note", {"note": 3}),
        ("note", {}),
        ("archive", {"archived": "yes"}),
        ("try", {"rule": "--budget 9"}),
        ("try", {"rule": 7}),
    ],
)
def test_what_cannot_be_done_is_a_message(tmp_path: Path, name: str, asked: dict[str, Any]):
    make_run(tmp_path)
    with acting(tmp_path) as client:
        status, told = do(client, name, **asked)
        assert status == 400 and told["error"]


def test_tags_and_note_are_saved_together_or_not_at_all(tmp_path: Path):
    make_run(tmp_path)
    with acting(tmp_path) as client:
        status, told = do(client, "label", add=["good", 'a"b'], note="seen")
        assert status == 400 and "a tag must have" in told["error"]
        row = get(client, "/api/runs")["runs"][0]
        assert (row["tags"], row["note"]) == ([], "")
        assert do(client, "label", add=["good"], note="seen") == (200, {"tags": ["good"], "note": "seen"})


def test_a_run_is_deleted_only_with_its_name(tmp_path: Path):
    run = make_run(tmp_path)
    other = make_run(tmp_path, "other")
    with acting(tmp_path) as client:
        status, told = do(client, "delete")
        assert status == 409 and told["confirm"] == "run" and told["files"] == 3
        assert do(client, "delete", confirm="other")[0] == 409 and run.path.is_dir()
        assert do(client, "delete", confirm="run")[0] == 200
        assert [row["name"] for row in get(client, "/api/runs")["runs"]] == ["other"]
        assert do(client, "delete", confirm="run")[0] == 404
    assert not run.path.exists() and other.manifest.is_file()


def test_logs_of_other_tools_are_never_changed(tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "metrics.csv").write_text("step,loss\n1,2\n")
    with acting(tmp_path) as client:
        for name in ("tag", "delete", "stop", "try"):
            assert do(client, name, run="0~theirs", confirm="theirs")[0] == 400
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["metrics.csv"]


def test_a_run_is_stopped_and_knows_that_the_board_did_it(tmp_path: Path):
    run = make_run(tmp_path, status="running")
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "training\n"
        with acting(tmp_path) as client:
            assert do(client, "delete", confirm="run")[0] == 400  # it is in use
            status, told = do(client, "stop")
            assert status == 200 and f"process {process.pid}" in told["done"]
        assert process.stdout.readline() == "stopped from the board\n" and process.wait(SOON) == 0
        assert run.lock_file.read_text() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("who", "told"), [("the board", "stopped from the board"), (None, "Ctrl-C")])
def test_a_training_says_who_interrupted_it(tmp_path: Path, who: str | None, told: str):
    from trainbook.loop.run_io import Interrupts

    run = make_run(tmp_path, status="running")
    with run.lock(), Interrupts(run.lock_file) as interrupts:
        interrupts.can_save = True
        if who is not None:
            disk.note_who_stops(run.lock_file, who)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested == told
    assert run.lock_file.read_text() == ""


def test_another_process_that_has_taken_over_the_number_is_not_interrupted(tmp_path: Path):
    run = make_run(tmp_path, status="running")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run.lock_file.write_text(json.dumps({"pid": process.pid, "host": os.uname().nodename}))
        with acting(tmp_path) as client:
            status, told = do(client, "stop")
            assert status == 409 and "does not train this run" in told["error"]
            run.lock_file.write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename}))
            assert do(client, "stop")[0] == 409
            run.lock_file.write_text(json.dumps({"pid": process.pid, "host": "elsewhere"}))
            assert "stop it there" in do(client, "stop")[1]["error"]
            run.lock_file.write_text("")
            assert do(client, "stop") == (409, {"error": "no process trains this run."})
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_remedy_is_tried_by_the_command_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[list[str]] = []

    class Process:
        pid = 7

        def __init__(self, words: list[str], **options: Any) -> None:
            started.append(words)
            assert options["start_new_session"]

        def poll(self) -> int | None:
            return None

    monkeypatch.setattr(actions.subprocess, "Popen", Process)
    run = make_run(tmp_path)
    with acting(tmp_path) as client:
        status, told = do(client, "try", rule="not-finite")
        assert status == 200 and told["started"] == f"trainbook doctor {run.path} --try --finding not-finite"
        assert do(client, "try")[0] == 200
        assert do(client, "try")[0] == 409  # two at once are enough
    assert started[0][1:] == ["-m", "trainbook", "doctor", str(run.path), "--try", "--finding", "not-finite"]


def test_an_action_that_is_not_known_or_of_no_run_is_not_found(tmp_path: Path):
    make_run(tmp_path)
    with acting(tmp_path) as client:
        assert do(client, "explode")[0] == 404
        assert do(client, "tag", run="0~nobody", add=["x"])[0] == 404
