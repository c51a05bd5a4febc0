"""One reading of a side of the data: what can be counted is counted on everything, the rest is for a fair sample."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainbook.data.records import Document
from trainbook.data.report.duplicates import ExactDuplicates
from trainbook.data.report.labels import Label
from trainbook.data.seeding import generator

REPLACEMENT = "\ufffd"  # what a decoder leaves where bytes were no text
# Control characters that no text needs: all but tab, line feed, form feed and carriage return.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
BATCH_CHARACTERS = 1 << 20

EncodeMany = Callable[[list[str]], list[np.ndarray]]


@dataclass
class Side:
    """The training or the validation part: totals of all documents, and a sample of them as tokens."""

    root: str = ""  # before the origin of a document, to show where it is
    num_documents: int = 0
    num_characters: int = 0
    num_bytes: int = 0
    replaced: list[str] = field(default_factory=list)  # origins of documents with U+FFFD
    control: list[str] = field(default_factory=list)  # and of those with control characters
    exact: ExactDuplicates = field(default_factory=ExactDuplicates)
    labels: list[Label] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    blank: int = 0  # records without text, which never become documents
    bad: int = 0  # records that could not be read
    documents: list[Document] = field(default_factory=list)  # the sample, in the order of the source
    tokens: list[np.ndarray] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)  # of pairs

    @property
    def is_sampled(self) -> bool:
        return len(self.documents) < self.num_documents

    @property
    def lengths(self) -> np.ndarray:
        return _lengths(self.tokens)

    @property
    def target_lengths(self) -> np.ndarray:
        return _lengths(self.targets)

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    @property
    def units(self) -> list[tuple[str, str]]:
        """Of each document of the sample, what stays on one side of a split: its group, or else its text."""
        return [
            ("text", document.text) if document.group is None else ("group", document.group)
            for document in self.documents
        ]

    def place(self, index: int) -> str:
        """Where a document of the sample is."""
        document = self.documents[index]
        line = f":{document.first_line}" if document.first_line > 1 else ""
        return f"{self.root}{document.origin}{line}"


def gather(
    documents: Iterable[Document],
    limit: int,
    seed: int = 0,
    root: str = "",
    advance: Callable[[int], None] = lambda documents: None,
    look_at: Callable[[Document, str], None] = lambda document, place: None,
) -> Side:
    """Count everything and keep at most `limit` documents: each with the same chance, whatever its place. `look_at` is
    shown each document and where it is."""
    side = Side(root)
    draw = generator("data-report-sample", seed)
    kept: list[tuple[int, Document]] = []
    for index, document in enumerate(documents):
        side.num_documents += 1
        side.num_characters += len(document.text)
        side.num_bytes += len(document.text.encode("utf-8", "surrogatepass"))
        side.exact.add(document.text, f"{root}{document.origin}")
        look_at(document, f"{root}{document.origin}")
        if REPLACEMENT in document.text:
            side.replaced.append(f"{root}{document.origin}")
        if _CONTROL.search(document.text):
            side.control.append(f"{root}{document.origin}")
        if document.label is not None:
            side.labels.append(document.label)
        side.tags.update(document.tags or ())
        if len(kept) < limit:
            kept.append((index, document))
        elif (place := int(draw.integers(index + 1))) < limit:
            kept[place] = (index, document)
        advance(1)
    side.documents = [document for _, document in sorted(kept, key=lambda pair: pair[0])]
    return side


def encode(side: Side, encode_many: EncodeMany, advance: Callable[[int], None] = lambda documents: None) -> None:
    """Tokens of the sample, and of what is to be produced from it."""
    side.tokens = _encoded(side.texts, encode_many, advance)
    targets = [document.target for document in side.documents if document.target is not None]
    side.targets = _encoded(targets, encode_many, lambda documents: None)


def _encoded(texts: Sequence[str], encode_many: EncodeMany, advance: Callable[[int], None]) -> list[np.ndarray]:
    """In batches, so that an interruption is heard and progress seen."""
    encoded: list[np.ndarray] = []
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            encoded += encode_many(batch)
            advance(len(batch))
            batch, size = [], 0
    if batch:
        encoded += encode_many(batch)
        advance(len(batch))
    return encoded


def _lengths(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts], dtype=np.int64)
