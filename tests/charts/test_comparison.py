from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from trainbook.charts import figure
from trainbook.charts.figure import draw_comparison

FACTS: dict[str, Any] = {
    "metric": "loss",
    "split": "eval",
    "unit": "nats per target",
    "by": "steps",
    "groups": [{"name": "a", "runs": ["a1", "a2"]}, {"name": "b $x$", "runs": ["b $x$"]}],
    "curves": {name: [[step, 5.0 - step / 10] for step in range(10)] for name in ("a1", "a2", "b $x$")},
    "comparisons": [
        {
            "reference": "a",
            "other": "b $x$",
            "at": 9,
            "way": [{"at": 5, "difference": -0.1}, {"at": 9, "difference": -0.2}],
            "interval": [-0.3, -0.1],
        }
    ],
}


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "DOTS_PER_INCH", 40)


def drawn(facts: dict[str, Any], path: Path) -> list[Any]:
    """The panels of the figure that was saved."""
    seen = []
    real = figure.save

    def watched(made: Any, where: Path) -> None:
        seen.append(made)
        real(made, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.charts.figure.save", watched)
        draw_comparison(facts, path)
    assert path.stat().st_size > 0
    return seen[0].axes


def test_each_run_has_a_curve_and_each_group_a_colour(tmp_path: Path):
    curves, differences = drawn(FACTS, tmp_path / "picture.png")
    lines = {line.get_label(): line for line in curves.get_lines()}
    assert list(lines) == ["a1", "a2", "b \\$x\\$"]
    assert lines["a1"].get_color() == lines["a2"].get_color() != lines["b \\$x\\$"].get_color()
    assert lines["a1"].get_linestyle() != lines["a2"].get_linestyle()
    assert list(differences.get_lines()[1].get_ydata()) == [-0.1, -0.2]


def test_without_a_way_to_compare_there_are_only_curves(tmp_path: Path):
    assert len(drawn({**FACTS, "comparisons": []}, tmp_path / "picture.svg")) == 1
