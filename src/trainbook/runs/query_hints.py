"""Why a query matches no run, in a sentence: the term that none meets, what there is instead, and the nearest name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainbook.nearest import did_you_mean
from trainbook.runs.query import MEANT, ORDERS, Field, Row, Term, field_named, metrics_of, parse_query

MOST_NAMED = 6  # values of a field
LONGEST = 60  # letters of a value


def why_none(rows: Sequence[Row], text: str) -> str:
    """Empty where a row matches, or where there is no row."""
    metrics = metrics_of(rows)
    query = parse_query(text, metrics)
    if not rows or any(query.matches(row) for row in rows):
        return ""
    unmet = [term for term in query.terms if not any(term.holds(row) for row in rows)]
    if not unmet:
        return f"Some runs match each of the {len(query.terms)} terms, but none matches all of them."
    return _why(unmet[0], rows, metrics)


def _why(term: Term, rows: Sequence[Row], metrics: set[str]) -> str:
    if term.is_turned:
        return f"{term.text} leaves out all runs."
    if term.field is None:
        return _no_name(term.operands[0].text, rows, metrics)
    values = [value for row in rows for value in _values(term.field, row)]
    if not values:
        return f"No run has a value of {term.field.name}."
    return f"No run has {term.text}.{_instead(term, values)}"


def _no_name(word: str, rows: Sequence[Row], metrics: set[str]) -> str:
    missing = f"No name and no tag has {word!r}."
    if word.lower() in MEANT:
        return f"{missing} Did you mean the field {MEANT[word.lower()]}? Write metric<2, or another value."
    field = field_named(word, metrics)
    if field is not None:
        return f"{missing} {field.name} is a field: write {word}{_example(field)}, or another value."
    names = [str(text) for row in rows for text in (row.get("name", ""), *(row.get("tags") or ()))]
    return missing + did_you_mean(word, names)


def _example(field: Field) -> str:
    return {"text": ":text", "flag": "=true", "date": ">2026-07-21"}.get(field.kind, ">1")


def _values(field: Field, row: Row) -> list[Any]:
    value = field.read(row)
    return [each for each in (value if isinstance(value, (list, tuple)) else [value]) if each is not None]


def _instead(term: Term, values: Sequence[Any]) -> str:
    numbers = [float(each) for each in values if _is_finite(each)]
    if numbers and (term.sign in ORDERS or len(numbers) == len(values)):
        low, high = min(numbers), max(numbers)
        return f" It is a number: {low:g}{f' to {high:g}' if high > low else ''}."
    texts = list(dict.fromkeys(str(each)[:LONGEST] for each in values))
    near = did_you_mean(term.operands[0].text, texts)
    shown = ", ".join(map(repr, texts[:MOST_NAMED])) + (", …" if len(texts) > MOST_NAMED else "")
    return near or f" Known value{'s' if len(texts) > 1 else ''}: {shown}."


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
