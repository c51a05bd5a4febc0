"""The bench of published bugs: its cases, a faulty run and its twin from end to end, and its page."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

pytest.importorskip("transformers")
pytest.importorskip("sklearn")

from public_cases import page
from public_cases.cases import CASES
from public_cases.checked import DECODERS, ENCODERS
from public_cases.published import SOURCES, TRAINCHECK
from public_cases.runs import FAULTY, TWIN, Entry, all_entries, run_entry
from public_cases.score import harms, judged, summary

from trainbook.doctor.causes import CAUSES

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "public-cases.json"


def test_every_case_says_where_it_is_from_and_what_is_wrong() -> None:
    assert len(CASES) >= 40
    for case in CASES.values():
        assert case.source in SOURCES and case.bug and case.causes
        assert case.what.endswith(".")
        assert case.program in ("loop", "huggingface", "fit")
    assert {case.source for case in CASES.values()} == set(SOURCES)
    assert len({entry.name for entry in all_entries()}) == len(all_entries())


def test_each_error_that_traincheck_detected_is_a_case_or_says_why_not() -> None:
    assert len({error for error, _, _ in TRAINCHECK}) == 18
    assert all(here in CASES or here.startswith("no: ") for _, _, here in TRAINCHECK)


def test_each_fault_of_a_transformer_is_also_given_to_check() -> None:
    of_transformers = {case.name for case in CASES.values() if case.source == "default++"}
    assert of_transformers == {*DECODERS, *ENCODERS}


def test_a_faulty_run_and_its_twin_are_made_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    for kind in (FAULTY, TWIN):
        run_entry(Entry("optimizer-of-a-copy", 0, kind), tmp_path)
    row = judged(CASES["optimizer-of-a-copy"], 0, tmp_path, CAUSES)
    assert row is not None and row["harms"] and row["nameable"]
    assert summary([row])["runs"] == 1
    for path in (tmp_path / "optimizer-of-a-copy-0-faulty" / "run").rglob("*"):
        if path.is_file():  # the record does not name the bug
            assert "of-a-copy" not in path.read_text(encoding="utf-8").replace("optimizer-of-a-copy-0-faulty", "")


def test_a_model_that_is_clearly_worse_is_harmed() -> None:
    def scored(loss: float, accuracy: float | None = None) -> dict:
        return {"score": {"loss": loss} | ({} if accuracy is None else {"accuracy": accuracy})}

    assert harms(scored(2.0), scored(1.0))
    assert harms(scored(math.nan), scored(1.0))
    assert harms(scored(1.0, 0.6), scored(1.0, 0.7))
    assert not harms(scored(1.1, 0.7), scored(1.0, 0.7))


def test_the_page_is_that_of_the_results() -> None:
    lines = page.lines(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert (ROOT / "docs" / "public-cases.md").read_text(encoding="utf-8") == "\n".join(lines) + "\n"
