"""TensorBoard and trackio on the runs of board.py, asked over HTTP for what their own pages ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from board import SPIKE, Asking, median_of, memory_of, timed

PATIENCE = 1_800  # seconds, until all runs are listed
MOST_POINTS = 3_000  # that a page of trackio asks for

FILL = """
import json, sys
from pathlib import Path
from trackio.sqlite_storage import SQLiteStorage
for run in sys.argv[1:]:
    rows = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == "train" and row["step"] < 10**6]
    numbers = [{name: value for name, value in row.items() if name not in ("step", "segment", "split")} for row in rows]
    SQLiteStorage.bulk_log("board", Path(run).name, numbers, [row["step"] for row in rows])
"""
SHOW = "import trackio; trackio.show(project='board', open_browser=False, block_thread=True, server_port=16007)"


def figures_of_others(root: Path, runs: Path, count: int, trackio: str | None) -> dict[str, Any]:
    chosen = [runs / name for name in sorted(os.listdir(runs))[:count]]
    found = {}
    if find_spec("tensorboard") is not None:
        found["TensorBoard"] = tensorboard_figures(root, chosen)
    if trackio is not None:
        found["trackio"] = trackio_figures(root, chosen, trackio)
    return found


def tensorboard_figures(root: Path, runs: list[Path]) -> dict[str, Any]:
    logs = root / f"tensorboard-{len(runs)}"
    if not logs.exists():
        write_event_files(logs, runs)
    started = time.perf_counter()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", "16006"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ask = Asking("http://localhost:16006")
        name = runs[0].name
        wanted = f"/data/plugin/scalars/scalars?tag=train%2Floss&run={name}"

        def points_of(run: Path) -> list[Any]:
            return json.loads(ask(f"/data/plugin/scalars/scalars?tag=train%2Floss&run={run.name}"))

        def is_read() -> bool:
            try:
                tags = json.loads(ask("/data/plugin/scalars/tags"))
                return len(tags) == len(runs) and points_of(runs[-1])[-1][1] >= 10_000
            except (OSError, ValueError, IndexError):
                return False

        while not is_read() and time.perf_counter() - started < PATIENCE:
            time.sleep(0.5)
        found: dict[str, Any] = {"runs": len(runs), "seconds until all is read": time.perf_counter() - started}
        found["a curve"] = median_of(lambda: ask(wanted))
        found["the curves of 50 runs"] = timed(lambda: [points_of(run) for run in runs[:50]])
        points = points_of(runs[0])
        found["points of a curve"], found["the spike is seen"] = len(points), any(each[2] == SPIKE for each in points)
        found["memory"] = memory_of(process.pid)
        return found
    finally:
        process.terminate()
        process.wait(20)


def write_event_files(logs: Path, runs: list[Path]) -> None:
    from trainbook.tracking.tensorboard import TensorBoardTracker

    for run in runs:
        tracker = TensorBoardTracker(logs / run.name)
        tracker._writer.flush = lambda: None  # type: ignore[method-assign]
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["step"] < 10**6:
                tracker.log_metrics(row)
        tracker.close("finished")


def trackio_figures(root: Path, runs: list[Path], python: str) -> dict[str, Any]:
    folder = root / f"trackio-{len(runs)}"
    environment = {**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    if not folder.exists():
        subprocess.run([python, "-c", FILL, *map(str, runs)], env=environment, check=True)
    started = time.perf_counter()
    nothing = subprocess.DEVNULL
    process = subprocess.Popen([python, "-c", SHOW], env=environment, stdout=nothing, stderr=nothing)
    try:

        def ask(name: str, **asked: Any) -> Any:
            body = json.dumps({"kwargs": {"project": "board", **asked}}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:16007/api/{name}", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)["data"]

        known: list[Any] = []
        while len(known) < len(runs) and time.perf_counter() - started < PATIENCE:
            try:
                known = ask("get_runs_for_project")
            except OSError:
                time.sleep(0.5)
        found: dict[str, Any] = {"runs": len(runs), "seconds until all are listed": time.perf_counter() - started}
        found["list of runs"] = median_of(lambda: ask("get_runs_for_project"))
        found["a run"] = median_of(lambda: ask("get_logs", run=runs[0].name))
        some = [{"run": run.name, "run_id": None} for run in runs[:50]]
        found["50 runs"] = timed(lambda: ask("get_logs_batch", runs=some, max_points=MOST_POINTS, scalar_only=True))
        points = ask("get_logs", run=runs[0].name)
        found["points of a curve"] = len(points)
        found["the spike is seen"] = any(each.get("loss") == SPIKE for each in points)
        found["memory"] = memory_of(process.pid)
        return found
    finally:
        process.terminate()
        process.wait(20)
