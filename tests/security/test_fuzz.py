"""A short slice of the fuzz program, and its own watch: it must see what it is there to see."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainbook

RELIABILITY = Path(__file__).parents[2] / "reliability"


def test_changed_files_of_every_kind_are_read_or_refused(tmp_path: Path):
    results = tmp_path / "fuzz.json"
    command = [sys.executable, str(RELIABILITY / "fuzz.py"), "--cases", "20", "--seed", "1", "--json", str(results)]
    environment = {**os.environ, "PYTHONPATH": str(Path(trainbook.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = json.loads(results.read_text())["kinds"]
    assert len(kinds) >= 16 and all(kind["cases"] == 20 and not kind["failures"] for kind in kinds.values())
    assert sum(kind["outcomes"].get("read", 0) for kind in kinds.values()) > 60  # the changes are not all too coarse


def test_the_measured_run_had_no_failure():
    found = json.loads((RELIABILITY / "results" / "fuzz.json").read_text())
    assert all(not kind["failures"] for kind in found["kinds"].values())


def test_the_fuzz_program_sees_each_kind_of_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(RELIABILITY))
    fuzz = importlib.import_module("fuzz")
    monkeypatch.setattr(fuzz, "CPU_SECONDS", 0.05)
    monkeypatch.setattr(fuzz, "MOST_MEMORY", 1 << 40)  # this process has run other tests before
    inside = tmp_path / "case"
    inside.mkdir()

    def spin() -> None:
        while True:
            pass

    def fails() -> None:
        raise KeyError("step")

    def refuses() -> None:
        from trainbook.errors import UserError

        raise UserError("no")

    cases = {
        "read": lambda: (inside / "x").write_text(""),
        "refused": refuses,
        "traceback": fails,
        "hang": spin,
        "wrote outside": lambda: (tmp_path / "x").write_text(""),
    }
    for expected, read in cases.items():
        kind = type("Kind", (), {"put": lambda self, content: None, "read": lambda self, read=read: read()})()
        with fuzz.Watch(inside) as watch:
            assert fuzz.one(kind, b"", watch)[1] == expected
