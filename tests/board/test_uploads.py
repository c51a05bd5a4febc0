"""Files that are dropped on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.board.asking import asking, get

from trainbook.board import uploads

CSV = "step,loss\n" + "".join(f"{step},{3 - step / 50}\n" for step in range(1, 100))
STATE = json.dumps({"log_history": [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}], "global_step": 20})


def drop(client: TestClient, name: str, content: str | bytes) -> tuple[int, dict[str, str]]:
    answer = client.post("/api/open", params={"name": name}, content=content)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("name", "content"), [("trainer_state.json", STATE), ("my log.csv", CSV), ("state (1).json", STATE)]
)
def test_a_dropped_log_is_a_run_with_curves_and_a_verdict(tmp_path: Path, name: str, content: str):
    with asking(tmp_path) as client:
        status, told = drop(client, name, content)
        assert status == 200
        view = get(client, f"/api/runs/{told['id']}")
        assert view["findings_state"] == "ready" and view["summary"]["source"] == "dropped files"
        assert get(client, f"/api/runs/{told['id']}/curves", metric="loss")["curves"][0]["points"] >= 2
        assert [row["id"] for row in get(client, "/api/runs")["runs"]] == [told["id"]]


def test_two_files_of_one_name_are_two_runs(tmp_path: Path):
    with asking(tmp_path) as client:
        ids = [drop(client, "log.csv", CSV)[1]["id"] for _ in range(2)]
    assert ids == ["1~log", "1~log-2"]


@pytest.mark.parametrize(
    "name", ["../../../etc/cron.d/x.csv", "..\\..\\x.csv", "/abs/x.csv", "a\0b.csv", ".csv", "<b>.csv"]
)
def test_a_name_leads_nowhere(tmp_path: Path, name: str):
    with asking(tmp_path) as client:
        status, told = drop(client, name, CSV)
        root = client.app.state.board.uploads._root  # type: ignore[attr-defined]
        assert status == 200 and told["id"].startswith("1~")
        written = [path for path in root.rglob("*") if path.is_file()]
        assert [path.name for path in written] == ["metrics.csv"] and written[0].parent.parent == root


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", ""),
        ("x.csv", "a,b\n1,2\n"),
        ("x.json", "{"),
        ("x.json", "{}"),
        ("x.exe", "MZ"),
        ("x.wandb", "nothing"),
        ("events.out.tfevents.1.x", "nothing"),
        ("", "x"),
    ],
)
def test_what_is_no_log_is_a_message_and_leaves_no_run(tmp_path: Path, name: str, content: str):
    with asking(tmp_path) as client:
        status, told = drop(client, name, content)
        assert status == 400 and told["error"] and "/tmp" not in told["error"]
        assert get(client, "/api/runs")["runs"] == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "my log.csv: the file is empty."),
        ("a,b\n1,2\n", "my log.csv: must have a column of steps"),
        ("step,loss\n1,2\n2,much\n", "my log.csv:3: loss must be a number, but got 'much'."),
        (
            "step,loss\n1,2,5\n2,2,4\n",
            "my log.csv:2: must have 2 cells, like the header, but got 3. If its numbers have decimal commas, separate "
            "the columns with semicolons.",
        ),
        (
            "step;loss;acc\n1;2,5;0.1\n2;2,4;0.2\n",
            "my log.csv:2: must have decimal commas or decimal points in all numbers, but got '2,5' and '0.1'.",
        ),
    ],
)
def test_a_message_names_the_file_that_was_dropped(tmp_path: Path, content: str, told: str):
    with asking(tmp_path) as client:
        status, answer = drop(client, "C:\\logs\\my log.csv", content)
        assert status == 400 and answer["error"].startswith(told)


def test_decimal_commas_are_read_where_semicolons_separate(tmp_path: Path):
    rows = ("998;2,5;1,5e-3", "999;1.234,5;0,1", "1.000;-0,25;1e-3", "1.001;nan;2")
    with asking(tmp_path) as client:
        status, told = drop(client, "kurven.csv", "step;loss;lr\n" + "\n".join(rows) + "\n")
        assert status == 200
        loss, rate = get(client, f"/api/runs/{told['id']}/curves", metric=["loss", "learning_rate"])["curves"]
        assert loss["x"] == [998, 999, 1000, 1001] and loss["low"] == [2.5, 1234.5, -0.25, None]
        assert rate["low"] == [1.5e-3, 0.1, 1e-3, 2.0]


def test_what_is_too_long_or_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "MOST_BYTES", 100)
    monkeypatch.setattr(uploads, "MOST_FILES", 1)
    with asking(tmp_path) as client:
        assert drop(client, "long.csv", CSV)[0] == 413
        chunks = iter([CSV.encode()[:60], CSV.encode()[60:]])
        assert client.post("/api/open?name=long.csv", content=chunks).status_code == 413
        root = client.app.state.board.uploads._root  # type: ignore[attr-defined]
        assert root is None or not list(root.iterdir())
        assert drop(client, "short.csv", "step,loss\n1,2\n2,1\n")[0] == 200
        assert drop(client, "short.csv", "step,loss\n1,2\n2,1\n")[0] == 413


def test_dropped_files_are_gone_when_the_board_ends(tmp_path: Path):
    with asking(tmp_path) as client:
        drop(client, "log.csv", CSV)
        root = client.app.state.board.uploads._root  # type: ignore[attr-defined]
        assert root.is_dir()
    assert not root.exists()
