"""Texts that are left out: Gopher's quality rules, and repetition."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

# Texts that repeat themselves, by the rules with which Gopher's training text was filtered.


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


# Tokens that come again and again: what a broken page, a table of dashes or a scraper leaves. Batches of such text
# have made losses spike, and the model learns nothing from them.


MAX_PERIOD = 13
MIN_REPETITIONS = 32
RULE = f"1 to {MAX_PERIOD} tokens repeated {MIN_REPETITIONS} times or more"
CHUNK = 1 << 22  # tokens that are looked at together: bounds the memory that a long stream needs


class Repeats(NamedTuple):
    """Stretches of a stream, as long as they can be, in which a few tokens come again and again.

    A stretch is here once for each period that it has: what repeats after one token also does after two.
    """

    begins: np.ndarray
    ends: np.ndarray
    periods: np.ndarray  # tokens that come again


class Repeat(NamedTuple):
    document: int  # index among the documents
    position: int  # of the first token within the document
    period: int  # tokens that come again
    repetitions: int


def repeats_in(
    tokens: np.ndarray,
    max_period: int = MAX_PERIOD,
    min_repetitions: int = MIN_REPETITIONS,
    chunk: int = CHUNK,
) -> Repeats:
    """By rising period, and of one period in order."""
    pieces: list[list[np.ndarray]] = [[] for _ in range(max_period)]
    for start in range(0, len(tokens), chunk):
        before = min(start, max_period)
        part = np.asarray(tokens[start - before : start + chunk])
        for period in range(1, max_period + 1):
            first = max(before, period)  # of the part: the first token of this chunk that has one a period before it
            found = _equal_runs(part, period, first)
            long = found[:, 1] - found[:, 0] >= (min_repetitions - 1) * period
            at_an_edge = (found[:, 0] == first) | (found[:, 1] == len(part))  # may go on in the chunk next to it
            pieces[period - 1].append(found[long | at_an_edge] + start - before)
    joined = [_joined(parts) for parts in pieces]
    # So many equal tokens, and the first period itself, are repetitions.
    begins = np.concatenate([found[:, 0] - period for period, found in enumerate(joined, start=1)])
    ends = np.concatenate([found[:, 1] for found in joined])
    periods = np.repeat(np.arange(1, max_period + 1), [len(found) for found in joined])
    enough = (ends - begins) // periods >= min_repetitions
    return Repeats(begins[enough], ends[enough], periods[enough])


def _equal_runs(tokens: np.ndarray, period: int, first: int) -> np.ndarray:
    """From the first on, runs of tokens that equal the one a period before them: where each begins and ends."""
    equal = tokens[first:] == tokens[first - period : max(first, len(tokens)) - period]
    changes = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]])))
    return first + changes.reshape(-1, 2)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Runs that were cut by the end of a chunk, in one."""
    runs = np.concatenate([*parts, np.empty((0, 2), dtype=np.int64)])
    apart = runs[1:, 0] != runs[:-1, 1]
    is_first, is_last = np.ones(len(runs), dtype=bool), np.ones(len(runs), dtype=bool)
    is_first[1:] = is_last[:-1] = apart
    return np.stack([runs[is_first, 0], runs[is_last, 1]], axis=1)


def has_repeat(
    found: Repeats, starts: np.ndarray, lengths: np.ndarray, min_repetitions: int = MIN_REPETITIONS
) -> np.ndarray:
    """Of each part of the stream, whether enough repetitions lie within it. Parts are in order and apart."""
    parts, _, _, _ = _within(found, starts, lengths, min_repetitions)
    has = np.zeros(len(starts), dtype=bool)
    has[parts] = True
    return has


