"""docs/guard-anywhere.md: each example is a whole program, and is run as one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from trainbook import Guard

PAGE = Path(__file__).parents[2] / "docs" / "guard-anywhere.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^## (.*?)\n(?:(?!^## )[\s\S])*?^```python\n([\s\S]*?)^```", TEXT, flags=re.MULTILINE)


@pytest.mark.filterwarnings("ignore")  # trainers have advice for everyone
@pytest.mark.parametrize(("heading", "program"), PROGRAMS, ids=[heading for heading, _ in PROGRAMS])
def test_an_example_works_as_it_is_shown(
    heading: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    for package in re.findall(r"^from (transformers|lightning)", program, flags=re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(program, f"{PAGE.name}, {heading}", "exec"), {"__name__": "__main__"})
    if heading.startswith("Ten lines"):
        assert "'step': 61, 'reason': 'the loss is NaN'" in capsys.readouterr().out


def test_every_example_is_found():
    assert len(PROGRAMS) == TEXT.count("```python") == 6


def test_the_table_has_every_option_and_its_default():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, flags=re.MULTILINE)
    parameters: dict[str, Any] = dict(inspect.signature(Guard).parameters)
    del parameters["objects"], parameters["unknown"]
    assert {name for name, _ in rows} == set(parameters)
    shown = {name: int(default) for name, default in rows if default.isdigit()}
    assert all(parameters[name].default == default for name, default in shown.items()) and len(shown) == 6


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (PAGE.parent / target).exists(), target
