"""Documents that say the same: by their whole text, and by most of their word sequences.

Near duplicates are documents whose sets of five-word sequences have a Jaccard index of at least 0.8 (those in both over
those in either). MinHash finds candidates: 120 hashes in 20 bands of 6, so that a pair just at the limit is found in
99.8 of 100 cases; each candidate is then compared in full, so nothing is reported by accident of hashing. Short texts
are near duplicates also if they differ by one word (one_word.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainbook.data.linear import words_of
from trainbook.data.report.one_word import MAX_WORDS, MIN_WORDS, one_word_apart
from trainbook.data.seeding import generator

SHINGLE_WORDS = 5
BANDS, ROWS_PER_BAND = 20, 6
SIMILAR = 0.8
METHOD = (
    f"MinHash ({BANDS} bands of {ROWS_PER_BAND} hashes of {SHINGLE_WORDS}-word sequences), candidates compared in "
    f"full: Jaccard index >= {SIMILAR}; texts of {MIN_WORDS} to {MAX_WORDS} words also if they differ by one word"
)


def digest(text: str) -> bytes:
    """Of the text without blanks around it: a line break at the end makes no other document."""
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()[:16]


@dataclass
class ExactDuplicates:
    """Counts copies while documents pass by, without keeping any."""

    seen: dict[bytes, str] = field(default_factory=dict)  # of each text, where it first was
    copies: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)  # a copy, and where its text first was
    _more: dict[bytes, int] = field(default_factory=dict)  # of each text that came again, how often

    def add(self, text: str, origin: str, max_examples: int = 5) -> None:
        key = digest(text)
        if key in self.seen:
            self.copies += 1
            self._more[key] = self._more.get(key, 0) + 1
            if len(self.examples) < max_examples:
                self.examples.append((origin, self.seen[key]))
        else:
            self.seen[key] = origin

    def count(self, key: bytes) -> int:
        """How many documents have a text that was seen."""
        return 1 + self._more.get(key, 0)


def near_duplicates(texts: Sequence[str]) -> list[tuple[int, int, float]]:
    """Pairs of documents that are alike but not the same, and how alike; the earlier one first.

    In a group of many that are alike not every pair is named, but each member is in a pair.
    """
    first: dict[bytes, int] = {}
    for index, text in enumerate(texts):
        first.setdefault(digest(text), index)
    chosen = list(first.values())
    distinct = [texts[index] for index in chosen]
    pairs = {(chosen[a], chosen[b]): likeness for a, b, likeness in one_word_apart(distinct)}
    sets = shingle_sets(distinct)
    kept = [number for number, values in enumerate(sets) if len(values)]
    for a, b in _candidates(_signatures([sets[number] for number in kept])) if len(kept) > 1 else ():
        likeness = jaccard(sets[kept[a]], sets[kept[b]])
        if likeness >= SIMILAR:
            pairs[chosen[kept[a]], chosen[kept[b]]] = likeness
    return sorted((a, b, likeness) for (a, b), likeness in pairs.items())


def groups(pairs: Sequence[tuple[int, int, float]], count: int) -> np.ndarray:
    """The group of each of `count` documents, named by its first member: those linked by pairs are together."""
    parent = np.arange(count)

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = int(parent[index])
        return index

    for a, b, _ in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return np.array([root(index) for index in range(count)], dtype=np.int64)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


def shingle_sets(texts: Sequence[str]) -> list[np.ndarray]:
    """A sorted array of hashes a document, one for each sequence of words; a shorter text is one sequence."""
    return [_shingles(words) for words in _numbered(texts)]


def _numbered(texts: Sequence[str]) -> list[np.ndarray]:
    """The words of each text, as numbers."""
    numbers: dict[str, int] = {}
    return [
        np.array([numbers.setdefault(word, len(numbers)) for word in words_of(text)], dtype=np.uint64) for text in texts
    ]


def _shingles(words: np.ndarray) -> np.ndarray:
    width = min(SHINGLE_WORDS, len(words))
    if width == 0:
        return words
    hashes = np.zeros(len(words) - width + 1, dtype=np.uint64)
    for offset in range(width):
        hashes = _mixed(hashes + words[offset : offset + len(hashes)] + np.uint64(1))
    return np.unique(hashes)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: each bit of the answer depends on each bit given."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _signatures(sets: Sequence[np.ndarray]) -> np.ndarray:
    """(documents, hashes): the least value of each hash function over a document's sequences."""
    values = np.concatenate(sets)
    starts = np.cumsum([0] + [len(part) for part in sets[:-1]])
    seeds = generator("minhash").integers(1 << 63, size=BANDS * ROWS_PER_BAND, dtype=np.uint64)
    return np.stack([np.minimum.reduceat(_mixed(values ^ seed), starts) for seed in seeds], axis=1)


def _candidates(signatures: np.ndarray) -> list[tuple[int, int]]:
    """Pairs that agree on a band. Of a bucket, each member with the first one and with the one before it."""
    pairs: set[tuple[int, int]] = set()
    for band in range(BANDS):
        part = np.ascontiguousarray(signatures[:, band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND])
        _, bucket = np.unique(part.view([("", part.dtype)] * ROWS_PER_BAND).ravel(), return_inverse=True)
        order = np.argsort(bucket, kind="stable")
        same = np.flatnonzero(bucket[order][1:] == bucket[order][:-1])
        pairs.update(zip(order[same].tolist(), order[same + 1].tolist(), strict=True))
        # The first of each bucket, carried along it.
        begins = np.flatnonzero(np.diff(bucket[order], prepend=-1))
        firsts = order[np.repeat(begins, np.diff(np.append(begins, len(order))))]
        pairs.update(zip(firsts[same + 1].tolist(), order[same + 1].tolist(), strict=True))
    return sorted(pairs)
