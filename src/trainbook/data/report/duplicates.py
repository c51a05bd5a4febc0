"""Documents that say nearly the same: most of their word sequences are equal.

Near duplicates are documents whose sets of five-word sequences have a Jaccard index of at least 0.8 (those in both over
those in either). MinHash finds candidates: 120 hashes in 20 bands of 6, so that a pair just at the limit is found in
99.8 of 100 cases; each candidate is then compared in full, so nothing is reported by accident of hashing. Short texts
are near duplicates also if they differ by one word.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainbook.bounded import json_text
from trainbook.data.linear import words_of
from trainbook.data.prepare.hashes import generator
from trainbook.data.report.memory import scratch_file
from trainbook.data.sources.records import GOLDEN, mixed

# Documents with the same text, found among any number of them: sixteen bytes of each stay in memory.


MEMORY_BYTES = 1 << 20  # of the names of documents; more are in a temporary file


@dataclass(frozen=True)
class SharedTexts:
    """What two sets of documents have in common."""

    texts: int
    documents: int  # of the one that was asked
    examples: list[tuple[str, str]]  # where such a text is: in the one that was asked, and in the other


@dataclass
class ExactDuplicates:
    """Counts copies while documents pass by, without keeping any."""

    max_examples: int = 5
    _hashes: array[int] = field(default_factory=lambda: array("Q"))

    def __post_init__(self) -> None:
        self._origins = scratch_file(self, MEMORY_BYTES)

    def add(self, digest: bytes, origin: str) -> None:
        self._hashes.append(int.from_bytes(digest[:8], "little"))
        self._origins.write(json.dumps(origin).encode() + b"\n")

    @property
    def num_texts(self) -> int:
        return len(self._found()[0])

    @property
    def copies(self) -> int:
        return len(self._hashes) - self.num_texts

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Copies, and where the text of each first was."""
        hashes, first = self._found()
        is_copy = np.ones(len(self._hashes), dtype=bool)
        is_copy[first] = False
        chosen = np.flatnonzero(is_copy)[: self.max_examples]
        firsts = first[np.searchsorted(hashes, self._values[chosen])]
        named = self._named([*chosen.tolist(), *firsts.tolist()])
        return [(named[copy], named[one]) for copy, one in zip(chosen.tolist(), firsts.tolist(), strict=True)]

    def shared(self, other: ExactDuplicates, max_examples: int) -> SharedTexts:
        """Texts that another set of documents has too."""
        (mine, first), (theirs, their_first) = self._found(), other._found()
        is_common = np.isin(mine, theirs, assume_unique=True)
        texts = int(is_common.sum())
        documents = int(np.isin(self._values, mine[is_common]).sum()) if texts else 0
        chosen = np.sort(first[is_common])[:max_examples]
        others = their_first[np.searchsorted(theirs, self._values[chosen])]
        names, their_names = self._named(chosen.tolist()), other._named(others.tolist())
        pairs = zip(chosen.tolist(), others.tolist(), strict=True)
        return SharedTexts(texts, documents, [(names[one], their_names[two]) for one, two in pairs])

    @property
    def hashes(self) -> np.ndarray:
        """(documents,) uint64: of each document, in the order in which they came."""
        return self._values.copy()

    @property
    def _values(self) -> np.ndarray:
        return np.frombuffer(self._hashes, dtype=np.uint64) if self._hashes else np.empty(0, dtype=np.uint64)

    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """Each hash once, in order, and the first document that has it."""
        return np.unique(self._values.copy(), return_index=True)

    def _named(self, chosen: Iterable[int]) -> dict[int, str]:
        wanted, named = set(chosen), {}
        self._origins.seek(0)
        for number, line in enumerate(self._origins if wanted else ()):
            if number in wanted:
                named[number] = json_text.loads(line)
                if len(named) == len(wanted):
                    break
        self._origins.seek(0, 2)
        return named


# Short texts that differ by one word: replaced, added, left out or moved.


MIN_WORDS, MAX_WORDS = 5, 50  # of fewer words one is much; from 50 on, sequences of five find one changed word
MAX_PATTERN = 4

_PUNCTUATION = "\"'`.,;:!?()[]{}<>*_-\u2013\u2014\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026"


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
        powers = np.cumprod(np.concatenate([[np.uint64(1)], np.full(count, GOLDEN)]))
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


MOST_SIMILAR = 0.99


def similarity(jaccard: float) -> float:
    """As it is shown, with two digits: never 1, because the texts differ, though their sets of words may be equal."""
    return min(int(jaccard * 100) / 100, MOST_SIMILAR)


BEFORE, SHOWN = 24, 72  # characters


def where_they_differ(one: str, other: str) -> tuple[str, str]:
    """A part of each text, on one line, from a little before the first character in which they differ."""
    one, other = " ".join(one.split()), " ".join(other.split())
    equal = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = equal - BEFORE if equal > BEFORE else 0
    return _part(one, begin), _part(other, begin)


def _part(text: str, begin: int) -> str:
    """With an ellipsis for what is not shown."""
    end = begin + SHOWN
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


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
