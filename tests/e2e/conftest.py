from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import forked

import trainbook

SOURCE = str(Path(trainbook.__file__).parents[1])  # also where it is not installed

# A step slow enough to be hit, a run short enough to be repeated; every step has a row, to aim by.
SMALL = (
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.dropout=0.1",
    "data.max_seq_length=64",
    "batch.global_batch_size=16",
    "batch.gradient_accumulation_steps=2",
    "training.max_steps=60",
    "optimizer.learning_rate=1e-2",
    "schedule.warmup_steps=5",
    "logging.dense_steps=60",
    "checkpoint.save_steps=7",
    "evaluation.eval_steps=20",
    "evaluation.eval_max_samples=8",
)

SLOW_STEP = """
import sys, time
from trainbook.loop import train
real = train.train_step
def slow(state, batch, **how):
    if state.step == {step}:
        time.sleep(60)
    return real(state, batch, **how)
train.train_step = slow
from trainbook.cli.main import run
run()
"""


class Shell:
    """The command line, as a user has it: one process a command, in a folder of its own.

    Processes are forked from one that has imported everything, unless they are to be `fresh`: a new Python.
    """

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        (root / "text.txt").write_text(text)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "TRAINBOOK_CACHE": str(root / "cache"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
        self.small = ("gpt-tiny", "data.source=text.txt", *SMALL)

    def start(
        self, *arguments: str, program: str | None = None, fresh: bool = False, **options: Any
    ) -> subprocess.Popen[str]:
        command = [sys.executable, *(("-c", program) if program else ("-m", "trainbook")), *arguments]
        return (subprocess.Popen if fresh else forked.Popen)(
            command,
            cwd=self.root,
            env={**self.environment, **options.pop("environment", {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def train(self, name: str, *overrides: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run("train", *self.small, *overrides, "--name", name, **options)

    def folder(self, name: str) -> Any:
        from trainbook.runs import RunFolder

        return RunFolder(self.root / "runs" / name)

    def wait_for_row(self, name: str, step: int, process: subprocess.Popen[str]) -> bool:
        """Whether the run wrote the row of this step while its process was alive."""
        file = self.folder(name).metrics_file
        wanted = f'"step": {step},'.encode()
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and process.poll() is None:
            if file.exists() and (step == 0 or wanted in file.read_bytes()):
                return True
            time.sleep(0.002)
        return False

    def rows(self, name: str) -> dict[int, tuple[float, ...]]:
        names = ("loss", "grad_norm", "learning_rate", "tokens", "clipped")
        return {row["step"]: tuple(row[name] for name in names) for row in self.folder(name).metrics("train")}

    def must_be_equal(self, one: str, other: str) -> None:
        assert self.rows(one) == self.rows(other)
        losses = [[(row["step"], row["loss"]) for row in self.folder(name).metrics("eval")] for name in (one, other)]
        assert losses[0] == losses[1]
        assert self.final_files(one) == self.final_files(other)

    def final_files(self, name: str) -> dict[str, bytes]:
        folder = max(self.folder(name).checkpoints.glob("step-*"))
        assert folder.name == "step-00000060"
        files = [*folder.glob("model*.safetensors"), *folder.glob("optimizer*.safetensors")]  # one of each, or slices
        assert len(files) >= 2, f"{folder} has {len(files)} files of tensors"
        return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory, make_text: Callable[..., str]) -> Shell:
    return Shell(tmp_path_factory.mktemp("shell"), make_text(6000))


@pytest.fixture(scope="session")
def whole(shell: Shell) -> str:
    """The name of a run that nothing interrupted."""
    ended = shell.train("whole", "--quiet", fresh=True)
    assert ended.returncode == 0, ended.stderr
    return "whole"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that must not outlive the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def slow_step() -> Callable[[int], str]:
    return lambda step: SLOW_STEP.format(step=step)
