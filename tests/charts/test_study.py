"""Pictures of studies: what is drawn how."""

from __future__ import annotations

from typing import Any

import pytest

from trainbook.charts import study as charts


def knob(path: str) -> dict[str, Any]:
    return {"path": path, "scale": "log", "low": 1e-4, "high": 1e-1, "choices": None}


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_of_all_trials_the_better_one_is_darker(higher_is_better: bool) -> None:
    paths, losses = ("optimizer.learning_rate", "optimizer.epsilon"), {0: 2.0, 1: 5.0, 2: 3.0, 3: 4.0}
    trials = [
        {"number": n, "kind": "search", "state": "done", "loss": loss, "values": dict.fromkeys(paths, 10.0 ** (n - 4))}
        for n, loss in losses.items()
    ]
    best = max(losses, key=lambda n: losses[n]) if higher_is_better else 0
    facts = {"trials": trials, "base_values": {}, "space": [knob(path) for path in paths], "metric": "m"}
    drawn = charts.study_figures({**facts, "recommended": best, "higher_is_better": higher_is_better})
    lines = [line for line in drawn["parallel"].axes[0].lines if len(line.get_xdata()) == 2 and line.get_alpha()]
    darkness = {round(3 * line.get_ydata()[0]): line.get_alpha() for line in lines}
    by_darkness = sorted(losses, key=lambda n: darkness[n], reverse=True)
    assert by_darkness == sorted(losses, key=lambda n: losses[n], reverse=higher_is_better)
