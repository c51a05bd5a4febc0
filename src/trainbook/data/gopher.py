"""Texts that repeat themselves, by the rules with which Gopher's training text was filtered.

The measures and limits are those of table A1 of Rae et al. 2021, arXiv 2112.11446, in the reading of datatrove's
filter, with three differences. Words are what `WORD` finds, not those of a language's own tokenizer. What is before the
first and behind the last line is no empty line. And an n-gram that occurs once is no repetition, however short the text
is that it is a part of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

WORD = re.compile(r"\w+|[^\w\s]")  # a punctuation mark is a word of its own
_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")

# The largest share of a text that may be repetition.
DUPLICATE_PARAGRAPHS = 0.30
DUPLICATE_PARAGRAPH_CHARACTERS = 0.20
DUPLICATE_LINES = 0.30
DUPLICATE_LINE_CHARACTERS = 0.20
TOP_N_GRAM_CHARACTERS = {2: 0.20, 3: 0.18, 4: 0.16}
DUPLICATE_N_GRAM_CHARACTERS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}

VERSION = 1  # of the rules: tokens that were filtered by others are not taken for these


def broken_rule(text: str) -> str | None:
    """The first rule that the text breaks, in words; None for a text that may stay."""
    body = text.strip()
    if not body:
        return None
    for parts, most, most_characters, what in (
        (_PARAGRAPHS.split(body), DUPLICATE_PARAGRAPHS, DUPLICATE_PARAGRAPH_CHARACTERS, "paragraphs"),
        (_LINES.split(body), DUPLICATE_LINES, DUPLICATE_LINE_CHARACTERS, "lines"),
    ):
        duplicates, characters = _duplicates(parts)
        if duplicates / len(parts) > most:
            return f"duplicate {what}"
        if characters / len(text) > most_characters:
            return f"characters in duplicate {what}"
    return _broken_by_words(WORD.findall(text), len(text))


def _duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts were there before, and how many characters those have."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count, characters = count + 1, characters + len(part)
        seen.add(part)
    return count, characters


def _broken_by_words(words: list[str], num_characters: int) -> str | None:
    numbers: dict[str, int] = {}
    word_numbers = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    # Characters of all words before each, so that those of an n-gram are a difference.
    before = np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64)
    names = word_numbers  # of the n-gram that begins at each word: the same number for the same words
    for n in range(2, max(DUPLICATE_N_GRAM_CHARACTERS) + 1):
        if len(words) < n:
            return None
        # An n-gram is the shorter one and a word more.
        _, names = np.unique(names[:-1] * len(numbers) + word_numbers[n - 1 :], return_inverse=True)
        counts = np.bincount(names)
        if counts.max() < 2:
            return None  # then no longer one comes twice either
        characters = before[n:] - before[:-n]
        if n in TOP_N_GRAM_CHARACTERS:
            first = int(np.argmax(counts[names] == counts.max()))  # of several as frequent ones, the first
            share = int(counts.max()) * (int(characters[first]) + n - 1) / num_characters  # with the blanks in it
            if share > TOP_N_GRAM_CHARACTERS[n]:
                return f"the most frequent {n} words in a row"
        elif _repeated_characters(names, characters, n) / num_characters > DUPLICATE_N_GRAM_CHARACTERS[n]:
            return f"{n} words in a row that came before"
    return None


def _repeated_characters(names: np.ndarray, characters: np.ndarray, n: int) -> int:
    """Of n-grams that came before, none of them counted over another: behind one, the search goes on."""
    seen: set[int] = set()
    total = place = 0
    listed = names.tolist()
    while place < len(listed):
        if listed[place] in seen:
            total += int(characters[place])
            place += n
        else:
            seen.add(listed[place])
            place += 1
    return total


Item = TypeVar("Item")


class Left:
    """Documents that are left out on the way, counted."""

    def __init__(self) -> None:
        self.of, self.left_out, self.rules = 0, 0, Counter[str]()

    def out_of(self, documents: Iterable[Item], texts_of: Callable[[Item], Sequence[str]]) -> Iterator[Item]:
        """Those that may stay. One text of a document that breaks a rule is enough to leave it out."""
        for document in documents:
            self.of += 1
            rule = next(filter(None, map(broken_rule, texts_of(document))), None)
            if rule is None:
                yield document
            else:
                self.left_out += 1
                self.rules[rule] += 1

    @property
    def facts(self) -> dict[str, Any]:
        return {"left_out": self.left_out, "of": self.of, "rules": dict(self.rules)}


@dataclass(frozen=True)
class Verdicts:
    """Which of many documents break a rule."""

    is_left_out: np.ndarray
    rules: dict[str, int]  # how many broke each of them first

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> Verdicts:
        """Of the texts of each document: one of them that breaks a rule is enough."""
        broken = [next(filter(None, map(broken_rule, texts)), None) for texts in documents]
        return cls(np.array([rule is not None for rule in broken], dtype=bool), dict(Counter(filter(None, broken))))

    @property
    def facts(self) -> dict[str, Any]:
        return {"left_out": int(self.is_left_out.sum()), "of": len(self.is_left_out), "rules": self.rules}
