"""Trainbook as a user has it: one process a command, in a folder of its own; and where such a process has got to."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

STEPS, SAVE_STEPS = 80, 10

# The model, data and length of the measurements of the other trainers. Every step has a row, to aim by and to compare.
SMALL = (
    "gpt-tiny",
    "data.source=text.txt",
    "model.num_hidden_layers=2",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.dropout=0.1",
    "data.max_seq_length=64",
    "batch.global_batch_size=8",
    f"training.max_steps={STEPS}",
    "training.seed=0",
    "optimizer.learning_rate=3e-3",
    "schedule.type=linear",
    "schedule.warmup_steps=5",
    "logging.dense_steps=1000",
    f"checkpoint.save_steps={SAVE_STEPS}",
    "evaluation.eval_steps=20",
    "evaluation.eval_max_samples=16",
)
PATIENCE_SECONDS = 300  # a process that has not come to the awaited place by then never will
POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Ended:
    command: str
    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def last_words(self) -> str:
        lines = [line.strip() for line in self.err.strip().splitlines() if line.strip()]
        return lines[-1] if lines else ""


def let_hangups_reach_children() -> None:
    """Under nohup a hangup is ignored, and every child would be born deaf to it; a handler is not handed down."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


class Running:
    """A process whose output goes to files: a pipe would be held open by workers that outlive it."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.command = shlex.join(command[2:] if command[1:2] == ["-m"] else command[3:])
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        self._began = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_until(self, is_there: Callable[[], bool]) -> bool:
        """Whether the place was reached while the process was alive."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.is_alive():
            if is_there():
                return True
            if time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(f"after {PATIENCE_SECONDS} s still not where it should be: {self.command}")
            time.sleep(POLL_SECONDS)
        return False

    def send(self, number: signal.Signals) -> None:
        if self.is_alive():
            self.process.send_signal(number)

    def stop(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self) -> Ended:
        try:
            code = self.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            raise TimeoutError(f"did not end within {PATIENCE_SECONDS} s: {self.command}") from None
        out, err = (path.read_text(errors="replace") for path in (self._out, self._err))
        return Ended(self.command, code, out, err, time.monotonic() - self._began)


class Bench:
    """A working folder with a text, a cache and runs."""

    def __init__(self, root: Path, settings: tuple[str, ...] = SMALL, text: str | None = None) -> None:
        """Without a `text`, one is made up, of 35 kilobytes."""
        self.root, self.settings = root, settings
        (root / "logs").mkdir(parents=True, exist_ok=True)
        (root / "text.txt").write_text(text or text_of(6000, seed=0))
        source = importlib.util.find_spec("trainbook")
        assert source is not None and source.origin is not None, "trainbook is not installed"
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(source.origin).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "TRAINBOOK_CACHE": str(root / "cache"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
        self._numbers = iter(range(1_000_000))

    def start(self, *arguments: str, program: str | None = None, **environment: str) -> Running:
        """`program` is Python that ends in the command line; it stands for a machine or a package that misbehaves."""
        command = [sys.executable, *(("-c", program) if program else ("-m", "trainbook")), *arguments]
        log = self.root / "logs" / f"{next(self._numbers):04d}"
        return Running(command, self.root, {**self.environment, **environment}, log)

    def run(self, *arguments: str, program: str | None = None, **environment: str) -> Ended:
        return self.start(*arguments, program=program, **environment).end()

    def train_command(self, name: str, *overrides: str) -> tuple[str, ...]:
        """An override takes the place of the same setting: the command line refuses a key that is set twice."""
        changed = {override.split("=")[0] for override in overrides}
        kept = [setting for setting in self.settings if setting.split("=")[0] not in changed]
        return ("train", *kept, *overrides, "--name", name)

    def train(self, name: str, *overrides: str, **options: Any) -> Ended:
        return self.run(*self.train_command(name, *overrides), **options)

    def folder(self, name: str) -> Path:
        return self.root / "runs" / name

    def copy(self, name: str, to: str) -> Path:
        return Path(shutil.copytree(self.folder(name), self.folder(to)))

    def clear(self, name: str) -> None:
        shutil.rmtree(self.folder(name), ignore_errors=True)

    def shown(self, text: str) -> str:
        """What a command said, without the place where it happened to run."""
        return text.replace(f"{self.root}{os.sep}", "").replace(str(self.root), ".")


class Tail:
    """The rows that are appended to a file from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = path.read_bytes() if path.exists() else b""
        self._offset = content.rfind(b"\n") + 1  # a torn end will be cut off by whoever writes next

    def lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            return file.read().split(b"\n")[:-1]

    def last_step(self) -> int:
        steps = [int(found.group(1)) for line in self.lines() if (found := re.search(rb'"step": (\d+)', line))]
        return max(steps, default=-1)


def save_under_way(checkpoints: Path, pid: int) -> dict[str, int] | None:
    """The files, with their sizes, of the checkpoint that this process is writing; None when it is writing none."""
    try:
        names = [name for name in os.listdir(checkpoints) if re.fullmatch(rf"\.writing-step-\d+-{pid}", name)]
        if not names:
            return None
        with os.scandir(checkpoints / names[0]) as files:
            return {file.name: file.stat().st_size for file in files}
    except FileNotFoundError:  # finished between two looks
        return None


def text_of(num_words: int, seed: int, vocabulary: int = 60) -> str:
    """Words that depend on the word before, so that there is something to learn."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("abcdefghilmnoprstuvw") for _ in range(draw.randint(2, 8))) for _ in range(vocabulary)]
    followers = {word: [draw.choice(words) for _ in range(4)] for word in words}
    text, word = [], words[0]
    for _ in range(num_words):
        text.append(word + draw.choice("     \n"))
        word = draw.choice(followers[word])
    return "".join(text)


def machine() -> dict[str, Any]:
    """What a measurement was made on and with."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    versions = {"trainbook": project["version"], "python": platform.python_version()}
    for package in ("torch", "numpy", "safetensors", "tensorboard", "wandb", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"versions": versions, "system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()}


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
