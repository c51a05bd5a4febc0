"""What an evaluation leaves beside its metrics: which classes were taken for which, and texts that the model wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_TEXTS = 16  # generated answers of one evaluation that are kept
LONGEST = 2000  # characters


@dataclass
class EvaluationRecord:
    confusion: list[list[int]] | None = None  # a row for each true class, a column for each predicted one
    generations: list[dict[str, Any]] = field(default_factory=list)

    def add_text(self, prompt: str, text: str, **more: str) -> None:
        told = {"prompt": prompt, "text": text, **more}
        self.generations.append({name: _cut(value) for name, value in told.items()})


def _cut(text: str) -> str:
    return f"{text[: LONGEST - 1]}…" if len(text) > LONGEST else text
