"""The measured table of faults: some of its rows in short, the page that shows it, and the oracle that judges."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RELIABILITY = Path(__file__).parents[2] / "reliability"


@pytest.mark.slow
def test_rows_of_the_table_hold_in_short(shell, tmp_path: Path):
    results = tmp_path / "faults.json"
    command = [sys.executable, str(RELIABILITY / "faults.py"), "--short", "--rows", "2b,6a", "--json", str(results)]
    done = subprocess.run(command, env=shell.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(results.read_text())["rows"]
    assert {name: row["holds"] for name, row in rows.items()} == {"2b": True, "6a": True}


def test_the_page_is_what_the_results_say():
    done = subprocess.run([sys.executable, str(RELIABILITY / "page.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RELIABILITY))
    yield importlib.import_module


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with two checkpoints and a few rows."""
    import torch

    from trainbook.checkpoints import CheckpointStore

    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (10, 20):
        store.save(step, {"model": {"weight": torch.randn(8)}, "optimizer": {"average": torch.randn(8)}, "loop": {}})
    rows = [{"step": step, "segment": 0, "split": "train", "loss": 1 / step} for step in range(1, 23)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run" / "events.jsonl").write_text('{"step": 0, "segment": 0, "kind": "start"}\n')
    return tmp_path / "run"


def test_the_oracle_sees_every_flipped_bit_by_itself(tool: Any, run: Path):
    oracle, damage = tool("oracle"), tool("damage")
    newest = run / "checkpoints" / "step-00000020"
    assert oracle.newest_whole(run).step == 20
    flips = damage.bits_of_every_file(newest, random.Random(0))
    assert {flip.path.name for _, flip in flips} == {path.name for path in newest.iterdir()}
    for _, flip in flips:
        flip.do()
        assert (oracle.newest_whole(run).step, oracle.damaged_before(run, oracle.newest_whole(run))) == (10, {20}), flip
        flip.do()
    assert oracle.newest_whole(run).step == 20


def test_the_oracle_misses_no_row_and_no_last_digit(tool: Any, run: Path, tmp_path: Path):
    oracle, shutil = tool("oracle"), tool("shutil")
    twin = Path(shutil.copytree(run, tmp_path / "twin"))
    assert oracle.faults_of_rows(run, twin) == []
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:6] + lines[7:]))
    assert oracle.faults_of_rows(run, twin) == ["train rows are missing for the steps [7]"]
    (run / "metrics.jsonl").write_text("".join(lines).replace("0.14285714285714285", "0.14285714285714288"))
    assert oracle.faults_of_rows(run, twin) == ["the train row of step 7 differs from the twin's"]


def test_the_oracle_knows_where_a_run_has_to_go_on(tool: Any, run: Path):
    oracle = tool("oracle")
    before = oracle.newest_whole(run)
    with (run / "events.jsonl").open("a") as events:
        events.write('{"step": 10, "segment": 1, "kind": "resume"}\n')
    assert oracle.faults_of_resume(run, before, set(), {0}) == [
        "resumed from step 10, but the newest whole checkpoint is step 20"
    ]
    older = oracle.checkpoints(run)[1]
    assert oracle.faults_of_resume(run, older, {20}, {0}) == [], "it may have been killed before it could tell"
    with (run / "events.jsonl").open("a") as events:
        events.write('{"step": 40, "segment": 1, "kind": "checkpoint"}\n')
    assert oracle.faults_of_resume(run, older, {20}, {0}) == ["damaged are [20], told were []"]
    assert oracle.faults_of_keeping(run, before, {0}) == ["step 40 was saved, but the newest whole checkpoint is 20"]
    assert list(oracle.rows_that_count(run, "train")) == list(range(1, 11)), "what came after step 10 was given up"


def test_whatever_is_changed_in_a_folder_is_noticed_at_any_depth(tool: Any, run: Path):
    lab = tool("lab")
    before = lab.bytes_of(run)
    assert lab.changed(before, lab.bytes_of(run)) == []
    (run / "checkpoints" / "step-00000010" / "state.json").write_bytes(b"{}")
    (run / "checkpoints" / "step-00000020" / "best-00000001").touch()
    (run / "checkpoints" / "step-00000020" / "complete.json").unlink()
    (run / "checkpoints" / "empty").mkdir()
    (run / "events.jsonl").write_bytes(b"")
    assert lab.changed(before, lab.bytes_of(run)) == [
        "checkpoints/empty",
        "checkpoints/step-00000010/state.json",
        "checkpoints/step-00000020/best-00000001",
        "checkpoints/step-00000020/complete.json",
        "events.jsonl",
    ]
