"""A source: what the user named, read as the documents that a task needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trainbook.data.sources.fields import FIRST_RECORDS, TEXT_ONLY, Fields, FieldSpec, find_fields, make_document
from trainbook.data.sources.files import is_not_utf8, without_byte
from trainbook.data.sources.reader import Reader
from trainbook.data.sources.records import DataRecord, Document
from trainbook.errors import DataError

NEEDED = {
    "labelled": "a label for each text",
    "tagged": "a tag for each word",
    "pairs": "a target text for each text",
    "chat": "conversations",
}
MOST_REASONS, MOST_PLACES = 20, 10  # that are kept to be shown


@dataclass
class BadRecords:
    """Records that could not be read for the same reason, and where the first few of them are."""

    reason: str
    records: int = 0
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.places[0]}: {self.reason}"

    def add(self, place: str) -> None:
        self.records += 1
        if len(self.places) < MOST_PLACES:
            self.places.append(place)


@dataclass
class Passed:
    """Records of the last reading that gave no document."""

    bad: int = 0  # could not be read, and data.bad_lines=skip
    blank: int = 0  # without text
    reasons: dict[str, BadRecords] = field(default_factory=dict)  # of the bad ones, by what is wrong with them

    def clear(self) -> None:
        self.bad = self.blank = 0
        self.reasons.clear()

    def add_bad(self, message: str) -> None:
        """`message` is a place and what is wrong there."""
        self.bad += 1
        place, _, reason = message.partition(": ")
        reason = without_byte(reason)
        if reason in self.reasons or len(self.reasons) < MOST_REASONS:
            self.reasons.setdefault(reason, BadRecords(reason)).add(place)

    def add(self, other: Passed) -> None:
        """Those of another reading too."""
        self.bad, self.blank = self.bad + other.bad, self.blank + other.blank
        for reason, found in other.reasons.items():
            mine = self.reasons.setdefault(reason, BadRecords(reason))
            mine.records += found.records
            mine.places = [*mine.places, *found.places][:MOST_PLACES]


@dataclass(frozen=True)
class Source:
    knob: str  # "data.source" or "data.validation", for messages
    name: str  # as the user wrote it
    reader: Reader
    wanted: FieldSpec = TEXT_ONLY
    like: Source | None = None  # whose fields are taken where this one has them too: both sides are to mean the same
    passed: Passed = field(default_factory=Passed)
    whole: Source | None = None  # what this is a part of: its fields are those of the whole

    def part(self, reader: Reader) -> Source:
        return Source(self.knob, self.name, reader, self.wanted, whole=self.whole or self)

    @property
    def root(self) -> str:
        return self.reader.root

    def fingerprint(self) -> dict[str, Any]:
        """What determines the documents. Fields do so only where there are some."""
        facts = self.reader.fingerprint()
        return {**facts, "wanted": self.wanted.facts()} if self.reader.has_fields else facts

    def documents(self) -> Iterator[Document]:
        """Every document that has text, in the order of the source. Empty and blank ones are left out."""
        self.passed.clear()
        fields = self.fields
        for record in self.reader.records(self._complain):
            if record.first_line and self.wanted.records != "text":
                raise self.only_text(record)
            try:
                document = record.document or make_document(record, fields, self.wanted)
            except DataError as error:
                self._complain(f"{self.root}{record.origin}: {error}")
                continue
            if document.is_blank:
                self.passed.blank += 1
                continue
            yield document

    def reasons(self) -> dict[str, BadRecords]:
        """What is wrong with the records before the first document, read again; of a survey, only numbers are kept."""
        again = replace(self, passed=Passed())
        next(again.documents(), None)
        return again.passed.reasons

    @cached_property
    def fields(self) -> Fields | None:
        """Which field has what, found in the first records; None where there are no fields."""
        if self.whole is not None:
            return self.whole.fields
        first = self.reader.first(FIRST_RECORDS) if self.reader.has_fields else []
        if not first:
            return None
        known = self.like.fields.roles if self.like and self.like.fields else {}
        return find_fields(first, self.wanted, f"{self.root}{first[0].origin}", known)

    def _complain(self, message: str) -> None:
        if self.wanted.bad_lines == "error":
            raise bad_record(message)
        self.passed.add_bad(message)

    def only_text(self, record: DataRecord) -> DataError:
        """Plain text, where a task needs records."""
        is_tagging = self.wanted.records == "tagged"
        hint = " If each line has a word and its tag, give the file a name that ends in .conll."
        return DataError(
            f"{self.knob}: '{self.root}{record.origin}' is plain text, but the task needs "
            f"{NEEDED[self.wanted.records]}: records of a {'CoNLL, ' if is_tagging else ''}JSONL, CSV, TSV or Parquet "
            f"file, a Hugging Face dataset or a Python function.{hint if is_tagging else ''}"
        )


def bad_record(message: str) -> DataError:
    if is_not_utf8(message):
        return DataError(message)
    return DataError(f"{message} To skip such records, set data.bad_lines=skip.")
