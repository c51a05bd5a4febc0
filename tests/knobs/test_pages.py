from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainbook.knobs import declarations, section_types
from trainbook.knobs.pages import main, pages

FOLDER = Path(__file__).parents[2] / "docs" / "knobs"


def test_the_pages_in_the_repository_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written.keys() == pages().keys()
    outdated = [name for name, text in pages().items() if written[name] != text]
    assert outdated == [], "run: python -m trainbook.knobs.pages docs/knobs"


def test_every_knob_has_its_place_and_every_link_leads_somewhere() -> None:
    anchors = {f"{declaration.section}.md#{declaration.name}" for declaration in declarations()}
    files = {f"{section}.md" for section in section_types()}
    for name, text in pages().items():
        assert set(re.findall(r"\]\(([^)]+)\)", text)) <= anchors | files, name
    for declaration in declarations():
        assert f"\n## {declaration.name}\n" in pages()[f"{declaration.section}.md"]


def test_writing_the_pages_takes_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "knobs")]) == 0
    assert {path.name for path in (tmp_path / "knobs").iterdir()} == pages().keys()
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().err


def test_the_readme_counts_them_right():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f" {len(list(declarations()))} hyperparameters" in readme
