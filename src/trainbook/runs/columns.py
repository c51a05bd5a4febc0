"""Rows as columns of float64, in which what is no number is a NaN that says what it is.

A column holds a value for some of the rows of a block, in their order. Numbers are as `schema.bounded` has them; the
others are quiet NaNs with a code in their lowest bits, so that a copy of the column keeps them apart from a logged NaN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.runs.schema import LARGEST_METRIC, METRICS, bounded

_BASE = 0x7FF8_0000_0000_0000
_LARGEST_CODE = 0xFFFF_FFFF
ABSENT, NULL, OTHER, EMPTY, FALSE, TRUE = range(_BASE + 1, _BASE + 7)  # OTHER: a list, a mapping or a long text
_FIRST_TEXT = _BASE + 0x100
MOST_TEXTS = 256  # of a block: names of splits and kinds, of which there are few
LONGEST_TEXT = 64  # letters
MOST_OTHER_NAMES = 256  # of a block, that no writer of ours has; the rows themselves have them all

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Column:
    """The values of the rows `at`; of all rows if `at` is None."""

    at: np.ndarray | None
    values: np.ndarray

    def dense(self, rows: int) -> np.ndarray:
        if self.at is None:
            return self.values
        whole = absent(rows)
        whole[self.at] = self.values
        return whole


@dataclass
class Texts:
    """The short texts that occur in a block, each with a code."""

    known: list[str] = field(default_factory=list)

    def code(self, text: str) -> int:
        if not text:
            return EMPTY
        if text not in self.known:
            if len(text) > LONGEST_TEXT or len(self.known) == MOST_TEXTS:
                return OTHER
            self.known.append(text)
        return _FIRST_TEXT + self.known.index(text)

    def is_text(self, values: np.ndarray, text: str) -> np.ndarray:
        if text not in self.known:
            return np.zeros(len(values), dtype=bool)
        return bits_of(values) == np.uint64(_FIRST_TEXT + self.known.index(text))


def bits_of(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint64)


def absent(rows: int) -> np.ndarray:
    return np.full(rows, ABSENT, dtype=np.uint64).view(np.float64)


def are_numbers(values: np.ndarray) -> np.ndarray:
    """Whether each is a logged number, also if that is NaN or infinite."""
    return bits_of(values) - np.uint64(_BASE + 1) >= np.uint64(_LARGEST_CODE)


def are_logged(values: np.ndarray) -> np.ndarray:
    """Whether each is anything but null."""
    return bits_of(values) - np.uint64(ABSENT) > np.uint64(NULL - ABSENT)


def are_flags(values: np.ndarray) -> np.ndarray:
    return bits_of(values) - np.uint64(FALSE) <= np.uint64(TRUE - FALSE)


def are_true(values: np.ndarray) -> np.ndarray:
    """As Python takes them in a condition: a NaN is true, zero and what is empty are not."""
    bits = bits_of(values)
    is_marked = ~are_numbers(values)
    is_false = (bits == np.uint64(EMPTY)) | (bits == np.uint64(FALSE)) | ~are_logged(values)
    return np.where(is_marked, ~is_false, values != 0)


def plain_values(values: np.ndarray, texts: Texts) -> list[Any]:
    """As Python has them: None for what is absent, null or empty; an ellipsis for what only the row has."""
    meaning: dict[int, Any] = {ABSENT: None, NULL: None, EMPTY: None, OTHER: ..., FALSE: False, TRUE: True}
    meaning |= {_FIRST_TEXT + code: text for code, text in enumerate(texts.known)}
    found: list[Any] = values.tolist()
    marked = np.flatnonzero(~are_numbers(values))
    for place, code in zip(marked.tolist(), bits_of(values)[marked].tolist(), strict=True):
        found[place] = meaning.get(code)
    return found


def columns_of(rows: Sequence[dict[str, Any]], texts: Texts) -> dict[str, Column]:
    """As many numbers as the rows hold, however their names differ from row to row."""
    shapes: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        shapes.setdefault(tuple(row), []).append(number)
    pieces: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for names, numbers in shapes.items():
        at = np.array(numbers, dtype=np.uint32)
        chosen = rows if len(shapes) == 1 else [rows[number] for number in numbers]
        for name, values in zip(names, zip(*(row.values() for row in chosen), strict=True), strict=True):
            pieces.setdefault(name, []).append((at, _encoded(values, texts)))
    others = [name for name in pieces if name not in METRICS]
    for name in others[MOST_OTHER_NAMES:]:
        del pieces[name]
    return {name: joined(found, len(rows)) for name, found in pieces.items()}


def joined(pieces: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> Column:
    at = np.concatenate([at for at, _ in pieces])
    values = np.concatenate([values for _, values in pieces])
    if len(pieces) > 1:
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
    return Column(None if len(at) == rows else at, values)


def _encoded(values: Sequence[Any], texts: Texts) -> np.ndarray:
    kinds = set(map(type, values))
    if kinds <= {float, int}:
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:
            numbers = np.array([bounded(value) for value in values], dtype=np.float64)
        far = np.abs(numbers) > LARGEST_METRIC
        if far.any():
            numbers[far] = np.copysign(np.inf, numbers[far])
        return numbers
    if kinds == {str} and len(set(values)) == 1:
        return np.full(len(values), _bits(values[0], texts), dtype=np.uint64).view(np.float64)
    return np.fromiter((_bits(value, texts) for value in values), dtype=np.uint64, count=len(values)).view(np.float64)


def _bits(value: Any, texts: Texts) -> int:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, str):
        if value not in _NON_FINITE:
            return texts.code(value)
        value = _NON_FINITE[value]
    if isinstance(value, (int, float)):
        return _bits_of_a_number(bounded(value))
    return OTHER if value else EMPTY


def _bits_of_a_number(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def as_numbers(values: Iterable[np.ndarray]) -> np.ndarray:
    """Of logged values: true is 1 and false is 0. ValueError: something is neither a number nor a flag."""
    parts = [part for part in values if len(part)]
    found = np.concatenate(parts) if parts else np.zeros(0)
    marked = ~are_numbers(found)
    if marked.any():
        if not are_flags(found[marked]).all():
            raise ValueError("a value must be a number, but got a text, a list or a mapping")
        found[marked] = bits_of(found[marked]) == np.uint64(TRUE)
    return found
