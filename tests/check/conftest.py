from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainbook.check import CHECKS, CheckOutcome, CheckSubject, examine
from trainbook.knobs import load

SLOW = ("overfit", "inputs", "resume", "workers")  # they train or start processes: asked for by name
QUICK = tuple(check.name for check in CHECKS if check.name not in SLOW)
TINY = {
    "model": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
    "data": {"max_seq_length": 16, "validation_ratio": 0.2},
    "batch": {"global_batch_size": 4},
    "training": {"max_steps": 100},
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"type": "cosine", "warmup_steps": 5},
}
# What each architecture reads, all of it made of the same words.
KINDS: dict[str, dict[str, Any]] = {
    "gpt": {"model": {"type": "gpt"}},
    "bert": {"model": {"type": "bert"}},
    "t5": {"model": {"type": "t5", "position": "relative", "norm": "rmsnorm"}, "data": {"max_target_length": 12}},
    "classify": {"model": {"type": "bert"}, "data": {"label_field": "label", "max_seq_length": 48}},
    "seq2seq": {
        "model": {"type": "t5"},
        "training": {"task": "seq2seq"},
        "data": {"max_target_length": 24, "max_seq_length": 48},
    },
}


class Bench:
    """A folder with texts and records, and subjects of checks that are built there."""

    def __init__(self, root: Path, make_text: Callable[..., str]) -> None:
        self.root, self.count = root, 0
        self.text = root / "text.txt"
        self.text.write_text(make_text(1500))
        texts = [make_text(2 + number % 7, seed=number + 1).strip() for number in range(160)]
        self.records = self.write(
            "records.jsonl",
            (
                {"text": f"{number} {text}", "label": "abc"[number % 3], "target": text[:8][::-1]}
                for number, text in enumerate(texts)
            ),
        )

    def write(self, name: str, rows: Iterable[dict[str, Any]]) -> Path:
        path = self.root / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def config(self, *overrides: str, kind: str = "gpt") -> Any:
        source = self.text if kind in ("gpt", "bert", "t5") else self.records
        base = {name: dict(section) for name, section in TINY.items()}
        for name, section in {"data": {"source": str(source)}, **KINDS[kind]}.items():
            base[name] = {**base.get(name, {}), **section}
        base["data"] |= {"source": str(source)}
        return load(base, overrides).config

    def subject(self, *overrides: str, kind: str = "gpt") -> CheckSubject:
        self.count += 1
        folder = self.root / f"subject-{self.count}"
        folder.mkdir()
        return CheckSubject.of(self.config(*overrides, kind=kind), folder)


def outcomes(subject: CheckSubject, *names: str) -> dict[str, CheckOutcome]:
    """Of the checks of these names, or of all that are quick."""
    chosen = [check for check in CHECKS if check.name in (names or QUICK)]
    return {result.check.name: result.outcome for result in examine(subject, chosen)}


def failing(subject: CheckSubject, *names: str) -> set[str]:
    return {name for name, outcome in outcomes(subject, *names).items() if outcome.status == "failed"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, make_text: Callable[..., str]) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), make_text)
