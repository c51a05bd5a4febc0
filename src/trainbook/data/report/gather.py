"""One reading of a side of the data: what can be counted is counted on everything, the rest is for a fair sample."""

from __future__ import annotations

import hashlib
import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainbook.data.prepare.hashes import generator
from trainbook.data.report.duplicates import ExactDuplicates
from trainbook.data.report.kept import EXCERPTED, Excerpt, KeptSample, KeptView, ReadDocument
from trainbook.data.report.labels import Label
from trainbook.data.report.lengths import Encoded
from trainbook.data.sources.records import Document
from trainbook.data.sources.source import BadRecords

REPLACEMENT = "\ufffd"  # what a decoder leaves where bytes were no text
# Control characters that no text needs: all but tab, line feed, form feed and carriage return.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
MAX_EXAMPLES = 10
LONGEST_WORD = 1000  # characters


@dataclass
class Places:
    """How many documents have something, and where the first few of them are."""

    documents: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.documents += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(place)


@dataclass
class SplitReport:
    """The training or the validation part: totals of all documents, and a sample of them."""

    sample: KeptSample
    num_documents: int = 0
    num_characters: int = 0
    num_bytes: int = 0
    replaced: Places = field(default_factory=Places)  # documents with U+FFFD
    control: Places = field(default_factory=Places)  # and those with control characters
    exact: ExactDuplicates = field(default_factory=ExactDuplicates)  # by their texts
    measured: ExactDuplicates = field(default_factory=ExactDuplicates)  # those with a number: by text and number
    labels: list[Label] = field(default_factory=list)
    label_units: array[int] = field(default_factory=lambda: array("q"))  # of each label: which of them stay together
    lowest: tuple[float, str] | None = None  # of labels that are numbers, with its place
    highest: tuple[float, str] | None = None
    tags: Counter[str] = field(default_factory=Counter)
    carriage_returns: int = 0  # characters, as at the end of each line of a text file of Windows
    blank: int = 0  # records without text, which never become documents
    bad: int = 0  # records that could not be read
    bad_reasons: list[BadRecords] = field(default_factory=list)  # why, and where
    encoded: Encoded = field(default_factory=Encoded)

    def note_number(self, label: Label, place: str) -> None:
        """Where the lowest and the highest number are."""
        if isinstance(label, float):
            self.lowest = min(self.lowest or (label, place), (label, place), key=lambda found: found[0])
            self.highest = max(self.highest or (label, place), (label, place), key=lambda found: found[0])

    def place_of(self, number: float) -> str:
        """Of the lowest or the highest number."""
        return next((place for each, place in filter(None, (self.lowest, self.highest)) if each == number), "")

    @property
    def is_sampled(self) -> bool:
        return len(self.sample) < self.num_documents

    @property
    def copies(self) -> ExactDuplicates:
        """A text with another number is no copy: it was measured twice."""
        return self.measured if self.measured.num_texts else self.exact

    @property
    def documents(self) -> Sequence[Document]:
        return KeptView([self.sample], lambda seen: seen.document)

    @property
    def texts(self) -> Sequence[str]:
        """Of the sample; of very long documents an excerpt."""
        return KeptView([self.sample], lambda seen: seen.text)

    @property
    def words_of_all(self) -> Iterator[str]:
        """Texts that have all words of the sample, also those of very long documents."""
        for seen in self.sample:
            yield from [seen.text] if seen.excerpt is None else _between_words(seen.document.chunks())

    @property
    def lengths(self) -> np.ndarray:
        return np.array(self.encoded.lengths, dtype=np.int64)

    @property
    def target_lengths(self) -> np.ndarray:
        return np.array(self.encoded.target_lengths, dtype=np.int64)

    @property
    def places(self) -> list[str]:
        """Where each document of the sample is."""
        return [row.place for row in self.sample.rows]


def gather(
    documents: Iterable[Document],
    limit: int,
    seed: int = 0,
    root: str = "",
    advance: Callable[[int], None] = lambda num_bytes: None,
    look_at: Callable[[Document, str], None] = lambda document, place: None,
) -> SplitReport:
    """Count everything and keep at most `limit` documents. `look_at` is shown each document and where it is, and
    `advance` is told how many bytes of text were read."""
    side = SplitReport(KeptSample(limit, generator("data-report-sample", seed)))
    labels: dict[Label, Label] = {}
    for index, document in enumerate(documents):
        place = f"{root}{document.origin}"
        look_at(document, place)
        seen = _read(document, side, place, advance)
        line = f":{document.first_line}" if document.first_line > 1 else ""
        side.sample.offer(index, seen, f"{place}{line}")
        if document.label is not None:
            side.labels.append(labels.setdefault(document.label, document.label))  # one object for all that are equal
            side.label_units.append(hash(seen.unit))
            side.note_number(document.label, f"{place}{line}")
        side.tags.update(document.tags or ())
    side.sample.close()
    return side


def _read(document: Document, side: SplitReport, place: str, advance: Callable[[int], None]) -> ReadDocument:
    """Count one document, chunk by chunk."""
    excerpt = Excerpt(document.num_characters) if document.num_characters > EXCERPTED else None
    digest = StrippedDigest()
    num_characters = num_bytes = num_returns = 0
    replaced = control = False
    for chunk in document.chunks():
        content = chunk.encode("utf-8", "surrogatepass")
        num_characters, num_bytes = num_characters + len(chunk), num_bytes + len(content)
        digest.add(chunk)
        num_returns += chunk.count("\r")
        replaced = replaced or REPLACEMENT in chunk
        control = control or _CONTROL.search(chunk) is not None
        if excerpt is not None:
            excerpt.add(chunk)
        advance(len(content))
    side.num_documents += 1
    side.num_characters += num_characters
    side.num_bytes += num_bytes
    side.carriage_returns += num_returns
    side.exact.add(digest.value, place)
    if isinstance(document.label, float):
        both = digest.value + struct.pack("<d", document.label)
        side.measured.add(hashlib.blake2b(both, digest_size=8).digest(), place)
    if replaced:
        side.replaced.add(place)
    if control:
        side.control.add(place)
    unit = ("text", digest.value) if document.group is None else ("group", document.group)
    return ReadDocument(document, None if excerpt is None else excerpt.text, unit, num_characters, num_bytes)


def _between_words(chunks: Iterable[str]) -> Iterator[str]:
    """A text in pieces that cut no word, unless that is very long."""
    waiting = ""
    for chunk in chunks:
        waiting += chunk
        end = len(waiting)
        while 0 < end > len(waiting) - LONGEST_WORD and waiting[end - 1].isalnum():
            end -= 1
        yield waiting[:end]
        waiting = waiting[end:]
    yield waiting


class StrippedDigest:
    """16 bytes that stand for a text without white space around it: a line break at the end makes no other document."""

    def __init__(self) -> None:
        self._all = hashlib.sha256()
        self._up_to_here = self._all.copy()  # without the white space at the end
        self._has_begun = False

    def add(self, chunk: str) -> None:
        if not self._has_begun:
            chunk = chunk.lstrip()
            self._has_begun = bool(chunk)
        if body := chunk.rstrip():
            self._all.update(body.encode("utf-8", "surrogatepass"))
            self._up_to_here = self._all.copy()
        if len(body) < len(chunk):
            self._all.update(chunk[len(body) :].encode("utf-8", "surrogatepass"))

    @property
    def value(self) -> bytes:
        return self._up_to_here.digest()[:16]
