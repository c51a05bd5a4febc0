from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainbook.errors import RunError
from trainbook.runs import RunFolder
from trainbook.tracking import FileTracker

ROW = {"step": 1, "segment": 0, "split": "train", "time": 1.0, "loss": 1.0}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_run_with_the_files_name(tmp_path: Path):
    run = RunFolder.create(tmp_path, "a")
    run.metrics_file = Path("/dev/full")
    tracker = FileTracker(run)
    with pytest.raises(RunError, match=r"/dev/full: cannot be written: No space left on device"):
        tracker.log_metrics(ROW)
    tracker.log_event({"step": 1, "segment": 0, "time": 1.0, "kind": "skip"})
    tracker.close("failed")
    assert len(run.events()) == 1


def test_rows_can_be_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    tracker = FileTracker(RunFolder.create(tmp_path, "a"))
    monkeypatch.setattr(os, "fsync", synced.append)
    tracker.fsync()
    tracker.close("finished")
    assert len(synced) == 2