def find_repeats(
    tokens: np.ndarray, lengths: np.ndarray, max_period: int = MAX_PERIOD, min_repetitions: int = MIN_REPETITIONS
) -> list[Repeat]:
    """The longest repeat of each document that has one, by the shortest period; documents lie one behind the other."""
    found = repeats_in(tokens, max_period, min_repetitions)
    starts = np.cumsum(lengths) - lengths
    documents, begins, periods, repetitions = _within(found, starts, lengths, min_repetitions)
    order = np.lexsort((begins, -repetitions, periods, documents))
    _, first = np.unique(documents[order], return_index=True)
    columns = np.stack([documents, begins - starts[documents], periods, repetitions], axis=1)
    return [Repeat(*row) for row in columns[order[first]].tolist()]


class LongestRepeat:
    """The same of one document whose tokens come chunk by chunk."""

    def __init__(
        self, excerpt: int, max_period: int = MAX_PERIOD, min_repetitions: int = MIN_REPETITIONS, before: int = 16
    ) -> None:
        self.max_period, self.min_repetitions = max_period, min_repetitions
        self.excerpt, self.before = excerpt, before  # tokens that are shown, and those of them before the repeat
        self.found: Repeat | None = None
        self.shown = np.empty(0, dtype=np.int64)  # tokens around it
        self._open: dict[int, tuple[int, np.ndarray]] = {}  # of each period, the run that the last chunk ended in
        self._tail = np.empty(0, dtype=np.int64)
        self._position = 0

    def add(self, chunk: np.ndarray) -> None:
        part, offset = np.concatenate([self._tail, chunk]), self._position - len(self._tail)
        for period in range(1, self.max_period + 1):
            first = max(len(self._tail), period)
            runs = _equal_runs(part, period, first)
            begins, ends = runs[:, 0] + offset, runs[:, 1] + offset
            waiting = self._open.pop(period, None)
            if waiting is not None and len(runs) and runs[0, 0] == first:
                begins[0] = waiting[0]
            elif waiting is not None:
                self._consider(period, waiting[0], self._position, waiting[1])
                waiting = None
            if not len(runs):
                continue

            def shown(number: int, runs: np.ndarray = runs, waiting: Any = waiting, period: int = period) -> np.ndarray:
                if number == 0 and waiting is not None:
                    return waiting[1]
                start = max(int(runs[number, 0]) - period - self.before, 0)
                return part[start : start + self.excerpt].copy()

            if runs[-1, 1] == len(part):
                self._open[period] = int(begins[-1]), shown(len(runs) - 1)
                begins, ends = begins[:-1], ends[:-1]
            if len(begins):
                longest = int(np.argmax(ends - begins))
                self._consider(period, int(begins[longest]), int(ends[longest]), shown(longest))
        self._tail = part[-self.max_period :]
        self._position += len(chunk)

    def close(self) -> None:
        for period, (begin, tokens) in self._open.items():
            self._consider(period, begin, self._position, tokens)
        self._open = {}

    def _consider(self, period: int, begin: int, end: int, tokens: np.ndarray) -> None:
        repetitions = (end - begin) // period + 1
        if repetitions < self.min_repetitions:
            return
        other = Repeat(0, begin - period, period, repetitions)
        rank = (period, -repetitions, other.position)
        if self.found is None or rank < (self.found.period, -self.found.repetitions, self.found.position):
            self.found, self.shown = other, tokens


def _within(
    found: Repeats, starts: np.ndarray, lengths: np.ndarray, min_repetitions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each part and each repeat of which enough lies in it: the part, where it begins, its period and number."""
    ends = starts + lengths
    first = np.searchsorted(ends, found.begins, side="right")
    behind = np.maximum(np.searchsorted(starts, found.ends, side="left"), first)
    which = np.repeat(np.arange(len(first)), behind - first)
    parts = np.arange(len(which)) - np.repeat(np.cumsum(behind - first) - behind, behind - first)
    begins = np.maximum(found.begins[which], starts[parts])
    periods = found.periods[which]
    repetitions = (np.minimum(found.ends[which], ends[parts]) - begins) // periods
    enough = repetitions >= min_repetitions
    return parts[enough], begins[enough], periods[enough], repetitions[enough]
