"""A handful of the families that benchmarks/families.py goes through: trained, exported, loaded by transformers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs

pytestmark = needs("transformers")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "families.py"


@pytest.fixture(scope="module")
def families() -> Any:
    spec = importlib.util.spec_from_file_location("families", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["families"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("llama, llama3 rope", "native"),
        ("mistral, sliding window", "native"),
        ("qwen2", "native"),
        ("llama, dynamic rope", "fallback"),
        ("opt", "fallback"),
        ("roberta", "fallback"),
        ("bart", "fallback"),
    ],
)
def test_a_family_leaves_as_what_it_came_in(families: Any, name: str, outcome: str, tmp_path: Path) -> None:
    row = families.measure(name, tmp_path)
    assert row.outcome == outcome and all(row.keeps.values()), row
    assert bool(row.reason) == (outcome == "fallback")
