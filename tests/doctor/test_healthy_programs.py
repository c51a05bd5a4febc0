"""Twenty healthy programs as users write them: the doctor finds no error in any."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytest.importorskip("transformers")
pytest.importorskip("lightning")

from healthy_programs.run import findings, names, run

QUICK = ("fit_own_loss", "regression")


def program(name: str) -> Any:
    return pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])


def test_there_are_twenty_of_them() -> None:
    assert len(names()) == 20
    assert set(QUICK) <= set(names())


@pytest.mark.parametrize("name", [program(name) for name in names()])
def test_a_healthy_program_of_a_user_gets_no_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", forked.Popen)
    records = run(name, tmp_path)
    assert records
    for record in records:
        assert [each["says"] for each in findings(record) if each["severity"] == "error"] == [], record.name
