from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainbook.study.ablate.planning import Cell, cells_of, next_order
from trainbook.study.ablate.study_file import AblateQuestion, read_ablation
from trainbook.study.tune.trial import Trial

FIXED = ["training.max_steps=10", "schedule.warmup_steps=1"]
ARMS = "arms: {momentum: {beta1: 0.8}, epsilon: {optimizer.epsilon: 1e-6}}\n"
DATA = "data: {one: {data.source: x.txt}, two: {data.source: y.txt}}\n"
Asks = Callable[..., AblateQuestion]
# Of an arm and data set, a learning rate and a seed: the loss, or None where it cannot be trained.
Truth = Callable[[Cell, float, int], float | None]


@pytest.fixture
def ask(tmp_path: Path) -> Asks:
    def question(text: str = ARMS + DATA, **options: object) -> AblateQuestion:
        path = tmp_path / "study.yaml"
        path.write_text(f"base: gpt-tiny\n{text}")
        return read_ablation(path, FIXED, **options)

    return question


def carried_out(
    question: AblateQuestion, truth: Truth, before: Sequence[Trial] = (), plan: Mapping[str, Any] | None = None
) -> tuple[list[Trial], dict[str, Any]]:
    """The whole study, in place of training: its trials, and its plan."""
    trials, kept = list(before), dict(plan or {})
    base = question.loaded.config.optimizer.learning_rate
    while (order := next_order(question, trials, kept)).trials:
        kept |= order.plan or {}
        for each in order.trials:
            loss = truth(
                cells_of(question, kept)[each.arm], each.values.get("optimizer.learning_rate", base), each.seed or 0
            )
            ended = {"state": "infeasible", "reason": "diverged"} if loss is None else {"state": "done", "loss": loss}
            trials.append(replace(each, **ended))  # pyright: ignore[reportArgumentType]
    return trials, kept
