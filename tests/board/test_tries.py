"""Remedies that were tried on a run: their runs in the list, and their answer on the page of the run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board.asking import asking, get
from tests.board.asking import make_run as make_plain_run
from tests.board.conftest import Served
from tests.board.pages import needs_a_browser, see, until
from tests.conftest import needs

pytestmark = needs("starlette", "httpx", "sse_starlette")
RULE = "divergence"
LOST = [3.0, 2.5, *[9.0 + step for step in range(40)]]


def answer(folder: Path, **more: Any) -> dict[str, Any]:
    arm = {
        "value": 3.5,
        "tokens": 100,
        "tokens_per_second": 9.0,
        "memory_bytes": None,
        "evaluations": [],
        "failures": [],
    }
    told = {
        "finding": {"rule": RULE, "evidence": "the loss rose"},
        "override": "optimizer.learning_rate=0.001",
        "from_step": 0,
        "steps": 38,
        "seeds": [1],
        "measure": "validation loss",
        "last_evaluations": 3,
        "control": arm,
        "remedy": {**arm, "value": 2.5},
        "difference": -1.0,
        "interval": [-1.2, -0.8],
        "verdict": "helped",
        "reason": "the difference is larger than the noise",
        "command": "trainbook train runs/lr-high/config.yaml optimizer.learning_rate=0.001",
        "runs": [str(folder / "control"), str(folder / "remedy")],
    }
    return told | more


def make_try(root: Path, *, has_ended: bool = True) -> Path:
    make_plain_run(root, "lr-high", LOST)
    folder = root / f"lr-high-try-{RULE}"
    for name in ("control", "remedy"):
        losses = [3.0 - step / 100 for step in range(38)]
        stop = {"step": 38, "kind": "interrupt", "reason": "it ends there"}
        make_plain_run(folder, name, losses, status="interrupted", events=[stop])
    write_state(folder, has_ended)
    return folder


def write_state(folder: Path, has_ended: bool) -> None:
    arms = {name: {"last_step": 38, "failure": None} for name in ("control", "remedy")} if has_ended else {}
    question = {"rule": RULE, "override": "optimizer.learning_rate=0.001"}
    state = {"question": question, "arms": arms, "answer": answer(folder) if has_ended else None}
    (folder / "try.json").write_text(json.dumps(state))


def test_the_arms_of_a_try_are_named_after_their_run(tmp_path: Path):
    folder = make_try(tmp_path, has_ended=False)
    with asking(tmp_path) as client:
        rows = {row["name"]: row for row in get(client, "/api/runs")["runs"]}
        assert rows.keys() == {"lr-high", "control of lr-high", "remedy of lr-high"}
        assert rows["remedy of lr-high"]["status"] == "interrupted" and rows["lr-high"]["remedy_of"] is None
        write_state(folder, has_ended=True)
        client.app.state.board.index.look_again()  # type: ignore[attr-defined]
        rows = {row["name"]: row for row in get(client, "/api/runs")["runs"]}
        arm = rows["remedy of lr-high"]
        assert arm["remedy_of"] == {"run": "0~lr-high", "name": "lr-high", "arm": "remedy", "ended_at": 38}
        assert (arm["status"], arm["step"], arm["total_steps"], arm["progress"]) == ("finished", 38, 38, 1.0)
        assert "as planned, at step 38" in get(client, f"/api/runs/{arm['id']}")["headline"]


def test_the_answer_of_a_try_is_with_its_run(tmp_path: Path):
    folder = make_try(tmp_path, has_ended=False)
    with asking(tmp_path) as client:
        (told,) = get(client, "/api/runs/0~lr-high")["tries"]
        assert told["verdict"] is None and told["rule"] == RULE
        write_state(folder, has_ended=True)
        (told,) = get(client, "/api/runs/0~lr-high")["tries"]
        assert (told["verdict"], told["command"]) == ("helped", answer(folder)["command"])
        assert ["difference", "-1.0000, between -1.2000 and -0.8000 (-28.6%)"] in told["lines"]
        assert {each["id"] for each in told["arms"]} == {row["id"] for row in get(client, "/api/runs")["runs"]} - {
            "0~lr-high"
        }
        (folder / "try.json").write_text('{"question": {}, "arms": {}, "answer": {"verdict": 3}}')
        assert get(client, "/api/runs/0~lr-high")["tries"][0]["reason"] == "try.json is damaged."


def test_a_run_that_is_itself_the_source_looks_at_nothing_beside_it(tmp_path: Path):
    make_try(tmp_path)
    with asking(tmp_path / "lr-high") as client:
        assert get(client, "/api/runs/0")["tries"] == []


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Served]:
    make_try(tmp_path)
    board = Served(tmp_path, "--token", "open-sesame", "--allow-actions")
    yield board
    board.kill(signal.SIGINT)


@needs_a_browser
def test_the_page_of_a_run_tells_what_its_remedy_did_and_asks_before_a_training(
    tried: Served, new_page: Callable[..., Any]
):
    page = new_page()
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/try") else None)
    page.goto(f"{tried.address}/run/0~lr-high#token=open-sesame")
    page.locator(".finding .tried", has_text="Remedy tried: helped").wait_for()  # under its finding
    see(page, "between -1.2000 and -0.8000")
    assert "trainbook train" in page.locator(".tried code").inner_text()
    page.get_by_role("button", name="Try the remedy").click()
    see(page, "This starts training on this machine")
    page.locator("#dialog").get_by_role("button", name="Close").click()
    assert asked == []
    page.locator(".tried").get_by_role("link", name="remedy").click()
    page.get_by_role("heading", name="remedy of lr-high", level=1).wait_for()
    page.locator(".crumbs").get_by_role("link", name="lr-high").click()
    page.get_by_role("heading", name="lr-high", level=1, exact=True).wait_for()
    page.goto(tried.address)
    row = page.locator(f"[data-key='0~lr-high-try-{RULE}~remedy']")
    until(page, lambda: row.locator(".run-name").inner_text() == "remedy of lr-high")
    assert "finished" in row.inner_text() and row.get_by_role("link", name="original run").count() == 1
