from __future__ import annotations

import json
from pathlib import Path

from trainbook.data import Frame, Request
from trainbook.data.report.read import report_on
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
