"""How long the documents are, how much of them a length keeps, and which length to take."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.data.batches.filling import bucketed_order, pack
from trainbook.data.prepare.filters import LongestRepeat, Repeat, find_repeats
from trainbook.data.prepare.hashes import generator
from trainbook.data.prepare.writing import pieces_of
from trainbook.data.report.kept import KeptSample
from trainbook.data.samples.base import EXCERPT_CHARACTERS
from trainbook.data.sources.chat import encode_with_specials
from trainbook.data.tokenizers import Tokenizer

# Powers of two are what kernels like best; shorter ones are for records of a line or two.
STANDARD_LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHOWN_LENGTHS = (128, 256, 512, 1024, 2048, 4096)
KEPT_TOKENS, WHOLE_DOCUMENTS = 0.99, 0.95
RULE = (
    f"the smallest standard length that keeps {KEPT_TOKENS:.0%} of the tokens and {WHOLE_DOCUMENTS:.0%} of the "
    "documents whole"
)
PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99)
MAX_BINS = 20
SPREAD = 10  # a longest document of so many times the 90th percentile: equal bins would show nothing but one bar


def describe(lengths: np.ndarray) -> dict[str, Any]:
    """Mean, extremes, percentiles and a histogram."""
    if len(lengths) == 0:
        return {"mean": 0.0, "min": 0, "max": 0, "percentiles": {}, "histogram": []}
    return {
        "mean": float(lengths.mean()),
        "min": int(lengths.min()),
        "max": int(lengths.max()),
        "percentiles": {str(share): float(np.percentile(lengths, share)) for share in PERCENTILES},
        "histogram": histogram(lengths),
    }


def edges(lengths: np.ndarray) -> np.ndarray:
    """Whole numbers between bins: equally wide ones, or, where a few documents are far longer than most, each bin
    wider than the one before by the same factor."""
    low, high = int(lengths.min()), int(lengths.max()) + 1
    if high <= SPREAD * max(float(np.percentile(lengths, 90)), 1):
        width = -(-(high - low) // MAX_BINS)
        return np.arange(low, high + width, width)
    found = np.geomspace(max(low, 1), high, MAX_BINS + 1)
    found[0] = low
    return np.unique(np.round(found).astype(np.int64))


def histogram(lengths: np.ndarray, bins: np.ndarray | None = None) -> list[dict[str, int]]:
    """Documents with a length from `from` up to and without `to`."""
    if len(lengths) == 0:
        return []
    bins = edges(lengths) if bins is None else bins
    # The last bin of numpy's histogram has both of its ends: one more, always empty, keeps ours half open.
    counts, _ = np.histogram(lengths, bins=np.append(bins, bins[-1] + 1))
    return [
        {"from": int(begin), "to": int(end), "documents": int(count)}
        for begin, end, count in zip(bins[:-1], bins[1:], counts[:-1], strict=True)
    ]


def coverage(lengths: np.ndarray, limit: int, around: int = 0) -> dict[str, float]:
    """The share of documents that are whole and of tokens that are kept, if a sample has `limit` positions, of which
    `around` are for what a task puts before and after it."""
    room = max(limit - around, 0)
    total = int(lengths.sum())
    return {
        "documents_whole": float((lengths <= room).mean()) if len(lengths) else 1.0,
        "tokens_kept": float(np.minimum(lengths, room).sum() / total) if total else 1.0,
    }


def recommend(lengths: np.ndarray, around: int = 0) -> int | None:
    """By the rule above; None where no standard length keeps so much."""
    for limit in STANDARD_LENGTHS:
        kept = coverage(lengths, limit, around)
        if kept["tokens_kept"] >= KEPT_TOKENS and kept["documents_whole"] >= WHOLE_DOCUMENTS:
            return limit
    return None


# How much of each batch would be padding, by strategy: counted on the batches that training would make.


STRATEGIES = ("max_length", "longest", "bucketed", "packed", "windows")
WORTH_IT = 0.05  # of all positions: less than this is not worth another strategy


def padding_waste(
    positions: np.ndarray,
    max_positions: int,
    micro_batch: int,
    seed: int = 0,
    target_positions: np.ndarray | None = None,
    max_target_positions: int = 0,
) -> dict[str, float]:
    """The share of positions that hold no token in the first epoch, those for target texts included. What is too long
    counts as cut.

    Windows run from one document into the next and are full; what they give up instead is that a text begins at
    position 0. Micro-batches are what is padded, so their size is what matters, not that of the global batch.
    """
    usable = positions > 0
    parts = [(np.minimum(positions[usable], max_positions), max_positions)]
    if target_positions is not None:
        parts.append((np.minimum(target_positions[usable], max_target_positions), max_target_positions))
    lengths, targets = parts[0][0], parts[1][0] if len(parts) > 1 else None
    if len(lengths) == 0:
        return dict.fromkeys(STRATEGIES, 0.0)
    order = generator("order", seed, 0).permutation(len(lengths))
    blocks = bucketed_order(lengths, targets, micro_batch, 0, generator("order", seed, 0))
    rows = len(pack(lengths, max_positions, seed, target_lengths=targets, target_capacity=max_target_positions))
    taken = sum(int(part.sum()) for part, _ in parts)
    made = {
        "max_length": len(lengths) * sum(width for _, width in parts),
        "longest": sum(_padded(part[order], micro_batch) for part, _ in parts),
        "bucketed": sum(_padded(part[blocks], micro_batch) for part, _ in parts),
        "packed": rows * sum(width for _, width in parts),
        "windows": taken,
    }
    return {strategy: 1 - taken / made[strategy] for strategy in STRATEGIES}


def best_strategy(waste: dict[str, float], can_pack: bool = True) -> str:
    """The simplest strategy that wastes at most a little more than the thriftiest one."""
    candidates = ["longest", "bucketed", "packed"] if can_pack else ["longest", "bucketed"]
    least = min(waste[name] for name in candidates)
    return next(name for name in candidates if waste[name] <= least + WORTH_IT)


def _padded(lengths: np.ndarray, micro_batch: int) -> int:
    starts = np.arange(0, len(lengths), micro_batch)
    sizes = np.diff(np.append(starts, len(lengths)))
    return int((np.maximum.reduceat(lengths, starts) * sizes).sum())


# The sample as tokens: what the report needs to know of them is counted, and the tokens are not kept.


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
