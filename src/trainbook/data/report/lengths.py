"""How long the documents are, how much of them a length keeps, and which length to take."""

from __future__ import annotations

from typing import Any

import numpy as np

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
