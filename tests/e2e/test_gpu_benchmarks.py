"""The benchmarks for a GPU assemble their trainings themselves: in small, on a CPU, they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest


def test_a_benchmarks_training_takes_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    pytest.importorskip("transformers")
    from common import trainbook_training
    from gpu import TINY

    with trainbook_training(replace(TINY, device="cpu", steps=2)) as training:
        assert training.advance(2) > 0
