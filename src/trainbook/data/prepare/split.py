"""Which documents are held out for validation, and the training and validation split that follows."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainbook.data.prepare.filters import Verdicts
from trainbook.data.prepare.workers import shown
from trainbook.data.sources import Source
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.records import Document
from trainbook.data.sources.source import Passed
from trainbook.data.tokenizers.cuts import BETWEEN_WORDS, in_pieces
from trainbook.errors import DataError

MIN_DOCUMENTS = 10  # fewer texts than this are cut, each at the same share of its length
NO_GROUP = bytes(16)
TOLD_BYTES = 1 << 20
# Saved with each checkpoint. 1: documents were held out by file name and line; 2: by content; 3: groups that are linked
# by their texts are no likelier to be held out than others.
SPLIT_VERSION = 3


@dataclass(frozen=True)
class Survey:
    """What a first reading of a source tells without keeping its text."""

    digests: np.ndarray  # (N, 2) uint64: of each document's text
    groups: np.ndarray  # (N, 2) uint64: of the group that it says it belongs to; 0, 0 where it says nothing
    class_sets: tuple[tuple[str, ...], ...]  # that occur
    class_numbers: np.ndarray  # (N,): which of them are the classes of each document or of its words
    num_characters: int
    alphabet: frozenset[str]

    @property
    def num_documents(self) -> int:
        return len(self.digests)

    def classes(self, among: np.ndarray | None = None) -> set[str]:
        """Of all documents, or of those with a flag."""
        numbers = np.unique(self.class_numbers if among is None else self.class_numbers[among])
        return set().union(*(self.class_sets[number] for number in numbers))

    def num_also_in(self, other: Survey) -> int:
        """Documents with a text that the other has too."""
        return int(np.isin(_one_number(self.digests), _one_number(other.digests)).sum())


@dataclass(frozen=True)
class Split:
    """Parts of each document. A document goes to one side, or, where there are few, is cut in two."""

    ratio: float
    is_validation: np.ndarray | None  # one flag a document; None: every document is cut

    def parts(self, index: int, document: Document) -> tuple[Document | None, Document | None]:
        """The training and the validation part of the document with this index; None for an empty part."""
        if self.is_validation is not None:
            return (None, document) if self.is_validation[index] else (document, None)
        return document.cut(int(document.num_characters * (1 - self.ratio)))


def survey(
    documents: Iterable[Document],
    alphabet_of: Callable[[Document], Iterable[Iterable[str]]] | None = None,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> Survey:
    """`alphabet_of` gives what of a document counts for the alphabet, text by text; None: nobody asks for it. `advance`
    is told how many bytes of text were read."""
    digests, groups = bytearray(), bytearray()
    class_sets: dict[tuple[str, ...], int] = {}
    class_numbers = array("q")
    alphabet: set[str] = set()
    num_characters = num_bytes = 0

    def count(more: int) -> None:
        """Told in turn once for many short documents."""
        nonlocal num_bytes
        num_bytes += more
        if num_bytes >= TOLD_BYTES:
            advance(num_bytes)
            num_bytes = 0

    for document in documents:
        digests += document.digest(count)
        groups += NO_GROUP if document.group is None else text_digest(document.group)
        class_numbers.append(class_sets.setdefault(document.classes, len(class_sets)))
        num_characters += document.num_characters + len(document.target or "")
        if alphabet_of is not None:
            for symbols in alphabet_of(document):
                alphabet.update(symbols)
    advance(num_bytes)
    return Survey(
        np.frombuffer(digests, dtype="<u8").reshape(-1, 2),
        np.frombuffer(groups, dtype="<u8").reshape(-1, 2),
        tuple(class_sets),
        np.array(class_numbers, dtype=np.int64),
        num_characters,
        frozenset(alphabet),
    )


def split(seen: Survey, ratio: float, may_cut: bool = True) -> Split | None:
    """Documents of the same group stay together, and those with the same text unless that ties too many groups
    together. None: they cannot be divided."""
    if ratio == 0:
        return Split(ratio, np.zeros(seen.num_documents, dtype=bool))
    groups = _group_numbers(seen, ratio)
    num_groups = int(groups.max(initial=-1)) + 1
    if num_groups < 2 or (may_cut and seen.num_documents < MIN_DOCUMENTS):
        return Split(ratio, None) if may_cut else None
    shares = _shares(seen, groups, num_groups)
    in_validation = shares < ratio
    # Chance may leave a side without documents: it then gets the group that was nearest to it.
    if not in_validation.any():
        in_validation[np.argmin(shares)] = True
    if in_validation.all():
        in_validation[np.argmax(shares)] = False
    in_validation &= ~_with_classes_of_their_own(seen, groups, in_validation)
    return Split(ratio, in_validation[groups])


def _shares(seen: Survey, groups: np.ndarray, num_groups: int) -> np.ndarray:
    """A number in [0, 1) for each group of documents that stay together.

    It is the hash of their group's name, so that a record more in a group does not move the group; of their text where
    they have no group. Where several are linked, one of them counts, whatever the order. The other half of its hash
    chooses it: the least share of many would nearly always be below the ratio.
    """
    has_group = seen.groups.any(axis=1)
    is_named = np.zeros(num_groups, dtype=bool)
    is_named[groups[has_group]] = True
    digests = np.where(has_group.reshape(-1, 1), seen.groups, seen.digests)
    counting = np.flatnonzero(has_group | ~is_named[groups])
    counting = counting[np.argsort(digests[counting, 1], kind="stable")]
    _, first = np.unique(groups[counting], return_index=True)
    return _share(digests[counting[first]])


def _with_classes_of_their_own(seen: Survey, groups: np.ndarray, in_validation: np.ndarray) -> np.ndarray:
    """Groups with a class that training would not have: they are given to training, unless all would be."""
    trained = seen.classes(~in_validation[groups])
    lacking = np.array([not trained.issuperset(names) for names in seen.class_sets], dtype=bool)
    found = np.zeros_like(in_validation)
    found[groups[lacking[seen.class_numbers]]] = True
    found &= in_validation
    return np.zeros_like(found) if (found == in_validation).all() else found


def _group_numbers(seen: Survey, ratio: float) -> np.ndarray:
    """One number for all documents that are linked by their text or their group, be it over others.

    A text as common as "good" may link most groups. Where linked groups together are more than the smaller side is
    to have, each of them is on its own, and a text may then be on both sides.
    """
    _, texts = np.unique(_one_number(seen.digests), return_inverse=True)
    has_group = seen.groups.any(axis=1)
    if not has_group.any():
        return texts
    _, groups = np.unique(_one_number(seen.groups[has_group]), return_inverse=True)
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    num_texts = int(texts.max()) + 1
    size = num_texts + int(groups.max()) + 1
    links = np.ones(len(groups), dtype=bool), (texts[has_group], num_texts + groups)
    _, linked = connected_components(sparse.coo_array(links, shape=(size, size)), directed=False)
    numbers = linked[texts]
    too_large = np.bincount(numbers) > min(ratio, 1 - ratio) * seen.num_documents
    is_alone = too_large[numbers[has_group]]
    numbers[np.flatnonzero(has_group)[is_alone]] = size + groups[is_alone]
    return np.unique(numbers, return_inverse=True)[1]


def _one_number(digests: np.ndarray) -> np.ndarray:
    """16 bytes as one value that can be sorted and compared."""
    return np.ascontiguousarray(digests).view("V16").reshape(-1)


def text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()[:16]


def _share(digests: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each hash."""
    return (digests[:, 0] >> np.uint64(16)).astype(np.float64) / 2**48


