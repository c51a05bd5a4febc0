from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

TINY = (
    "model.num_hidden_layers=1",
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "data.max_seq_length=16",
    "batch.global_batch_size=4",
    "training.max_steps=8",
    "schedule.warmup_steps=2",
    "evaluation.eval_steps=4",
    "evaluation.eval_max_samples=6",
    "optimizer.learning_rate=1e-2",
)


class Terminal:
    """The command line inside this process, in the current folder."""

    def __init__(self) -> None:
        self.tiny = ("gpt-tiny", "data.source=text.txt", "data.cache_dir=cache", *TINY)

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        from trainbook.cli.main import app

        answer = CliRunner().invoke(app, list(arguments))
        # Whatever is not an exit is a traceback on a real terminal.
        assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
        assert answer.exit_code == code, answer.output
        return answer

    def train(self, *arguments: str, code: int = 0) -> Result:
        return self("train", *self.tiny, *arguments, code=code)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments).stdout)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_text: Callable[..., str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(make_text(1200))
    return Terminal()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_text: Callable[..., str]) -> Iterator[Terminal]:
    """A terminal in a folder that has a finished run called `run`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        Path("text.txt").write_text(make_text(1200))
        terminal = Terminal()
        terminal.train("--name", "run", "--quiet")
        yield terminal
