"""The pages say what the rules are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainbook.doctor.causes import CAUSES
from trainbook.doctor.pages import main, pages
from trainbook.doctor.rule import SUBJECTS, all_rules
from trainbook.knobs import declarations

FOLDER = Path(__file__).parents[2] / "docs" / "doctor"


def test_the_pages_in_the_repository_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written.keys() == pages().keys()
    outdated = [name for name, text in pages().items() if written[name] != text]
    assert outdated == [], "run: python -m trainbook.doctor.pages docs/doctor"


def test_every_rule_and_cause_has_its_place_and_every_link_leads_somewhere() -> None:
    places = {f"{rule.subject}.md#{rule.name}" for rule in all_rules().values()} | {"causes.md"}
    places |= {f"causes.md#{cause}" for cause in CAUSES} | {f"{subject}.md" for subject in SUBJECTS}
    places |= {f"../knobs/{knob.section}.md#{knob.name}" for knob in declarations()}
    for name, text in pages().items():
        assert set(re.findall(r"\]\(([^)]+)\)", text)) <= places, name
    for rule in all_rules().values():
        assert f"\n## {rule.name}\n" in pages()[f"{rule.subject}.md"]
        assert rule.thresholds and rule.source and rule.fault and rule.looks_at


def test_writing_the_pages_takes_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "doctor")]) == 0
    assert {path.name for path in (tmp_path / "doctor").iterdir()} == pages().keys()
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().err
