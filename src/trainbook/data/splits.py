"""The two sides of the data, training and validation, as documents: opened and divided, not yet tokenized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainbook.data.fields import FieldSpec
from trainbook.data.gopher import Verdicts
from trainbook.data.progress import shown
from trainbook.data.records import Document
from trainbook.data.sources import Source
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.source import Passed
from trainbook.data.split import Split, Survey, split, survey
from trainbook.data.tokenizers.cuts import BETWEEN_WORDS, in_pieces
from trainbook.errors import DataError

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
    plan = divided(seen, source, validation_ratio)
    held_out = (lambda: side_of(source, plan, 1)) if validation_ratio > 0 else None
    return Splits(lambda: side_of(source, plan, 0), held_out, facts, (seen,))


def divided(seen: Survey, source: Source, ratio: float) -> Split:
    plan = split(seen, ratio, may_cut=source.wanted.records == "text")
    if plan is None:
        alike = "all of its records have the same text or group"
        reason = "it has only one record" if seen.num_documents == 1 else alike
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
        if first := next(iter(passed.reasons.values()), None):
            reason += f", the first one because {first.places[0]}: {first.reason.rstrip('.')}"
        reason = f"all of its {passed.blank} records are blank" if passed.blank and source.fields else reason
        raise DataError(f"{source.knob}: '{source.name}' has no text: {reason}.")
    facts: dict[str, Any] = {}
    if source.fields is not None:
        facts["fields"] = {**source.fields.roles, **source.fields.extras}
        if source.fields.unused:
            facts["unused_fields"] = list(source.fields.unused)
        facts["skipped_records"] = passed.bad
        facts["blank_records"] = passed.blank
    return facts


def side_of(source: Source, plan: Split, side: int) -> Iterator[Document]:
    return (part for its_side, part in parts_of(source, plan) if its_side == side)


def parts_of(source: Source, plan: Split) -> Iterator[tuple[int, Document]]:
    """Each document, or each part of one that is cut, with its side: 0 is training, 1 validation."""
    if plan.is_validation is None:
        for document in source.documents():
            cut = document.cut(int(document.num_characters * (1 - plan.ratio)))
            yield from ((side, part) for side, part in enumerate(cut) if part is not None)
        return
    sides = plan.is_validation.astype(int).tolist()
    for index, document in enumerate(source.documents()):
        if index >= len(sides):
            raise DataError(f"{source.knob}: '{source.name}' {source.reader.changed}")
        yield sides[index], document
