"""docs/elsewhere.md: its files are written down, its commands typed in order and its programs run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

PAGE = Path(__file__).parents[3] / "docs" / "elsewhere.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line.split(" #")[0][2:] for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
PROGRAMS = [block for kind, block in BLOCKS if kind == "python"]


def test_the_page_works_as_it_is_shown(wandb_run: Callable[..., Path], tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    from trainbook.cli.main import app

    monkeypatch.chdir(tmp_path)
    _write_logs(wandb_run)
    exec(compile(PROGRAMS[0], PAGE.name, "exec"), {})
    assert len(COMMANDS) == 8
    for command in COMMANDS:
        answer = CliRunner().invoke(app, shlex.split(command)[1:])
        assert answer.exit_code == 0, f"{command}\n{answer.output}\n{answer.exception!r}"
    assert Path("curves.png").stat().st_size > 0
    exec(compile(PROGRAMS[1], PAGE.name, "exec"), {})
    assert "One run each" in capsys.readouterr().out


def _write_logs(wandb_run: Callable[..., Path]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    steps = range(10, 401, 10)
    history = [{"step": step, "loss": 5 - step / 200, "learning_rate": 1e-4, "grad_norm": 1.0} for step in steps]
    history += [{"step": step, "eval_loss": 5.1 - step / 200} for step in steps]
    Path("output").mkdir()
    Path("output/trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 400}))
    Path("lightning_logs/version_0").mkdir(parents=True)
    rows = "".join(f"0,{step},{5 - step / 250},\n0,{step},,{5.1 - step / 250}\n" for step in steps)
    Path("lightning_logs/version_0/metrics.csv").write_text(f"epoch,step,train_loss,val_loss\n{rows}")
    writer = EventFileWriter("tensorboard")
    for step in steps:
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=1.0)])))
    writer.close()
    root = wandb_run([{"iter": step, "train/loss": 5 - step / 220} for step in steps])
    [run] = root.glob("wandb/offline-run-*")
    link = run.parent / "latest-run"
    if not link.exists():
        link.symlink_to(run.name)


def test_torch_and_the_other_tools_are_not_needed_to_read_their_runs(trained_elsewhere: Path, tmp_path: Path):
    shutil.copytree(trained_elsewhere, tmp_path / "output")
    code = (
        "import sys; from trainbook.runs.record import open_record; "
        "open_record('output'); open_record('output/runs'); "
        "found = {'torch', 'transformers', 'tensorboard', 'wandb', 'google.protobuf'} & set(sys.modules); "
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
