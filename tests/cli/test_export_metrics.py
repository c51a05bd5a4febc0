from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.run_folders import make_run

from trainbook.runs.record import open_record


def test_metrics_are_written_and_the_place_is_told(terminal):
    make_run(Path("runs/a"), evaluations={3: {"loss": 1.5}})
    assert terminal("export-metrics", "a", "--to", "csv").stdout == "a.csv\n"
    assert open_record("a.csv").series("loss", "eval") == ([3], [1.5])
    answer = terminal.json("export-metrics", "runs/a", "--to", "csv", "--output", "b.csv", "--json")
    assert answer == {"run": "a", "format": "csv", "path": "b.csv"}
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()


def test_the_next_command_is_told(terminal):
    pytest.importorskip("tensorboard")
    make_run(Path("runs/a"))
    told = terminal("export-metrics", "a", "--to", "tensorboard", "--output", "logs").stdout
    assert told == "logs\n  tensorboard --logdir logs\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--to", "excel"), "--to: must be one of tensorboard, wandb, csv, parquet, but got excel."),
        (("aa", "--to", "csv"), "Did you mean runs/a?"),
        (("a",), "Missing option '--to'"),
        (("a", "--to", "csv", "--output", "runs"), "'runs' already exists, and nothing is overwritten"),
        (("a", "--to", "csv", "--output", "no/x.csv"), "there is no folder 'no'"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(terminal, arguments: tuple[str, ...], message: str):
    make_run(Path("runs/a"))
    told = terminal("export-metrics", *arguments, code=2).stderr
    assert message in " ".join(told.split()) and "Traceback" not in told


def test_torch_stays_unloaded(terminal):
    make_run(Path("runs/a"))
    code = (
        "import sys; from trainbook.cli.main import app; "
        "app(['export-metrics', 'a', '--to', 'csv'], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
