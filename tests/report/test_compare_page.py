from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import needs
from tests.report.test_run_page import must_be_safe, must_be_tidy
from tests.run_folders import make_run

from trainbook.charts.comparison import STRETCHES, extremes
from trainbook.errors import UserError
from trainbook.report.compare import compare
from trainbook.report.compare_page import check_html, compare_page, write_page
from trainbook.runs.record import open_record

EVIL = "<script>alert(1)</script>"


def runs_at(folder: Path, *rates: float, seeds: int = 1) -> list[str]:
    """By rate and seed; a lower rate has a lower loss."""
    paths = []
    for rate in rates:
        for seed in range(1, seeds + 1):
            losses = {step: {"loss": 10 * rate + 0.01 * seed + 1 / step} for step in (10, 20, 30)}
            settings = {"optimizer__learning_rate": rate, "training__seed": seed, "logging__logging_steps": seed}
            path = folder / f"rate-{rate}-seed-{seed}"
            make_run(path, losses=[3.0] * 30, evaluations=losses, settings=settings, seed=seed)
            paths.append(str(path))
    return paths


def page_of(*paths: str, metric: str = "loss") -> str:
    return compare_page(compare([open_record(path) for path in paths], metric)).as_html()


@needs("matplotlib")
def test_a_page_has_the_verdict_the_curves_and_what_differs(tmp_path: Path):
    page = page_of(*runs_at(tmp_path, 1e-2, 5e-2, seeds=3))
    for text in (
        "learning_rate=0.05 looks 0.4000 higher (worse) than learning_rate=0.01",
        "3 pairs",
        "<svg",
        "mean of 3",
        "By setting",
        "at step 30",
        "optimizer.learning_rate",
        "Without effect on the result: logging.logging_steps.",
        "trainbook doctor",
    ):
        assert text in page, text
    assert page.count("<svg") == 2 and "http://" not in page.replace("http://www.w3.org", "")


def test_one_run_each_is_told_to_be_no_evidence(tmp_path: Path):
    page = page_of(*runs_at(tmp_path, 1e-2, 5e-2))
    assert "one run each" in page and "the spread over seeds is unknown" in page


@needs("matplotlib")
def test_without_matplotlib_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = page_of(*runs_at(tmp_path, 1e-2, 5e-2))
    assert "No charts" in page and "trainbook[charts]" in page and "<svg" not in page


def test_what_a_stranger_wrote_is_text(tmp_path: Path):
    for name in ("a", f"b{EVIL}".replace("/", "")):
        make_run(tmp_path / name, evaluations={3: {"loss": 1.0}}, settings={"data__source": EVIL + name}, seed=2)
    page = page_of(*(str(path) for path in sorted(tmp_path.iterdir())))
    assert "&lt;script&gt;" in page
    must_be_tidy(must_be_safe(page))


def test_runs_that_are_not_finite_make_a_page_too(tmp_path: Path):
    for name in ("a", "b"):
        make_run(tmp_path / name, losses=[3.0, math.nan], evaluations={2: {"loss": math.nan}})
    page = page_of(str(tmp_path / "a"), str(tmp_path / "b"))
    assert "No curves: no run has a finite value." in page and "nothing to compare" in page


def test_a_place_that_cannot_be_written_is_told_before(tmp_path: Path):
    (tmp_path / "folder.html").mkdir()
    for path, law in (
        ("x.txt", "must end in .html"),
        ("no/x.html", "there is no folder"),
        ("folder.html", "is a folder"),
    ):
        with pytest.raises(UserError, match=law):
            check_html(tmp_path / path)
    comparison = compare([open_record(path) for path in runs_at(tmp_path / "runs", 1e-2, 5e-2)])
    write_page(comparison, tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")


def test_no_spike_of_a_long_curve_is_lost():
    values = np.ones(100_000)
    values[54_321], values[54_322] = 99.0, -99.0
    places, drawn = extremes(np.arange(100_000), values)
    assert len(places) <= 2 * STRETCHES and drawn.max() == 99.0 and drawn.min() == -99.0
    assert places[np.argmax(drawn)] == 54_321 and (np.diff(places) > 0).all()
    assert extremes(np.arange(5), np.arange(5.0))[0].tolist() == [0, 1, 2, 3, 4]
    assert len(extremes(np.zeros(2_000), np.ones(2_000))[0]) >= 1  # all at one place
