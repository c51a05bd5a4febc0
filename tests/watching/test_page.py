"""docs/watch.md: each example is a whole program, and is run as one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import trainbook
from trainbook.runs.record import open_record

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^## (.*?)\n(?:(?!^## )[\s\S])*?^```python\n([\s\S]*?)^```", TEXT, flags=re.MULTILINE)


@pytest.mark.filterwarnings("ignore")  # trainers have advice for everyone
@pytest.mark.parametrize(("heading", "program"), PROGRAMS, ids=[heading for heading, _ in PROGRAMS])
def test_an_example_works_as_it_is_shown(heading: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for package in re.findall(r"^from (transformers|lightning)", program, flags=re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(program, f"{PAGE.name}, {heading}", "exec"), {"__name__": "__main__"})
    [run] = (tmp_path / "runs").iterdir()
    record = open_record(run)
    assert len(record.train) > 9 and record.facts["status"] == "finished"
    assert not [event for event in record.events if event["kind"] in ("symptom", "notice")]


def test_every_example_is_found():
    assert len(PROGRAMS) == TEXT.count("```python") == 3


def test_the_table_has_every_option():
    rows = re.findall(r"^\| `(\w+)` \| ", TEXT.partition("## Options")[2], flags=re.MULTILINE)
    assert rows == list(inspect.signature(trainbook.watch).parameters)[2:]
