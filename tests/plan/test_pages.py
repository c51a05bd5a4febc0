from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainbook.errors import UserError
from trainbook.plan import FIGURES, H100, gpu
from trainbook.plan.pages import BEGIN, END, main, section, written_into

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_tables_of_the_page_are_those_of_the_formulas():
    text = PAGE.read_text(encoding="utf-8")
    assert written_into(text) == text, "run: python -m trainbook.plan.pages docs/scale.md"


def test_only_what_is_between_the_markers_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert main([str(page)]) == 0
    assert page.read_text(encoding="utf-8") == f"before\n{section()}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    assert main([str(page)]) == 2
    assert "one of them is missing" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "no markers"
    assert main([]) == 2


def test_every_figure_is_shown_as_stated_or_assumed():
    shown = section()
    for figure in FIGURES.values():
        assert f"| {figure.what} | {figure.shown} | {'stated' if figure.is_fact else '**assumed**'} |" in shown


def test_an_unknown_gpu_is_not_guessed_at():
    assert gpu("h100") == H100
    with pytest.raises(UserError, match=r"must be one of B200, H200, .* but got H1000\. Did you mean H100\?"):
        gpu("H1000")


def test_a_plan_needs_no_torch():
    code = "import sys, trainbook.plan.pages as p; p.section(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
