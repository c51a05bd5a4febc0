"""The nearest right name."""

from __future__ import annotations

import pytest

from trainbook.nearest import nearest_run


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("nope", ["ner", "first"], None),
        ("frist", ["ner", "first"], "first"),
        ("base", ["bass", "tune"], "bass"),
        ("run2", ["run1"], "run1"),
        ("gpt-tiny-lr", ["gpt-tiny-2026-07-21-0914"], "gpt-tiny-2026-07-21-0914"),
    ],
)
def test_a_run_is_suggested_only_where_its_name_is_like_the_given_one(given: str, known: list[str], meant: str | None):
    assert nearest_run(given, known) == meant
