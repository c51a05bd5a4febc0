from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainbook.study.tune.study_file import StudyQuestion, read_question

HERE = Path(__file__).parent
Asks = Callable[..., StudyQuestion]
FIXED = ["data.source=x.txt", "training.max_steps=10", "schedule.warmup_steps=1"]


@pytest.fixture
def ask(tmp_path: Path) -> Asks:
    def question(text: str = "nuisance: {learning_rate: }\n", **options: object) -> StudyQuestion:
        path = tmp_path / "study.yaml"
        path.write_text(f"base: gpt-tiny\n{text}")
        return read_question(path, FIXED, **{"budget": 8, "seeds": 2, **options})  # pyright: ignore

    return question


@pytest.fixture
def objectives_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the processes of workers, which import them."""
    source = HERE.parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(source), os.environ.get("PYTHONPATH", "")]))


def worker_with(objective: str) -> list[str]:
    """The command of a worker that computes this in place of training."""
    return [sys.executable, "-m", "trainbook.cli.trial", "--objective", f"objectives:{objective}"]
