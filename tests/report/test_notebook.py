from __future__ import annotations

import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.conftest import needs
from tests.run_folders import make_run, write_lines

import trainbook
from trainbook.errors import RunFolderError, UserError
from trainbook.report.notebook import ForeignRun, OpenedRun
from trainbook.report.notebook import _best as best_of_row
from trainbook.runs import RunFolder
from trainbook.runs.labels import change_labels

EVIL = '<script>alert("1")</script><img src=x onerror=alert(1)>'


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture
def run(tmp_path: Path) -> OpenedRun:
    folder = make_run(
        tmp_path / "a",
        losses=[3.0, math.nan, 2.0],
        evaluations={2: {"loss": 2.5, "accuracy": 0.75, "best": True}},
        events=[{"step": 0, "segment": 0, "kind": "start"}, {"step": 2, "segment": 0, "kind": "skip"}],
    )
    row = {"step": 4, "segment": 0, "split": "train", "loss": 1.5, "grad_norms": {"body.blocks.0": 0.5}}
    write_lines(folder.metrics_file, [row], mode="a")
    found = trainbook.open_run(folder.path)
    assert isinstance(found, OpenedRun) and isinstance(found, RunFolder)
    return found


@pytest.fixture
def log(tmp_path: Path) -> ForeignRun:
    path = tmp_path / "theirs.csv"
    path.write_text("step,loss,val_loss\n1,3.0,\n2,NaN,2.5\n3,2.0,\n")
    found = trainbook.open_run(path)
    assert isinstance(found, ForeignRun)
    return found


def test_a_run_shows_itself(run: OpenedRun):
    change_labels(run.path, add=["good"], note="a note")
    page = run._repr_html_()
    for text in ("<b>a</b>", "finished", "loss 2.5000 at step 2", "1 action", "good", "a note", "<svg"):
        assert text in page, text
    assert len(page) < 4_000 and "#d0482a" in page  # the NaN has a mark
    found = Elements(page)
    assert found.tags <= {"div", "p", "b", "span", "svg", "polyline", "circle", "table", "tr", "th", "td"}
    assert "http" not in page and not found.attributes & {"src", "href", "class", "id"}


def test_a_run_of_another_tool_shows_itself(log: ForeignRun):
    page = log._repr_html_()
    assert "theirs" in page and "CSV" in page and "loss 2.5000 at step 2" in page
    assert repr(log) == "<run 'theirs', logged by CSV>"
    assert (
        [row["step"] for row in log.metrics()] == [1, 2, 2, 3] and len(log.metrics("eval")) == 1 and log.events() == []
    )


def test_what_a_stranger_wrote_is_text(tmp_path: Path):
    folder = make_run(tmp_path / "x", status_detail=EVIL, recipe=EVIL)
    evil = folder.path.rename(tmp_path / EVIL.replace("/", ""))
    change_labels(evil, add=[EVIL.replace('"', "")[:40]], note=EVIL)
    page = trainbook.open_run(evil)._repr_html_()
    assert "&lt;script&gt;" in page
    found = Elements(page)
    assert not found.tags & {"script", "img"} and not any(name.startswith("on") for name in found.attributes)


def test_a_run_that_is_damaged_since_says_so(run: OpenedRun):
    run.manifest.write_text("{")
    assert run._repr_html_().startswith("<p>") and "must be JSON" in run._repr_html_()


@needs("pandas")
def test_metrics_are_a_data_frame(run: OpenedRun, log: ForeignRun):
    frame = run.frame()
    assert list(frame.columns[:3]) == ["step", "segment", "split"] and len(frame) == 5
    assert frame["step"].tolist() == [1, 2, 2, 3, 4] and str(frame["step"].dtype) == "int64"
    assert frame["grad_norms/body.blocks.0"].tolist()[-1] == 0.5
    assert run.frame("eval")["accuracy"].tolist() == [0.75] and len(run.frame("train")) == 4
    assert math.isnan(run.frame("train")["loss"][1])
    assert log.frame("eval")["loss"].tolist() == [2.5] and len(log.frame()) == 4
    with pytest.raises(UserError, match='split must be "train", "eval" or None'):
        run.frame("valid")  # pyright: ignore[reportArgumentType]


def polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of polars, without it."""
    library: Any = ModuleType("polars")
    library.DataFrame = lambda columns, strict: SimpleNamespace(columns=columns, strict=strict)
    monkeypatch.setitem(sys.modules, "polars", library)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)


def test_the_library_that_is_imported_already_makes_the_frame(run: OpenedRun, monkeypatch: pytest.MonkeyPatch):
    polars(monkeypatch)
    frame = run.frame()
    assert frame.columns["step"] == [1, 2, 2, 3, 4] and frame.strict is False


def test_without_either_library_it_says_what_to_install(run: OpenedRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.report.notebook.FRAMES", ("no_such_library",))
    with pytest.raises(UserError, match=r"needs the package 'pandas' or 'polars'\. Install one: pip install pandas"):
        run.frame()


@needs("matplotlib")
def test_a_metric_is_a_figure(run: OpenedRun, log: ForeignRun):
    figure = run.plot()
    [axis] = figure.axes
    assert {"training", "validation", "not finite", "update rejected (1)"} <= set(axis.get_legend_handles_labels()[1])
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [line.get_label() for line in run.plot("accuracy").axes[0].lines][:1] == ["validation"]
    assert run.plot("eval_loss").axes[0].get_legend_handles_labels()[1][0] == "validation"
    assert log.plot("loss").axes[0].get_ylabel() == "loss"
    with pytest.raises(UserError, match=r"'los' was not logged; .* Did you mean 'loss'\?"):
        run.plot("los")


def test_what_is_no_run_is_told_as_before(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "none"):
        with pytest.raises(RunFolderError):
            trainbook.open_run(path)


def test_opening_a_run_needs_no_torch(tmp_path: Path):
    make_run(tmp_path / "a")
    code = (
        f"import sys, trainbook; run = trainbook.open_run({str(tmp_path / 'a')!r}); run._repr_html_(); "
        "assert not {'torch', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_run_of_a_training_shows_itself_too(lab):
    result = lab.train()
    assert isinstance(result.run, OpenedRun) and "finished" in result.run._repr_html_()
    assert result.best["loss"] > 0 and result.run.name == "run"


def test_a_run_without_an_evaluation_shows_its_training_loss_as_such():
    assert best_of_row({"metric": None, "metric_note": "no evaluation", "loss": 2.0}) == (
        "no evaluation; newest training loss 2.0000"
    )
