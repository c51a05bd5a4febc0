"""The sample as tokens: what the report needs to know of them is counted, and the tokens are not kept."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.data.chat import encode_with_specials
from trainbook.data.documents import EXCERPT_CHARACTERS
from trainbook.data.repeats import LongestRepeat, Repeat, find_repeats
from trainbook.data.report.kept import KeptSample
from trainbook.data.seeding import generator
from trainbook.data.tokenizers import Tokenizer
from trainbook.data.writing import pieces_of

BATCH_CHARACTERS = 1 << 20
MAX_ENTRIES = 1 << 22  # counts of tokens, of all documents together: those of some documents, if there are more
EXCERPT_TOKENS = EXCERPT_CHARACTERS


@dataclass
class Encoded:
    """Of each document of the sample, in order; and of all of them together."""

    lengths: list[int] = field(default_factory=list)
    target_lengths: list[int] = field(default_factory=list)  # of pairs
    unknown: int = 0  # tokens
    repeats: list[tuple[Repeat, np.ndarray]] = field(default_factory=list)  # and the tokens around each
    counted: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # a document's tokens, and how many

    @property
    def counted_documents(self) -> list[int]:
        """Those of the sample whose tokens are counted: all, or a random part."""
        return sorted(self.counted)

    def counts(self, vocab_size: int) -> Any:
        """(documents, vocabulary): how often each of these has each token."""
        from scipy import sparse

        rows = [self.counted[document] for document in self.counted_documents]
        ends = np.cumsum([0] + [len(ids) for ids, _ in rows])
        ids = np.concatenate([*(ids for ids, _ in rows), np.empty(0, dtype=np.int32)])
        numbers = np.concatenate([*(numbers for _, numbers in rows), np.empty(0)]).astype(np.float64)
        return sparse.csr_array((numbers, ids, ends), shape=(len(rows), vocab_size))


def encode(
    sample: KeptSample,
    tokenizer: Tokenizer,
    specials: Mapping[str, int] | None = None,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> Encoded:
    """`specials`: in a conversation, texts that name a special token become that token."""
    counter = _Counter(tokenizer, len(sample))
    batch: list[str] = []
    targets: list[str] = []
    size = begin = 0

    def encode_many(texts: list[str]) -> list[np.ndarray]:
        if specials is None:
            return tokenizer.encode_many(texts)
        return [ids for ids, _ in encode_with_specials(texts, tokenizer, specials)]

    def flush() -> None:
        nonlocal size, begin
        if batch:
            counter.add_documents(begin, encode_many(batch))
            counter.encoded.target_lengths += map(len, encode_many(targets) if targets else ())
        begin += len(batch)
        batch.clear()
        targets.clear()
        size = 0

    for number, seen in enumerate(sample):
        if specials is None and seen.document.target is None and seen.num_characters > BATCH_CHARACTERS:
            flush()
            counter.add_long(number, _in_batches(pieces_of(seen.document, tokenizer, ""), tokenizer, advance))
            begin += 1
            continue
        batch.append(seen.document.text)
        targets += () if seen.document.target is None else (seen.document.target,)
        size += seen.num_characters
        advance(seen.num_bytes)
        if size >= BATCH_CHARACTERS:
            flush()
    flush()
    return counter.encoded


def _in_batches(pieces: Iterable[str], tokenizer: Tokenizer, advance: Callable[[int], None]) -> Iterator[np.ndarray]:
    """Tokens of a long text, some pieces at a time, so that all cores have some to encode."""
    remaining = iter(pieces)
    first = next(remaining, None)
    if first is None:
        return
    yield tokenizer.encode(first)
    advance(len(first.encode("utf-8", "surrogatepass")))
    while some := list(itertools.islice(remaining, 8)):
        yield np.concatenate(tokenizer.encode_rest(some))
        advance(sum(len(piece.encode("utf-8", "surrogatepass")) for piece in some))


class _Counter:
    def __init__(self, tokenizer: Tokenizer, num_documents: int) -> None:
        self.encoded = Encoded()
        self._vocab_size, self._unknown = tokenizer.vocab_size, tokenizer.special("unknown")
        self._rank = generator("data-report-counted").permutation(num_documents)
        self._worst = num_documents  # of the ranks: documents from it on are not counted
        self._entries = 0
        self._ranks: list[int] = []  # of those that are counted, the worst one first
        self._document = {int(rank): document for document, rank in enumerate(self._rank)}

    def add_documents(self, begin: int, tokens: list[np.ndarray]) -> None:
        lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
        stream = np.concatenate([*tokens, np.empty(0, dtype=np.int64)])
        for repeat in find_repeats(stream, lengths):
            start = max(repeat.position - 16, 0)
            shown = tokens[repeat.document][start : start + EXCERPT_TOKENS]
            self.encoded.repeats.append((repeat._replace(document=begin + repeat.document), shown))
        self.encoded.lengths += lengths.tolist()
        for number, ids in enumerate(tokens, start=begin):
            self._keep(number, *np.unique(ids, return_counts=True))

    def add_long(self, number: int, parts: Iterable[np.ndarray]) -> None:
        totals = np.zeros(self._vocab_size, dtype=np.int64)
        longest = LongestRepeat(EXCERPT_TOKENS)
        for ids in parts:
            totals += np.bincount(ids, minlength=self._vocab_size)
            longest.add(ids)
        longest.close()
        if longest.found is not None:
            self.encoded.repeats.append((longest.found._replace(document=number), longest.shown))
        self.encoded.lengths.append(int(totals.sum()))
        present = np.flatnonzero(totals)
        self._keep(number, present, totals[present])

    def _keep(self, number: int, ids: np.ndarray, counts: np.ndarray) -> None:
        if self._unknown is not None:
            self.encoded.unknown += int(counts[ids == self._unknown].sum())
        if self._rank[number] >= self._worst:
            return
        counted = self.encoded.counted
        counted[number] = ids.astype(np.int32), counts
        heapq.heappush(self._ranks, -int(self._rank[number]))
        self._entries += len(ids)
        while self._entries > MAX_ENTRIES and len(counted) > 1:
            self._worst = -heapq.heappop(self._ranks)
            self._entries -= len(counted.pop(self._document[self._worst])[0])
