"""Whether classes are equally common, and what a guess would score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

Label = str | float | tuple[str, ...]


def describe_labels(labels: Sequence[Label], tags: Counter[str] | None = None) -> dict[str, Any] | None:
    """Numbers as numbers; classes, also several a document or one a word, by their counts. None: there are none."""
    numbers = [label for label in labels if isinstance(label, float)]
    if numbers:
        values = np.array(numbers)
        spread = {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
        return {"kind": "number", **spread, "standard_deviation": float(values.std())}
    kind, counts = class_counts(labels, tags)
    if not counts:
        return None
    shares = np.array(list(counts.values()), dtype=np.float64)
    shares /= shares.sum()
    majority = max(counts, key=lambda name: counts[name])
    described = {
        "kind": kind,
        "counts": dict(counts.most_common()),
        "classes": len(counts),
        "majority": majority,
        "majority_share": float(shares.max()),
        # As many equally common classes would be as hard to guess.
        "effective_classes": float(np.exp(-(shares * np.log(shares)).sum())),
        "rarest": min(counts, key=lambda name: counts[name]),
    }
    if kind == "classes":
        described["without_a_class"] = sum(not label for label in labels)
    return described


def class_counts(labels: Sequence[Label], tags: Counter[str] | None = None) -> tuple[str, Counter[str]]:
    """What kind of classes there are, and how many of each; tags come already counted."""
    if tags:
        return "tags", tags
    several = any(isinstance(label, tuple) for label in labels)
    names = (name for label in labels for name in (label if isinstance(label, tuple) else (str(label),)))
    return ("classes" if several else "class"), Counter(names)
