from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def rules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rules say and how they are weighed, without what was learned from other runs: that has tests of its own."""
    monkeypatch.setattr(importlib.import_module("trainbook.doctor.diagnose"), "likeness_of", lambda *_: None)
