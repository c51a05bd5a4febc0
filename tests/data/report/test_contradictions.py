from __future__ import annotations

import json
from pathlib import Path

from trainbook.data.prepare.split import survey
from trainbook.data.report.build import report_on
from trainbook.data.report.labels import contradictions
from trainbook.data.samples.frame import reading_request
from trainbook.data.sources.records import Document
from trainbook.knobs import load


def labelled(*pairs: tuple[str, str]) -> list[Document]:
    return [Document(text, f"f:{number}", 0, label=label) for number, (text, label) in enumerate(pairs)]


def test_equal_texts_with_other_labels_are_found_on_both_sides_of_the_data():
    train = labelled(("one", "a"), ("two", "a"), ("one", "b"), ("three", "b"), ("two", "a"))
    validation = labelled(("three", "a"), ("four", "b"))
    found = contradictions([survey(train), survey(validation)])
    assert found is not None
    for place, documents in (("train ", train), ("validation ", validation)):
        for document in documents:
            found.look_at(document, place + document.origin)
    assert found.facts == {
        "texts": 2,
        "documents": 4,
        "of": 7,
        "examples": [
            {"one": "train f:0", "label": "a", "other": "train f:2", "other_label": "b"},
            {"one": "train f:3", "label": "b", "other": "validation f:0", "other_label": "a"},
        ],
    }


def test_without_classes_nothing_contradicts():
    assert contradictions([survey([Document("a", "0"), Document("a", "1")])]) is None
    assert contradictions([survey([Document("a", "0", label=1.0), Document("a", "1", label=2.0)])]) is None


def test_the_report_names_them(tmp_path: Path):
    rows = [{"text": f"text number {number}", "label": "ab"[number % 2]} for number in range(60)]
    rows += [{"text": f"text number {number}", "label": "ba"[number % 2]} for number in range(3)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {
        "data": {"source": str(tmp_path / "d.jsonl")},
        "training": {"task": "classify"},
        "model": {"type": "bert"},
    }
    config = load(source, ()).config
    request = reading_request("classify")
    assert request is not None
    facts = report_on(config, request)
    (finding,) = [each for each in facts["findings"] if each["rule"] == "contradictory_labels"]
    assert finding["severity"] == "warning"
    assert finding["text"].startswith("3 texts occur with different labels (6 documents, 9.5%), such as ")
