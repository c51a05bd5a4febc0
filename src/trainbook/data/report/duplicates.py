"""Documents that say nearly the same: most of their word sequences are equal.

Near duplicates are documents whose sets of five-word sequences have a Jaccard index of at least 0.8 (those in both over
those in either). MinHash finds candidates: 120 hashes in 20 bands of 6, so that a pair just at the limit is found in
99.8 of 100 cases; each candidate is then compared in full, so nothing is reported by accident of hashing. Short texts
are near duplicates also if they differ by one word (one_word.py).
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from trainbook.data.linear import words_of
from trainbook.data.report.one_word import MAX_WORDS, MIN_WORDS, one_word_apart
from trainbook.data.row_hashes import mixed
from trainbook.data.seeding import generator

SHINGLE_WORDS = 5
BANDS, ROWS_PER_BAND = 20, 6
SIMILAR = 0.8
BATCH_SHINGLES, BATCH_TEXTS = 1 << 19, 1 << 10  # that signatures are made of at a time
KEPT_SHINGLES = 1 << 22  # in memory, while candidates are compared
METHOD = (
    f"MinHash ({BANDS} bands of {ROWS_PER_BAND} hashes of {SHINGLE_WORDS}-word sequences), candidates compared in "
    f"full: Jaccard index >= {SIMILAR}; texts of {MIN_WORDS} to {MAX_WORDS} words also if they differ by one word"
)


def digest(text: str) -> bytes:
    """Of the text without blanks around it: a line break at the end makes no other document."""
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()[:16]


def near_duplicates(texts: Sequence[str]) -> list[tuple[int, int, float]]:
    """Pairs of documents that are alike but not the same, and how alike; the earlier one first.

    In a group of many that are alike not every pair is named, but each member is in a pair. Texts are read one by one,
    and those of candidates again, so that they need not be in memory.
    """
    first: dict[bytes, int] = {}
    signatures: list[np.ndarray] = []
    with_words: list[int] = []  # texts that have a signature
    batch: list[np.ndarray] = []
    for index, text in enumerate(texts):
        if first.setdefault(digest(text), index) != index:
            continue
        if len(shingles := shingle_set(text)):
            with_words.append(index)
            batch.append(shingles)
        if sum(map(len, batch)) >= BATCH_SHINGLES or len(batch) >= BATCH_TEXTS:
            signatures.append(_signatures(batch))
            batch = []
    if batch:
        signatures.append(_signatures(batch))
    chosen = list(first.values())
    short = one_word_apart(texts[index] for index in chosen)
    pairs = {(chosen[a], chosen[b]): likeness for a, b, likeness in short}
    sets = _Sets(texts)
    for a, b in _candidates(np.concatenate(signatures)) if len(with_words) > 1 else ():
        likeness = jaccard(sets[with_words[a]], sets[with_words[b]])
        if likeness >= SIMILAR:
            pairs[with_words[a], with_words[b]] = likeness
    return sorted((a, b, likeness) for (a, b), likeness in pairs.items())


class _Sets:
    """The shingles of texts, made when they are asked for; some stay in memory."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._size = 0

    def __getitem__(self, index: int) -> np.ndarray:
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        found = self._kept[index] = shingle_set(self._texts[index])
        self._size += len(found)
        while self._size > KEPT_SHINGLES and len(self._kept) > 2:
            self._size -= len(self._kept.popitem(last=False)[1])
        return found


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


def shingle_set(text: str) -> np.ndarray:
    """A sorted array of hashes, one for each sequence of words; a shorter text is one sequence."""
    hashes = (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words_of(text))
    words = np.fromiter(hashes, dtype=np.uint64)
    width = min(SHINGLE_WORDS, len(words))
    if width == 0:
        return words
    found = np.zeros(len(words) - width + 1, dtype=np.uint64)
    for offset in range(width):
        found = mixed(found + words[offset : offset + len(found)] + np.uint64(1))
    return np.unique(found)


def _signatures(sets: Sequence[np.ndarray]) -> np.ndarray:
    """(documents, hashes): the least value of each hash function over a document's sequences."""
    values = np.concatenate(sets)
    starts = np.cumsum([0] + [len(part) for part in sets[:-1]])
    seeds = generator("minhash").integers(1 << 63, size=BANDS * ROWS_PER_BAND, dtype=np.uint64)
    return np.stack([np.minimum.reduceat(mixed(values ^ seed), starts) for seed in seeds], axis=1)


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
