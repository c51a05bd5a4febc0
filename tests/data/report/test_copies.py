from __future__ import annotations

import pytest

from trainbook.data.prepare.split import text_digest
from trainbook.data.report.duplicates import ExactDuplicates


def copies_of(texts: str, name: str) -> ExactDuplicates:
    seen = ExactDuplicates()
    for number, text in enumerate(texts):
        seen.add(text_digest(text), f"{name}:{number}")
    return seen


@pytest.mark.parametrize("memory", [1 << 20, 1])
def test_exact_copies_are_counted_with_where_the_text_was_first(memory: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.data.report.duplicates.MEMORY_BYTES", memory)
    seen = copies_of("abaac", "file")
    assert seen.copies == 2 and seen.num_texts == 3
    assert seen.examples == [("file:2", "file:0"), ("file:3", "file:0")]


def test_what_two_sides_share_is_counted_in_texts_and_in_documents():
    shared = copies_of("xaaby", "one").shared(copies_of("zbba", "other"), 1)
    assert (shared.texts, shared.documents) == (2, 3)
    assert shared.examples == [("one:1", "other:3")]
    assert copies_of("", "none").shared(copies_of("a", "other"), 3).texts == 0
