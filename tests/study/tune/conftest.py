from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainbook.study.tune.study_file import Question, read_question

FIXED = ["data.source=x.txt", "training.max_steps=10", "schedule.warmup_steps=1"]


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Question]:
    def question(text: str = "nuisance: {learning_rate: }\n", **options: object) -> Question:
        path = tmp_path / "study.yaml"
        path.write_text(f"base: gpt-tiny\n{text}")
        return read_question(path, FIXED, **{"budget": 8, "seeds": 2, **options})  # pyright: ignore

    return question
