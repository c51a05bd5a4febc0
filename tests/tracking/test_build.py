from __future__ import annotations

import importlib.util
import io
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from trainbook import tracking
from trainbook.errors import MissingExtra
from trainbook.runs import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def build(run: RunFolder, *report_to: str, logging_dir: str | None = None, **options: Any) -> tracking.Trackers:
    logging: Any = SimpleNamespace(report_to=report_to, logging_dir=logging_dir)
    return tracking.build(logging, run, **{"segment": 0, "total_steps": 10, **options})


def test_files_and_terminal_are_always_written(run: RunFolder):
    output = io.StringIO()
    with build(run, console=Console(file=output)) as trackers:
        trackers.log_metrics(1, "train", {"loss": 2.0})
    assert output.getvalue() == "step      1/10  loss 2.0000\n"
    assert len(run.metrics()) == 1


def test_quiet_leaves_out_the_terminal(run: RunFolder, capsys: pytest.CaptureFixture[str]):
    with build(run, quiet=True) as trackers:
        trackers.log_metrics(1, "train", {"loss": 2.0})
        trackers.log_event("failure", reason="disk full")
    assert capsys.readouterr() == ("", "")
    assert len(run.metrics()) == 1


@pytest.mark.parametrize("logging_dir", [None, "shared"])
def test_tensorboard_writes_into_the_run_or_into_a_folder_of_the_runs_name(
    run: RunFolder, tmp_path: Path, logging_dir: str | None
):
    pytest.importorskip("tensorboard")
    shared = str(tmp_path / logging_dir) if logging_dir else None
    with build(run, "tensorboard", logging_dir=shared, quiet=True, close_seconds=30) as trackers:
        trackers.log_metrics(1, "train", {"loss": 2.0})
    folder = tmp_path / "shared" / "a" if shared else run.tensorboard
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert run.events() == []


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
@pytest.mark.parametrize("spec", [None, ModuleSpec("a folder without a package", None)])
def test_a_missing_package_is_said_before_any_training(
    run: RunFolder, package: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracking, "find_spec", lambda name: spec if name == package else importlib.util.find_spec(name))
    with pytest.raises(MissingExtra, match=rf"pip install 'trainbook\[{package}\]'"):
        build(run, package)
    assert not run.metrics_file.exists()