# The two sides of the data, training and validation, as documents: opened and divided, not yet tokenized.


Documents = Callable[[], Iterator[Document]]  # each call reads them anew
JUDGED_BYTES = 1 << 25  # of a document
WORDS_CHARACTERS = 1 << 20  # of a long document that are looked at together
Symbols = Callable[[str], Iterable[str]]  # what of a text belongs to an alphabet


@dataclass(frozen=True)
class Splits:
    train: Documents
    validation: Documents | None
    facts: dict[str, Any]  # the fields that were found, how many records were passed over, what a filter left out
    surveys: tuple[Survey, ...] = ()  # of the source, and of a validation source of its own


def open_splits(
    source: Source,
    validation: Source | None,
    validation_ratio: float,
    gopher_filter: bool = False,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> Splits:
    """Read everything once, to know what is there and to decide where it goes. A filter is for the training side alone:
    both are divided without it."""
    sides = _divided(source, validation, validation_ratio, advance)
    return _filtered(sides, source) if gopher_filter else sides


def _divided(
    source: Source, validation: Source | None, validation_ratio: float, advance: Callable[[int], None]
) -> Splits:
    seen = survey(source.documents(), advance=advance)
    facts = facts_of(source, seen.num_documents, source.passed)
    if validation is not None:
        seen_validation = survey(validation.documents(), advance=advance)
        its_facts = facts_of(validation, seen_validation.num_documents, validation.passed)
        facts |= {f"validation_{name}": fact for name, fact in its_facts.items()}
        return Splits(source.documents, validation.documents, facts, (seen, seen_validation))
    plan = divided(seen, source, validation_ratio, source.passed)
    held_out = (lambda: side_of(source, plan, 1)) if validation_ratio > 0 else None
    return Splits(lambda: side_of(source, plan, 0), held_out, facts, (seen,))


def divided(seen: Survey, source: Source, ratio: float, passed: Passed) -> Split:
    plan = split(seen, ratio, may_cut=source.wanted.records == "text")
    if plan is None:
        readable = " that can be read" if passed.bad else ""
        alike = f"all of its records{readable} have the same text or group"
        reason = f"it has only one record{readable}" if seen.num_documents == 1 else alike
        if passed.bad:
            reason += f" ({passed.bad:,} {'was' if passed.bad == 1 else 'were'} skipped{_first_bad(source, passed)})"
        raise DataError(
            f"data.validation_ratio: '{source.name}' cannot be split: {reason}. "
            "Set data.validation to a separate source, or set data.validation_ratio=0."
        )
    return plan


def _filtered(sides: Splits, source: Source) -> Splits:
    must_be_for_texts(source)
    judged = judged_texts(source)
    verdicts = Verdicts.of(judged(document) for document in sides.train())
    must_leave_something(source, verdicts.facts)

    def train() -> Iterator[Document]:
        pairs = zip(sides.train(), verdicts.is_left_out, strict=True)
        return (document for document, is_left_out in pairs if not is_left_out)

    return replace(sides, train=train, facts={**sides.facts, "gopher": verdicts.facts})


def must_be_for_texts(source: Source) -> None:
    if source.wanted.chat is not None:
        raise DataError(
            "data.gopher_filter: works on plain text, but the task reads conversations, whose template repeats every "
            "turn. Set data.gopher_filter=false; data.repetition_filter works on conversations too."
        )


def judged_texts(source: Source) -> Callable[[Document], list[str]]:
    """The texts of a document that the filter judges. It counts every word, which takes memory for all of them."""

    def texts_of(document: Document) -> list[str]:
        if isinstance(document, LongDocument) and document.num_bytes > JUDGED_BYTES:
            raise DataError(
                f"data.gopher_filter: '{source.root}{document.origin}' is plain text, and so one document, of "
                f"{shown(document.num_bytes)}: too long to be judged as a whole (at most {shown(JUDGED_BYTES)}). "
                "Split it into documents, such as the lines of a JSONL file, or set data.gopher_filter=false."
            )
        return source.wanted.texts_of(document)

    return texts_of


def must_leave_something(source: Source, gopher: dict[str, Any]) -> None:
    if gopher["left_out"] == gopher["of"]:
        raise DataError(
            f"data.gopher_filter: nothing is left to train on: each document of '{source.name}' breaks a rule "
            f"({', '.join(gopher['rules'])}). The rules are made for web text: set data.gopher_filter=false."
        )


def alphabet_of_texts(source: Source, symbols: Symbols | None) -> Callable[[Document], Iterable[Iterable[str]]] | None:
    if symbols is None:
        return None
    return lambda document: (symbols(text) for text in pieces_for(symbols, document, source.wanted))


def characters(text: str) -> Iterable[str]:
    return text


def pieces_for(symbols: Symbols, document: Document, wanted: FieldSpec) -> Iterable[str]:
    """The texts of a document, a long one in pieces that cut no symbol."""
    if isinstance(document, LongDocument):
        return (
            document.chunks()
            if symbols is characters
            else in_pieces(document.chunks(), BETWEEN_WORDS, WORDS_CHARACTERS)
        )
    return wanted.texts_of(document)


def facts_of(source: Source, num_documents: int, passed: Passed) -> dict[str, Any]:
    """What is said of a source that was read; one without any text is refused."""
    if num_documents == 0:
        reason = f"all of its {passed.bad} records were skipped" if passed.bad else source.reader.nothing
        reason += _first_bad(source, passed)
        reason = f"all of its {passed.blank} records are blank" if passed.blank and source.fields else reason
        raise DataError(f"{source.knob}: '{source.name}' has no text: {reason}.")
    facts: dict[str, Any] = {}
    if source.fields is not None:
        facts["fields"] = {**source.fields.roles, **source.fields.extras}
        if source.fields.unused:
            facts["unused_fields"] = list(source.fields.unused)
        facts["skipped_records"] = passed.bad
        facts["blank_records"] = passed.blank
        if passed.bad:
            facts["skipped_of"] = num_documents + passed.bad + passed.blank
        if passed.reasons:
            facts["skipped_such_as"] = str(max(passed.reasons.values(), key=lambda each: each.records))
    return facts


def _first_bad(source: Source, passed: Passed) -> str:
    """What is wrong with the first record that was skipped. Of many files, only their number is kept."""
    reasons = passed.reasons or (source.reasons() if passed.bad else {})
    first = next(iter(reasons.values()), None)
    return "" if first is None else f", the first one because {first.places[0]}: {first.reason.rstrip('.')}"


def side_of(source: Source, plan: Split, side: int) -> Iterator[Document]:
    return (part for its_side, part in parts_of(source, plan) if its_side == side)


def parts_of(source: Source, plan: Split) -> Iterator[tuple[int, Document]]:
    """Each document, or each part of one that is cut, with its side: 0 is training, 1 validation."""
    for index, document in enumerate(source.documents()):
        if plan.is_validation is not None and index >= len(plan.is_validation):
            raise DataError(f"{source.knob}: '{source.name}' {source.reader.changed}")
        yield from ((side, part) for side, part in enumerate(plan.parts(index, document)) if part is not None)
