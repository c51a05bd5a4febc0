from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.charts.ablation import rates_figure

RESULTS = Path(__file__).parents[2] / "studies" / "results"


def test_marked_learning_rates_are_those_tried_and_leave_room_for_each_other():
    pytest.importorskip("matplotlib")
    facts = json.loads((RESULTS / "gpt-sensitivity.json").read_text(encoding="utf-8"))
    for axis in rates_figure(facts).axes:
        marks = [float(each.get_text()) for each in axis.get_xticklabels()]
        assert set(marks) <= set(facts["rates"]) and 2 <= len(marks) <= 5
