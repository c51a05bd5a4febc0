"""The command: a server of its own process, its address, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.board.asking import add_rows, make_run, train_row
from typer.testing import CliRunner

from trainbook.board.index import Index
from trainbook.board.serving import Serving, access_for, address_of, listen, serve
from trainbook.cli.main import app
from trainbook.errors import UserError

SOON = 30


@contextmanager
def started(*words: str, cwd: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "trainbook", "board", *words, "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"board: (http://\S+)   \(Ctrl-C ends it\)\n", line)
        assert found is not None, line + (process.stderr.read() if process.stderr else "")
        yield found[1], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=SOON)


def read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=SOON) as answer:
        return answer.read()


def test_the_board_is_served_live_and_ends_with_ctrl_c_although_a_page_is_open(tmp_path: Path):
    run = make_run(tmp_path / "runs")
    with started(cwd=tmp_path) as (address, process):
        assert b"<html" in read(address)
        assert [row["name"] for row in json.loads(read(f"{address}api/runs"))["runs"]] == ["run"]
        with urllib.request.urlopen(f"{address}api/live?run=0~run", timeout=SOON) as stream:
            assert stream.readline().strip() == b"event: hello"
            add_rows(run, [train_row(4, 0.5)])
            lines = iter(stream.readline, b"")
            told = next(line for line in lines if line.startswith(b"data:") and b"changed" in line)
            assert json.loads(told[5:])["changed"][0]["loss"] == 0.5
            process.send_signal(signal.SIGINT)
            assert process.wait(SOON) == 0
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked up in /proc")
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_board_that_was_ended(tmp_path: Path, by: signal.Signals):
    make_run(tmp_path / "runs")
    with started(cwd=tmp_path) as (address, process):
        read(f"{address}api/runs/0~run")  # which the doctor judges in a process of its own
        children = [each for task in Path(f"/proc/{process.pid}/task").iterdir() for each in _children(task)]
        assert children
        process.send_signal(by)
        process.wait(SOON)
        until = time.monotonic() + SOON
        while any(map(_lives, children)):
            assert time.monotonic() < until, "a process of the board goes on without it"
            time.sleep(0.05)


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def _lives(number: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False


def test_with_actions_the_address_has_a_token(tmp_path: Path):
    make_run(tmp_path)
    with started(str(tmp_path), "--allow-actions") as (address, process):
        base, token = address.split("#token=")
        assert len(token) > 20
        told = {"Content-Type": "application/json", "X-Trainbook-Token": token}
        asked = urllib.request.Request(f"{base}api/runs/0~run/tag", b'{"add": ["good"]}', told)
        with urllib.request.urlopen(asked, timeout=SOON) as answer:
            assert json.load(answer) == {"tags": ["good"]}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(asked.full_url, b"{}", {"Content-Type": "application/json"}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0


def test_a_folder_that_is_not_there_is_told_with_the_nearest(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    answer = CliRunner().invoke(app, ["board", str(tmp_path / "rusn"), "--no-browser"])
    assert answer.exit_code == 2 and f"Did you mean {tmp_path / 'runs'}?" in answer.output


def test_a_folder_of_runs_that_is_not_there_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    asked: list[Serving] = []
    monkeypatch.setattr("trainbook.board.serving.serve", lambda serving, say: asked.append(serving))
    answer = CliRunner().invoke(app, ["board", "--no-browser"])
    assert answer.exit_code == 0 and "There is no folder runs here yet" in answer.output
    assert "trainbook board --demo" in answer.output and asked[0].sources == [Path("runs")]
    index = Index(asked[0].sources)
    index.look()
    make_run(tmp_path / "runs", "first")
    index.look_again()
    assert [row["name"] for row in index.summaries()] == ["first"]


@pytest.mark.parametrize("words", [["--token", "short"], ["--demo", "runs"], ["--host", "no.such.host.invalid"]])
def test_wrong_options_are_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["board", "--no-browser", *words])
    assert answer.exit_code == 2 and answer.output.startswith("error: ") and "Traceback" not in answer.output


def test_a_port_in_use_gives_way_to_the_next():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as other:
            assert port < other.getsockname()[1] <= port + 20


def test_another_port_than_the_one_asked_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.board.serving.run_until_stopped", lambda *told: None)
    monkeypatch.setattr("os.nice", lambda more: None)
    said: list[str] = []
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        serve(Serving([tmp_path], port=port, opens_browser=False), said.append)
    assert said[0].startswith(f"Port {port} is in use: this board is on port ") and said[1].startswith("board: ")


def test_an_address_that_is_not_here_is_a_message():
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1"):
        listen("192.0.2.1", 8700)


def test_who_may_ask_follows_from_what_was_asked_for():
    sources = [Path("runs")]
    near = access_for(Serving(sources), 8700)
    assert near.token is None and not near.reading_needs_token
    acting = access_for(Serving(sources, allows_actions=True), 8700)
    assert acting.token and not acting.reading_needs_token
    far = access_for(Serving(sources, host="0.0.0.0"), 8700)
    assert far.token and far.reading_needs_token
    own = access_for(Serving(sources, token="my-own-token"), 8700)
    assert own.token == "my-own-token" and own.reading_needs_token
    assert address_of("0.0.0.0", 9, "t") == "http://localhost:9/#token=t"
    assert address_of("127.0.0.1", 9, None) == "http://127.0.0.1:9/"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "trainbook.board.serving", None)
    answer = CliRunner().invoke(app, ["board", "--no-browser"])
    assert answer.exit_code == 2 and "pip install 'trainbook[board]'" in answer.output


def test_the_board_imports_no_torch():
    code = "import sys, trainbook.board.serving; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0
