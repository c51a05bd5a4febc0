"""Mirrors of a run can be had, and can fail, without the run noticing."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # tests/tracking has the trackers one by one


def test_a_run_is_mirrored_to_tensorboard_and_to_wandb_offline(shell, whole):
    ended = shell.train(
        "mirrored", "logging.report_to=[tensorboard,wandb]", "--quiet", environment={"WANDB_MODE": "offline"}
    )
    assert ended.returncode == 0, ended.stderr
    run = shell.folder("mirrored")
    assert list(run.tensorboard.glob("events.out.tfevents.*"))
    assert list((run.path / "wandb").glob("offline-run-*"))
    assert [event for event in run.events() if event["kind"] == "tracker"] == []
    shell.must_be_equal(whole, "mirrored")


BROKEN = """
import tensorboard.summary.writer.event_file_writer as writer
class Broken:
    def __init__(self, *_): pass
    def add_event(self, *_): raise OSError("the network share is gone")
    def flush(self): pass
    def close(self): raise OSError("still gone")
writer.EventFileWriter = Broken
from trainbook.cli.main import run
run()
"""


def test_a_tracker_that_fails_is_an_event_and_nothing_more(shell, whole):
    ended = shell.train("broken", "logging.report_to=[tensorboard]", "--quiet", program=BROKEN)
    assert ended.returncode == 0, ended.stderr
    reasons = [event["reason"] for event in shell.folder("broken").events() if event["kind"] == "tracker"]
    assert reasons[0] == "tensorboard: failed: OSError: the network share is gone"
    shell.must_be_equal(whole, "broken")
