"""Short texts that differ by one word: replaced, added, left out or moved.

Sequences of five words say little of a short text: one word changed among ten changes up to five of its six sequences.
So a short text is known by itself and by itself without each one of its words. Two texts that have one of these in
common differ by at most one word, and every such pair has one in common: nothing is missed and nothing is guessed.

Texts made from one pattern ("a native of Spain", "a native of Chile", ...) are no copies of each other: what more than
MAX_PATTERN different texts have in common is a pattern.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from trainbook.data.row_hashes import mixed

MIN_WORDS, MAX_WORDS = 5, 50  # of fewer words one is much; from 50 on, sequences of five find one changed word
MAX_PATTERN = 4

_PUNCTUATION = "\"'`.,;:!?()[]{}<>*_-\u2013\u2014\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026"
_BASE = np.uint64(0x9E3779B97F4A7C15)


def one_word_apart(texts: Iterable[str]) -> list[tuple[int, int, float]]:
    """Pairs of texts, the longer of at least MIN_WORDS words, and which share of their words they have in common; each
    member of a group is in a pair, with the first of the group or with the one before it."""
    numbers: dict[str, int] = {}
    chosen: list[int] = []
    words: list[np.ndarray] = []
    for index, text in enumerate(texts):
        parts = [part for part in map(_bare, text.lower().split(maxsplit=MAX_WORDS)) if part]
        if MIN_WORDS - 1 <= len(parts) <= MAX_WORDS:
            chosen.append(index)
            words.append(np.array([numbers.setdefault(part, len(numbers)) for part in parts], dtype=np.uint64))
    if len(chosen) < 2:
        return []
    keys = [_keys(each) for each in words]
    owners = np.repeat(np.arange(len(chosen)), [len(part) for part in keys])
    values = np.concatenate(keys)
    order = np.lexsort((owners, values))
    values, owners = values[order], owners[order]
    is_new = np.ones(len(values), dtype=bool)  # of a word that stands twice in a row, either may be left out
    is_new[1:] = (values[1:] != values[:-1]) | (owners[1:] != owners[:-1])
    values, owners = values[is_new], owners[is_new]
    begins = np.flatnonzero(np.diff(values, prepend=~values[:1]))
    sizes = np.diff(np.append(begins, len(values)))
    pairs: dict[tuple[int, int], float] = {}
    for begin, size in zip(begins[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        members = owners[begin : begin + size].tolist()
        if size > MAX_PATTERN and not _is_a_text(int(values[begin]), members, keys):
            continue
        for before, member in itertools.pairwise(members):
            for other in {members[0], before}:
                if max(len(words[other]), len(words[member])) >= MIN_WORDS:
                    pairs[chosen[other], chosen[member]] = _in_common(words[other], words[member])
    return sorted((one, two, likeness) for (one, two), likeness in pairs.items())


def _bare(word: str) -> str:
    return word.strip(_PUNCTUATION)


def _keys(words: np.ndarray) -> np.ndarray:
    """A hash of the text first, then one of the text without each of its words."""
    with np.errstate(over="ignore"):
        count = len(words)
        powers = np.cumprod(np.concatenate([[np.uint64(1)], np.full(count, _BASE)]))
        terms = mixed(words.astype(np.uint64) + np.uint64(1))
        # A word counts by its place; behind one that is left out, all others stand a place further to the front.
        here = np.concatenate([[np.uint64(0)], np.cumsum(terms * powers[:count])])
        shifted = np.concatenate([[np.uint64(0), np.uint64(0)], np.cumsum(terms[1:] * powers[: count - 1])])
        without = here[:count] + shifted[count] - shifted[1 : count + 1]
        return mixed(np.concatenate([here[count:], without]))


def _is_a_text(value: int, members: Sequence[int], keys: Sequence[np.ndarray]) -> bool:
    """Whether what they have in common is one of them, of which the others are longer versions or copies."""
    return any(int(keys[member][0]) == value for member in members)


def _in_common(one: np.ndarray, two: np.ndarray) -> float:
    common = len(np.intersect1d(one, two))
    return common / (len(np.unique(one)) + len(np.unique(two)) - common)
