from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainbook.runs import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def test_a_resumed_run_continues_the_same_wandb_run(run: RunFolder, wandb_offline: None):
    from trainbook.tracking.wandb import WandbTracker

    for _ in range(2):
        WandbTracker(run, {}, lambda reason: None).close("finished")
    identifier = (run.path / "wandb-id").read_text().strip()
    files = [file.name for file in run.path.glob("wandb/offline-run-*/run-*.wandb")]
    assert files == [f"run-{identifier}.wandb"] * 2


TRAIN = """
import sys
from types import SimpleNamespace
from trainbook.runs import RunFolder
from trainbook import tracking
run = RunFolder.create(sys.argv[1], "a")
logging = SimpleNamespace(report_to=("wandb",), logging_dir=None)
trackers = tracking.build(logging, run, segment=0, total_steps=3, close_seconds=float(sys.argv[2]))
for step in (1, 2, 3):
    trackers.log_metrics(step, "train", {"loss": 1.0})
exec(sys.argv[3])
trackers.close("finished")
"""

KILL_WANDBS_OWN_PROCESS = """
import os, signal, time
from pathlib import Path
while not list(run.path.glob("wandb/offline-run-*/run-*.wandb")):
    time.sleep(0.01)
[child] = [child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()]
os.kill(int(child), signal.SIGKILL)
trackers.log_metrics(4, "train", {"loss": 1.0})
"""


def train_in_a_process(tmp_path: Path, close_seconds: float, then: str = "", **variables: str) -> tuple[RunFolder, str]:
    """A process of its own, without the user's W&B account, whose standard input would answer no question."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path), str(close_seconds), then],
        env={**kept, **home, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return RunFolder(tmp_path / "a"), done.stdout + done.stderr


def tracker_events(run: RunFolder) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["kind"] == "tracker"]


def test_without_an_account_the_rows_are_kept_for_later_and_one_event_says_so(tmp_path: Path):
    pytest.importorskip("wandb")
    run, output = train_in_a_process(tmp_path, close_seconds=30)
    [event] = tracker_events(run)
    assert "no API key is set" in event["reason"] and "wandb sync" in event["reason"]
    assert len(run.metrics()) == 3
    assert list(run.path.glob("wandb/offline-run-*/run-*.wandb"))
    assert "wandb:" not in output.replace(event["reason"], "")  # W&B itself prints nothing


def test_a_server_that_never_answers_delays_neither_the_run_nor_the_end_of_the_process(tmp_path: Path):
    pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and stays silent
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        run, _ = train_in_a_process(tmp_path, close_seconds=3, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    [event] = tracker_events(run)
    assert "did not finish within 3 s and was abandoned; 3 row(s) are missing there" in event["reason"]
    assert len(run.metrics()) == 3


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds the process through /proc")
def test_killing_wandbs_own_process_costs_rows_there_and_nothing_here(tmp_path: Path):
    pytest.importorskip("wandb")
    run, output = train_in_a_process(tmp_path, 10, KILL_WANDBS_OWN_PROCESS, WANDB_MODE="offline")
    assert len(run.metrics()) == 4
    reasons = [event["reason"] for event in tracker_events(run)]
    assert 1 <= len(reasons) <= 2
    assert "failed" in reasons[0] or "could not start" in reasons[0]
    assert "Traceback" not in output
