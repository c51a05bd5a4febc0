"""Whether classes are equally common, and what a guess would score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.data.prepare.split import Survey, text_digest
from trainbook.data.sources.records import Document

Label = str | float | tuple[str, ...]


def describe_labels(
    labels: Sequence[Label], tags: Counter[str] | None = None, place_of: Callable[[float], str] | None = None
) -> dict[str, Any] | None:
    """Numbers as numbers; classes, also several a document or one a word, by their counts. None: there are none.
    `place_of` the lowest and the highest number: its file and line."""
    numbers = [label for label in labels if isinstance(label, float)]
    if numbers:
        values = np.array(numbers)
        spread = {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
        places = {} if place_of is None else {f"{name}_at": place_of(spread[name]) for name in ("min", "max")}
        return {"kind": "number", **spread, "standard_deviation": float(values.std()), **places}
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


# Equal texts with different labels: at least one of the labels is wrong, or the text alone does not decide it.


MAX_EXAMPLES = 10


@dataclass
class Contradictions:
    """Of all documents, both sides together. Classes only: equal texts may well have several scores, or targets."""

    texts: int = 0
    documents: int = 0  # with one of these texts
    of: int = 0  # all documents with a label
    digests: frozenset[bytes] = frozenset()  # of some of the texts, to find examples by
    _first: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def look_at(self, document: Document, place: str) -> None:
        """Told of each document in turn, it keeps examples."""
        if not self.digests or (digest := text_digest(document.text)) not in self.digests:
            return
        label = ", ".join(document.classes)
        before, its_label = self._first.setdefault(digest, (place, label))
        known = {example["one"] for example in self.examples}
        if its_label != label and before not in known and len(self.examples) < MAX_EXAMPLES:
            self.examples.append({"one": before, "label": its_label, "other": place, "other_label": label})

    @property
    def facts(self) -> dict[str, Any]:
        return {"texts": self.texts, "documents": self.documents, "of": self.of, "examples": self.examples}


def contradictions(surveys: Sequence[Survey]) -> Contradictions | None:
    """None where there are no classes."""
    numbers: dict[tuple[str, ...], int] = {}
    labels = []
    for seen in surveys:
        its = np.array([numbers.setdefault(names, len(numbers)) for names in seen.class_sets], dtype=np.int64)
        labels.append(its[seen.class_numbers])
    if not any(numbers):
        return None
    digests, of_each = np.concatenate([seen.digests for seen in surveys]), np.concatenate(labels)
    order = np.lexsort((of_each, digests[:, 1], digests[:, 0]))
    digests, of_each = digests[order], of_each[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (digests[1:] != digests[:-1]).any(axis=1)
    text = np.cumsum(begins) - 1
    differs = np.zeros(text[-1] + 1 if len(text) else 0, dtype=bool)
    differs[text[1:][~begins[1:] & (of_each[1:] != of_each[:-1])]] = True
    some = digests[begins][differs][: 10 * MAX_EXAMPLES]
    return Contradictions(
        int(differs.sum()), int(differs[text].sum()), len(order), frozenset(row.tobytes() for row in some)
    )
