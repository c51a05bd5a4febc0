"""A resume that is refused changes no byte of the run folder, however untidy a killed process left that."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import pytest
from torch import nn, ones

import trainbook
from trainbook.errors import MissingExtra, ResumeError, RunFolderError, UserError


def contents(folder) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder in it, with its bytes and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.name != "lock"  # it is held for a moment
    }


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def untidy(lab):
    """A run killed amid a save, before the index and the last row were written; with a card that is out of date."""
    with lab.crashing_at(8):
        lab.train("checkpoint.save_steps=3")
    run, pid = lab.open(), dead_process()
    (run.checkpoints / "index.json").write_text('{"latest": 3, "best": null, "steps": [3]}\n')
    half = run.checkpoints / f".writing-step-00000009-{pid}"
    shutil.copytree(run.checkpoints / "step-00000006", half)
    (half / "complete.json").unlink()
    (run.path / f".manifest.json.{pid}.tmp").write_text("{")
    run.lock_file.write_text(f'{{"pid": {pid}, "host": "{socket.gethostname()}"}}')
    run.report.write_text("an older card\n")
    for file in (run.metrics_file, run.events_file):
        with file.open("ab") as stream:
            stream.write(b'{"step": 7, "segm')
    return lab


def other_data(lab) -> None:
    lab.text.write_text(lab.text.read_text()[500:])
    lab.train("checkpoint.save_steps=3")


def missing_package(lab) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.tracking.find_spec", lambda name: None)
        lab.train("checkpoint.save_steps=3", "logging.report_to=[wandb]")


REFUSED = {
    "another rate": (ResumeError, lambda lab: lab.train("optimizer.learning_rate=1e-3")),
    "another width": (ResumeError, lambda lab: lab.train("model.hidden_size=32", accept_changes=True)),
    "other data": (ResumeError, other_data),
    "data that is not there": (UserError, lambda lab: lab.train("data.source=nowhere.txt")),
    "a shorter run": (ResumeError, lambda lab: lab.train("max_steps=5", accept_changes=True)),
    "a package that is not there": (MissingExtra, missing_package),
    "resume never": (RunFolderError, lambda lab: lab.train(resume="never")),
    "fit instead of train": (ResumeError, lambda lab: fit(lab, "run", 3)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_nothing_is_changed(untidy, why: str):
    error, start = REFUSED[why]
    before, lock = contents(untidy.open().path), untidy.open().lock_file.read_bytes()
    with pytest.raises(error):
        start(untidy)
    assert contents(untidy.open().path) == before
    assert untidy.open().lock_file.read_bytes() == lock


@pytest.mark.parametrize("file", ["config.yaml", "manifest.json"])
def test_a_lost_file_is_not_brought_back_into_a_run_that_is_refused(untidy, file: str):
    (untidy.open().path / file).unlink()
    before = contents(untidy.open().path)
    for why in ("another rate", "other data"):
        error, start = REFUSED[why]
        with pytest.raises(error):
            start(untidy)
    assert contents(untidy.open().path) == before


def fit(lab, name: str, width: int) -> None:
    options = {"name": name, "runs_dir": lab.runs, "quiet": True, "max_steps": 8, "save_steps": 2}
    data = [(ones(2, width), ones(2, 1))] * 4
    trainbook.fit(nn.Linear(width, 1), data, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), **options)


def test_a_module_that_the_checkpoint_does_not_fit_changes_nothing(lab):
    with lab.crashing_at(5):
        fit(lab, "own", 3)
    before = contents(lab.open("own").path)
    with pytest.raises(ResumeError, match="the checkpoint belongs to a different model"):
        fit(lab, "own", 5)
    assert contents(lab.open("own").path) == before
    fit(lab, "own", 3)


def test_the_untidy_run_is_gone_on_with_bit_for_bit_and_tidied(untidy):
    untidy.train("checkpoint.save_steps=3", name="whole")
    untidy.train("checkpoint.save_steps=3")
    untidy.must_be_equal("run", "whole")
    assert [path.name for path in untidy.open().path.rglob(".*")] == []
