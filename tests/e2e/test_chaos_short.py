"""A few random faults, as `python reliability/chaos.py` has them by the hundred."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "reliability" / "chaos.py"


@pytest.mark.slow
def test_random_faults_one_after_the_other_lose_nothing(shell, tmp_path: Path):
    results = tmp_path / "chaos.json"
    command = [sys.executable, str(CHAOS), "--faults", "8", "--seed", "1", "--jobs", "1", "--json", str(results)]
    done = subprocess.run(command, env=shell.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(results.read_text())
    assert (result["faults"], result["problems"]) == (8, [])
    assert result["bit_equal_runs"] == result["runs"] >= 1
