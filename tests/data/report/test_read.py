from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.data import Frame, Request
from trainbook.data.report import lengths
from trainbook.data.report.build import Silent, report_on
from trainbook.data.sources import formats as plain
from trainbook.data.sources import long
from trainbook.data.sources.long import LongDocument
from trainbook.knobs import load


def test_a_filter_that_is_on_is_reported_with_what_it_leaves_out(tmp_path: Path, texts) -> None:
    path = tmp_path / "pages.jsonl"
    rows = [*texts(30, 1, longest=40), *["home\nabout\n" * 20 + f"page {number}" for number in range(10)]]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    request = Request(frame=lambda tokenizer: Frame(64))
    base = {"data": {"source": str(path), "validation_ratio": 0.0}}
    plain = report_on(load(base).config, request)
    facts = report_on(load(base, ["data.gopher_filter=true"]).config, request)
    assert (plain["sides"]["train"]["documents"], facts["sides"]["train"]["documents"]) == (40, 30)
    assert plain["filters"] == {"repetition": False, "gopher": None}
    (said,) = (finding["text"] for finding in facts["findings"] if finding["rule"] == "gopher")
    assert said == "data.gopher_filter leaves out 10 of 40 training documents: duplicate lines in 10."


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe"])
def test_a_long_text_is_never_held_whole_and_the_report_is_the_same(
    tokenizer: str, tmp_path: Path, texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("\n".join([*texts(300, 1, longest=40), "=" * 300, *texts(300, 2, longest=40)]))
    request = Request(frame=lambda tokenizer: Frame(64))
    config = load(
        {"data": {"source": str(path), "tokenizer": tokenizer}}, ["data.vocab_size=300"][: tokenizer == "bpe"]
    )
    whole = report_on(config.config, request)

    def refuse(document: LongDocument) -> str:
        raise AssertionError("the whole text was asked for")

    monkeypatch.setattr(LongDocument, "text", property(refuse))
    monkeypatch.setattr(plain, "LONG_BYTES", 1000)
    monkeypatch.setattr(long, "BLOCK_BYTES", 3000)
    monkeypatch.setattr("trainbook.data.prepare.split.TOLD_BYTES", 3000)
    monkeypatch.setattr(lengths, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr("trainbook.data.report.gather.EXCERPTED", 2000)
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 1000)
    told: list[int] = []

    class Counts(Silent):
        def advance(self, count: int) -> None:
            told.append(count)

    facts = report_on(config.config, request, progress=Counts())
    assert [side["excerpted_documents"] for side in facts["sides"].values()] == [1, 1]
    assert sum(told) >= 3 * path.stat().st_size - 10 and len(told) > 60
    for side in (*facts["sides"].values(), *whole["sides"].values()):
        del side["excerpted_documents"]
    assert facts["sides"] == whole["sides"] and facts["shift"] == whole["shift"]
    assert facts["findings"] == whole["findings"]
