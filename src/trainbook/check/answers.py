"""Whether the answer stands in the input: as one token of a text, as a number, or as the target itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trainbook.check.result import NO_LABELS, CheckOutcome, passed, skipped
from trainbook.check.shares import by_share
from trainbook.check.subject import CheckSubject
from trainbook.data.report.giveaways import FEWEST, best_rule, pieces
from trainbook.data.sources.records import Document
from trainbook.loop.build import request_of

NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?")
JOINTS = tuple("_/|-#:")  # between a word and its tag
BY_CHANCE = 0.5  # of the answers stand in the input of another record: then that says nothing


def label_in_input(subject: CheckSubject) -> CheckOutcome:
    if request_of(subject.asked).records not in ("labelled", "tagged", "pairs"):
        return skipped(NO_LABELS)
    documents = list(subject.sample.sides["train"].documents)
    if len(documents) < FEWEST:
        return skipped(f"needs {FEWEST} training records, but there are {len(documents)}")
    first = documents[0]
    if isinstance(first.label, str):
        return _of_classes(documents, subject.config.training.seed)
    if isinstance(first.label, float):
        return _of_numbers(documents)
    if first.tags is not None:
        return _of_tags(documents)
    return _of_several(documents) if first.target is None else _of_targets(documents)


# Classes: the best rule of a single token, made on one half and judged on the other.


def _of_classes(documents: Sequence[Document], seed: int) -> CheckOutcome:
    found = best_rule([document.text for document in documents], [str(each.label) for each in documents], seed)
    if isinstance(found, str):
        return skipped(found)
    return by_share(
        "label_in_input",
        found.accuracy if found.gives_away else 0.0,
        f"the best rule of one token predicts {found.accuracy:.1%} of {found.judged:,} held-out labels (the largest "
        f"class is {found.guess:.1%}){f': {found.told}' if found.gives_away else ''}",
        "the label, or something that is only known with it, stands in the text",
        "Remove it from the text: a model will read it and learn nothing else.",
        accuracy=found.accuracy,
        guess=found.guess,
        rule=found.told,
    )


# Numbers, tags and targets.


def _of_numbers(documents: Sequence[Document]) -> CheckOutcome:
    found = [{_as_number(word) for word in NUMBER.findall(document.text)} for document in documents]
    labels = [float(document.label) for document in documents if isinstance(document.label, float)]
    return _standing(
        "number to predict",
        [label in numbers for label, numbers in zip(labels, found, strict=True)],
        [label in numbers for label, numbers in zip(labels, [*found[1:], found[0]], strict=True)],
    )


def _as_number(word: str) -> float:
    return float(word.replace(",", "."))


def _of_tags(documents: Sequence[Document]) -> CheckOutcome:
    """As in 'walks/VERB' or 'VERB_walks'."""
    pairs = [pair for each in documents for pair in zip(each.words or (), each.tags or (), strict=True)]

    def is_at_an_end(word: str, tag: str) -> bool:
        before, after = word.removesuffix(tag), word.removeprefix(tag)
        return (before != word and before[-1:] in JOINTS) or (after != word and after[:1] in JOINTS)

    # With a joint before or behind it, a tag is no part of the word by chance.
    return _standing("tag of a word", [is_at_an_end(word, tag) for word, tag in pairs], [False])


def _of_several(documents: Sequence[Document]) -> CheckOutcome:
    """All names of the labels, anywhere in the text."""
    known = [document for document in documents if document.label]
    if len(known) < FEWEST:
        return skipped(f"needs {FEWEST} training records with a label, but there are {len(known)}")
    found = [set(pieces(document.text)) for document in known]
    names = [{piece for name in document.classes for piece in pieces(name)} for document in known]
    own, others = (
        [its_names <= its_pieces for its_names, its_pieces in zip(given, found, strict=True)]
        for given in (names, [*names[1:], names[0]])
    )
    return _standing("names of the labels", own, others)


def _of_targets(documents: Sequence[Document]) -> CheckOutcome:
    """A target that is the whole input, or its beginning or end: not one that is quoted from the middle."""
    targets = [(document.target or "").strip() for document in documents]

    def is_at_an_end(document: Document, target: str) -> bool:
        text = document.text.strip()
        return bool(target) and (text.endswith(target) or text.startswith(target))

    shares = [
        [is_at_an_end(document, target) for document, target in zip(documents, given, strict=True)]
        for given in (targets, [*targets[1:], targets[0]])
    ]
    return _standing("target", *shares)


def _standing(what: str, own: Sequence[bool], others: Sequence[bool]) -> CheckOutcome:
    """How often an answer stands in its input, and how often that of the next record does."""
    share, by_chance = float(np.mean(own)), float(np.mean(others))
    told = f"{share:.1%} of the inputs contain the {what}, {by_chance:.1%} that of another record"
    if by_chance >= BY_CHANCE:
        return passed(told, share=share, by_chance=by_chance)
    return by_share(
        "label_in_input",
        share,
        told,
        f"the input contains the {what}: the wrong column, or a template with the answer in it",
        "Remove it from the input: a model will copy it and learn nothing else.",
        share=share,
        by_chance=by_chance,
    )
