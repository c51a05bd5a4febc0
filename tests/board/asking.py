"""What the tests of the board share: runs that are made up, and a board that is asked as a browser asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from trainbook.board.app import make_app
from trainbook.board.board import Board
from trainbook.board.findings import Worker
from trainbook.board.guarding import Access
from trainbook.knobs import load
from trainbook.runs import Manifest, RunFolder
from trainbook.runs.jsonl import JsonlWriter, dumps

TOKEN = "a-token-of-tests"


class AtOnce(Executor):
    """Work is done when it is submitted, so that no test waits."""

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@cache
def _config() -> str:
    return json.dumps(load("gpt-tiny", ["training.max_steps=50"]).config.model_dump(mode="json"))


def make_run(root: Path, name: str = "run", losses: Iterable[float] = (3.0, 2.0, 1.0), **more: Any) -> RunFolder:
    """`settings` by knob path, `evaluations` as losses by step, `events`; the rest are fields of the manifest."""
    run = RunFolder(root / name)
    run.path.mkdir(parents=True)
    config = json.loads(_config())
    for path, value in more.pop("settings", {}).items():
        section, knob = path.split(".")
        config[section][knob] = value
    evaluations, events = more.pop("evaluations", {}), more.pop("events", ())
    add_rows(run, (train_row(step, loss) for step, loss in enumerate(losses, start=1)))
    add_rows(run, ({**train_row(step, loss), "split": "eval"} for step, loss in evaluations.items()))
    started = {"step": 0, "segment": 0, "kind": "start", "time": 1.7e9, "total_updates": 50, "num_parameters": 1000}
    run.events_file.write_text(
        "".join(f"{dumps({'segment': 0, 'time': 1.7e9, **row})}\n" for row in (started, *events))
    )
    told = {"recipe": "gpt-tiny", "config": config, "status": "finished", "seed": config["training"]["seed"]}
    Manifest(name, **(told | more)).write(run.manifest)
    return run


def train_row(step: int, loss: float, **more: Any) -> dict[str, Any]:
    row = {"step": step, "segment": 0, "split": "train", "time": 1.7e9 + step, "loss": loss, "tokens": 100 * step}
    return {**row, "step_seconds": 0.5, "learning_rate": 1e-3, **more}


def add_rows(run: RunFolder, rows: Iterable[Mapping[str, Any]]) -> None:
    with JsonlWriter(run.metrics_file) as writer:
        for row in rows:
            writer.append(row)


@contextmanager
def asking(*sources: Path, **options: Any) -> Iterator[TestClient]:
    """A client of a board on these folders. `access` says who may ask; the rest is for the board."""
    access = options.pop("access", Access())
    board = Board(sources, worker=Worker(AtOnce()), **options)
    client = TestClient(
        make_app(board, access), base_url=f"http://localhost:{access.port}", raise_server_exceptions=False
    )
    client.app.state.board = board  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        board.close()


def get(client: TestClient, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, **params: Any) -> tuple[int, str]:
    answer = client.get(path, params=params or None)
    assert answer.status_code >= 400
    return answer.status_code, answer.json()["error"]
