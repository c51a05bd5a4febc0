"""Runs of an earlier version, whose default batch was multiplied by their processes and not written down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainbook.loop.request import with_batch_as_begun

PATH = "batch.global_batch_size"


@pytest.fixture
def begun(lab):
    """As such a version left a run of two processes: 64 sequences in each update, of which no file tells."""
    unset = lab.config()
    unset["batch"] = {}
    lab.config = lambda samples="windows": unset
    with lab.interrupted_at(5):
        lab.train(f"{PATH}=64")
    run = lab.open()
    manifest = run.read_manifest()
    manifest.config["batch"]["global_batch_size"] = None
    manifest.determinism["world"] = 2
    run.write_manifest(manifest)
    told = run.config.read_text().splitlines()
    told = ["  global_batch_size: null" if line.startswith("  global_batch_size:") else line for line in told]
    run.config.write_text("\n".join(told) + "\n")
    forget_batch(run)
    return lab


def forget_batch(run: Any) -> None:
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    told = [{key: value for key, value in event.items() if key != "global_batch"} for event in events]
    (run.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))


def test_such_a_run_goes_on_with_its_batch_and_writes_it_down(begun):
    begun.train()
    assert begun.open().recorded().batch.global_batch_size == 64
    assert f"{PATH} is now stated: 64" in " ".join(event["reason"] for event in begun.events("notice"))
    assert "  global_batch_size: 64  # derived: 32 x 2 processes" in begun.open().config.read_text()
    begun.train(f"{PATH}=64", name="whole")
    assert begun.rows() == begun.rows("whole")


def test_its_batch_stays_though_it_was_resumed_by_fewer_processes(begun):
    with begun.interrupted_at(8):
        begun.train()
    begun.train("logging.logging_steps=5")
    assert begun.open().recorded().batch.global_batch_size == 64
    assert begun.open().read_manifest().status == "finished"


def test_a_run_that_says_how_large_its_batch_is_is_taken_at_its_word(lab):
    unset = lab.config()
    unset["batch"] = {}
    lab.config = lambda samples="windows": unset
    lab.train()
    run = lab.open()
    manifest = run.read_manifest()
    manifest.determinism["world"] = 2
    run.write_manifest(manifest)
    loaded = lab.load()
    assert lab.events("start")[0]["global_batch"] == 32
    assert with_batch_as_begun(run, loaded, run.config.read_text()) is loaded
