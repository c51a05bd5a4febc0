"""The first lines of a run: what is left out of it is told before the first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainbook.knobs import load
from trainbook.loop.build import build
from trainbook.loop.describe import describe


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty texts of different letters, an empty page, and two with a repeat."""
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "texts.jsonl"
    texts = ["".join(chr(97 + (number + place * place) % 26) for place in range(60)) for number in range(20)]
    rows = [*texts, "x", "-" * 50, "ab" * 40]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return path


def lines(source: Path, *overrides: str) -> list[tuple[str, str]]:
    base = {
        "model": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
        "data": {"source": str(source), "validation_ratio": 0.0, "samples": "documents", "max_seq_length": 64},
        "training": {"max_steps": 2, "device": "cpu"},
        "batch": {"global_batch_size": 4},
    }
    return describe(build(load(base, list(overrides)).config, torch.device("cpu")), torch.device("cpu"))


def test_a_run_without_filters_says_nothing_of_them(source: Path):
    assert "left out" not in dict(lines(source))


def test_what_filters_leave_out_is_told_behind_the_data(source: Path):
    told = lines(source, "data.repetition_filter=true", "data.gopher_filter=true")
    labels = [label for label, _ in told]
    first = labels.index("left out")
    assert labels[first - 1] == "data" and labels[first : first + 2] == ["left out"] * 2
    texts = [text for label, text in told if label == "left out"]
    assert texts[0].startswith("by data.repetition_filter: 1 of ") and texts[0].endswith(" documents")
    assert texts[1].startswith("by data.gopher_filter: 1 of 23 documents (")


def test_documents_without_anything_to_learn_are_a_share_of_all_that_there_are(source: Path):
    rows = [{"prompt": f"What is {number}?", "response": f"It is {number}."} for number in range(10)]
    rows += [{"prompt": "Why? " + "abcdefghijk" * 9, "response": "So."}, {"prompt": "Say o.", "response": "o" * 40}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for overrides in ((), ("data.repetition_filter=true",)):
        told = dict(lines(source, "training.task=chat", *overrides))["data"]
        assert "1 of 12 conversations have no answer within 64 tokens and are left out" in told


def test_records_without_text_are_told_behind_the_data(source: Path):
    assert "without text" not in dict(lines(source))["data"]
    source.write_text(source.read_text() + '{"text": " "}\n{"text": ""}\n')
    assert "; 2 records without text left out" in dict(lines(source))["data"]


def test_a_batch_that_is_larger_than_the_data_is_told_before_the_first_step(source: Path):
    assert "an update sees each 2.0 times" in dict(lines(source, "batch.global_batch_size=46"))["batch"]
    assert "an update sees each" not in dict(lines(source, "batch.global_batch_size=20"))["batch"]


def latin(source: Path) -> Path:
    """A third of the rows has a letter that is not UTF-8."""
    rows = [f"word {number} of text {number * 7};{'ab'[number % 2]}\n" for number in range(40)]
    rows += [f"caf\u00e9 {number} and more;a\n" for number in range(20)]
    path = source.with_name("latin.csv")
    path.write_text("text;label\n" + "".join(rows), encoding="latin-1")
    return path


def test_many_records_that_cannot_be_read_are_a_warning_with_their_share_and_the_reason(source: Path):
    path = latin(source)
    told = dict(lines(path, "data.bad_lines=skip", "model.type=bert", "data.label_field=label"))
    assert told["data"].endswith("; 20 bad records skipped (33.3%)")
    assert told["warning"] == (
        f"33.3% of the records (20 of 60) cannot be read, such as {path}:42: must be UTF-8 text. Convert the file "
        f"first, for example from Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 '{path}' > "
        f"'{path.parent}/latin-utf8.csv'"
    )


def test_a_few_of_them_are_none(source: Path):
    rows = [json.dumps({"text": f"word {number} of text {number * 7}"}) for number in range(100)]
    source.write_text("\n".join([*rows, "{"]) + "\n")
    told = dict(lines(source, "data.bad_lines=skip"))
    assert "1 bad record skipped (1.0%)" in told["data"] and "warning" not in told
