"""The dictionary entry of a knob as blocks of a page."""

from __future__ import annotations

from typing import Any

from trainbook.knobs import explain_knob
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.explain import resume_text, search_text, usual_text
from trainbook.knobs.measured import measured_text

Facts = dict[str, Any]


def explain_view(name: str) -> Facts:
    facts = explain_knob(name[:200])
    texts = [
        ("What it is", facts["what"]),
        ("Why it matters", facts["why"]),
        ("Raised", facts["raised"]),
        ("Lowered", facts["lowered"]),
        ("It must be", facts["law"]),
        ("Often misunderstood", facts["correction"]),
        ("At the default", facts["derived"]),
    ]
    blocks = [_text(title, text) for title, text in texts]
    blocks.append(_table("Choices", ["choice", "what it means"], list(map(list, facts["values"].items()))))
    cases = [[yaml_value(each["value"]), each["when"], each["why"]] for each in facts["cases"]]
    blocks.append(_table("Usual values", ["value", "when", "because"], cases))
    blocks.append(_text("Usual range", usual_text(facts)))
    blocks.append(_text("Where to search", search_text(facts)))
    measured = [[yaml_value(each["value"]), measured_text(each)] for each in facts["measured"]]
    blocks.append(_table("Measured", ["value", "what our studies found"], measured))
    blocks.append(_bullets("Constraints", facts["laws"]))
    blocks.append(_bullets("Interacts with", facts["interacts"]))
    blocks.append(_bullets("Treats", facts["symptoms"]))
    blocks.append(_text("On resume", resume_text(facts)))
    blocks.append(_bullets("Also known as", facts["aliases"]))
    blocks.append(_bullets("Sources", facts["sources"]))
    return {
        "path": facts["path"],
        "default": yaml_value(facts["default"]),
        "blocks": [block for block in blocks if block is not None],
    }


def _text(title: str, text: Any) -> Facts | None:
    return {"title": title, "kind": "text", "text": str(text)} if text else None


def _bullets(title: str, lines: Any) -> Facts | None:
    return {"title": title, "kind": "bullets", "lines": list(lines)} if lines else None


def _table(title: str, columns: list[str], rows: list[list[Any]]) -> Facts | None:
    return {"title": title, "kind": "table", "columns": columns, "rows": rows} if rows else None
