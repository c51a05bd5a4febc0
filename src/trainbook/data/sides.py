"""The two sides of the data, training and validation, as documents: opened and divided, not yet tokenised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainbook.data.gopher import Verdicts
from trainbook.data.records import Document
from trainbook.data.sources import Source
from trainbook.data.split import Split, Survey, split, survey
from trainbook.errors import DataError

Documents = Callable[[], Iterator[Document]]  # each call reads them anew


@dataclass(frozen=True)
class Sides:
    train: Documents
    validation: Documents | None
    classes: set[str]  # of the training side
    seen: Survey
    seen_validation: Survey | None  # of a source of its own
    facts: dict[str, Any]  # the fields that were found, how many records were passed over, what a filter left out

    @property
    def surveys(self) -> list[Survey]:
        return [self.seen, self.seen_validation] if self.seen_validation else [self.seen]


def open_sides(
    source: Source,
    validation: Source | None,
    validation_ratio: float,
    symbols: Callable[[str], Iterable[str]] | None = None,
    gopher_filter: bool = False,
) -> Sides:
    """Read everything once, to know what is there and to decide where it goes. `symbols` says what of a text belongs to
    the alphabet, if anybody asks for one. A filter is for the training side alone: both are divided without it."""
    sides = _divided(source, validation, validation_ratio, symbols)
    return _filtered(sides, source) if gopher_filter else sides


def _divided(
    source: Source,
    validation: Source | None,
    validation_ratio: float,
    symbols: Callable[[str], Iterable[str]] | None,
) -> Sides:
    seen, facts = _surveyed(source, symbols)
    if validation is not None:
        seen_validation, its_facts = _surveyed(validation, symbols)
        facts |= {f"validation_{name}": fact for name, fact in its_facts.items()}
        classes = set().union(*seen.classes)
        return Sides(source.documents, validation.documents, classes, seen, seen_validation, facts)
    plan = split(seen, validation_ratio, may_cut=source.wanted.records == "text")
    if plan is None:
        raise DataError(
            f"data.validation_ratio: '{source.name}' cannot be divided: all of its records have the same text or "
            "group. Give a source of its own with data.validation, or set data.validation_ratio=0."
        )
    trained = seen.classes
    if plan.is_validation is not None:
        trained = [names for names, held_out in zip(seen.classes, plan.is_validation, strict=True) if not held_out]
    held_out = (lambda: _side(source, plan, 1)) if validation_ratio > 0 else None
    return Sides(lambda: _side(source, plan, 0), held_out, set().union(*trained), seen, None, facts)


def _filtered(sides: Sides, source: Source) -> Sides:
    if source.wanted.chat is not None:
        raise DataError(
            "data.gopher_filter: is for texts, but the task reads conversations, whose template repeats itself each "
            "turn. Set data.gopher_filter=false; data.repetition_filter is for conversations too."
        )
    verdicts = Verdicts.of(source.wanted.texts_of(document) for document in sides.train())
    if verdicts.is_left_out.all():
        raise DataError(
            f"data.gopher_filter: nothing is left to train on: each document of '{source.name}' breaks a rule "
            f"({', '.join(verdicts.rules)}). The rules are for prose from the web; set data.gopher_filter=false."
        )

    def train() -> Iterator[Document]:
        pairs = zip(sides.train(), verdicts.is_left_out, strict=True)
        return (document for document, is_left_out in pairs if not is_left_out)

    return replace(sides, train=train, facts={**sides.facts, "gopher": verdicts.facts})


def _surveyed(source: Source, symbols: Callable[[str], Iterable[str]] | None) -> tuple[Survey, dict[str, Any]]:
    texts_of = source.wanted.texts_of
    alphabet_of = None if symbols is None else lambda document: [symbols(text) for text in texts_of(document)]
    seen = survey(source.documents(), alphabet_of)
    if seen.num_documents == 0:
        passed = source.passed
        reason = f"all of its {passed.bad} records were skipped" if passed.bad else source.reader.nothing
        reason = f"all of its {passed.blank} records are blank" if passed.blank and source.fields else reason
        raise DataError(f"{source.knob}: '{source.name}' has no text: {reason}.")
    facts: dict[str, Any] = {}
    if source.fields is not None:
        facts["fields"] = {**source.fields.roles, **source.fields.extras}
        if source.fields.unused:
            facts["unused_fields"] = list(source.fields.unused)
        facts["skipped_records"] = source.passed.bad
        facts["blank_records"] = source.passed.blank
    return seen, facts


def _side(source: Source, plan: Split, side: int) -> Iterator[Document]:
    for index, document in enumerate(source.documents()):
        part = plan.parts(index, document)[side]
        if part is not None:
            yield part
