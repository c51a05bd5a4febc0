from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainbook.charts import data, figure
from trainbook.charts.data import draw_data
from trainbook.errors import MissingExtra, UserError

BINS = [{"from": 1 + 10 * step, "to": 11 + 10 * step, "documents": 20 - step} for step in range(10)]
LENGTHS = {"histogram": BINS, "percentiles": {"50": 20.0}}
COVERAGE = [
    {"length": length, "documents_whole": min(1, length / 100), "tokens_kept": min(1, length / 80)}
    for length in (32, 64, 128, 256)
]
WASTE = {"max_length": 0.7, "longest": 0.4, "bucketed": 0.1, "packed": 0.02, "windows": 0.0}
CLASSES = {"counts": {f"class {number}": 40 - number for number in range(20)}}

FACTS: dict[str, Any] = {
    "source": "some $file$.jsonl",
    "tokenizer": "bpe",
    "sides": {
        "train": {"lengths": LENGTHS, "labels": None, "documents": 155, "sampled_documents": 155},
        "validation": {"lengths": LENGTHS, "labels": None, "documents": 155, "sampled_documents": 155},
    },
    "lengths": {"recommended": 128, "configured": 256, "curve": COVERAGE},
    "padding": {
        "length": 128,
        "micro_batch": 32,
        "configured": "longest",
        "recommended": "packed",
        "at_recommended_length": WASTE,
    },
    "shift": {"length": {"ks_statistic": 0.1}, "histograms": {"train": BINS, "validation": BINS[:5]}},
}


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "DOTS_PER_INCH", 40)


def variant(**changes: Any) -> dict[str, Any]:
    facts = copy.deepcopy(FACTS)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = facts
        for name in parents:
            place = place[name]
        place[last] = value
    return facts


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        variant(sides__train__labels=CLASSES, sides__validation__labels=CLASSES),
        variant(sides__train__labels={"kind": "number"}),
        variant(shift=None),
        variant(lengths__recommended=None),
        variant(sides__train__lengths={"histogram": [], "percentiles": {}}),
        variant(
            sides__train__lengths={"histogram": [{"from": 2**n, "to": 2 ** (n + 1), "documents": n} for n in range(9)]}
        ),
    ],
    ids=["lengths", "classes", "numbers", "no validation", "no recommendation", "nothing", "factors"],
)
def test_whatever_the_data_a_picture_is_drawn(facts, tmp_path: Path):
    draw_data(facts, tmp_path / "data.png")
    content = (tmp_path / "data.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 3_000


def test_a_histogram_of_a_sample_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    titles = []
    monkeypatch.setattr(data, "save", lambda figure, path: titles.append(figure.axes[0].get_title()))
    draw_data(FACTS, tmp_path / "data.png")
    draw_data(variant(sides__train__documents=117_659), tmp_path / "data.png")
    plain = "Lengths of training documents"
    assert titles == [plain, f"{plain} (a sample of 155 of 117,659)"]


def test_the_same_data_make_the_same_picture(tmp_path: Path):
    for name in ("one.png", "two.png"):
        draw_data(FACTS, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_other_kinds_of_file_are_written_too(tmp_path: Path):
    draw_data(FACTS, tmp_path / "data.svg")
    assert b"<svg" in (tmp_path / "data.svg").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"), [("data.gif", "must end in .png, .svg, .pdf"), ("nowhere/data.png", "no folder")]
)
def test_a_file_that_cannot_be_written_is_known_before_the_work(name: str, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        figure.check_path(tmp_path / name)


def test_a_file_that_cannot_be_written_after_all_is_a_message(tmp_path: Path):
    (tmp_path / "data.png").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        draw_data(FACTS, tmp_path / "data.png")


def test_without_matplotlib_the_pip_line_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[charts\]'"):
        figure.check_path(tmp_path / "data.png")


def test_pictures_need_no_torch():
    code = "import sys, trainbook.charts.data; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
