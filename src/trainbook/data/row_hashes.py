"""Whether samples are met again: hashes of rows, and of spans wherever in a text they stand."""

from __future__ import annotations

import numpy as np

from trainbook.data.batches import Ragged

TOKENS_OF_A_ROW = 32  # that its hash is made of, spread over it: enough to know it by, whatever its length
SPAN = 64  # tokens that have to be equal for two places of a stream to count as the same
ONE_IN = 16  # of the spans are remembered, chosen by what they hold, so that copies are chosen alike

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(tokens: Ragged, epochs: np.ndarray | None = None) -> np.ndarray:
    """(N,) uint64. With `epochs`, the same row in another epoch has another hash: that it comes again is no news."""
    if len(tokens) == 0:
        return np.empty(0, dtype=np.uint64)
    counts = np.minimum(tokens.lengths, TOKENS_OF_A_ROW)
    which = np.repeat(np.arange(len(tokens)), counts)
    order = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    places = tokens.starts[which] + order * tokens.lengths[which] // np.maximum(1, counts[which])
    hashes, has_any = np.zeros(len(tokens), dtype=np.uint64), counts > 0
    with np.errstate(over="ignore"):
        parts = mixed(tokens.values[places].astype(np.uint64) * _FACTOR + order.astype(np.uint64))
        if len(parts):
            hashes[has_any] = np.add.reduceat(parts, (np.cumsum(counts) - counts)[has_any])
        hashes += tokens.lengths.astype(np.uint64) * _FACTOR
        if epochs is not None:
            hashes += epochs.astype(np.int64).view(np.uint64)
        return mixed(hashes)


def span_hashes(stream: np.ndarray) -> np.ndarray:
    """Of the chosen spans of a stream of tokens, in order: equal ones begin wherever the same tokens stand."""
    hashes = np.asarray(stream).astype(np.uint64)
    length, power = 1, _FACTOR
    with np.errstate(over="ignore"):
        hashes = mixed(hashes + np.uint64(1))
        while length < SPAN:  # a span is two halves
            if len(hashes) <= length:
                return np.empty(0, dtype=np.uint64)
            hashes = hashes[:-length] + power * hashes[length:]
            length, power = 2 * length, power * power
        hashes = mixed(hashes)
    return hashes[hashes % np.uint64(ONE_IN) == 0]


def mixed(state: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: every bit of the input moves about half of the bits of the answer."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
