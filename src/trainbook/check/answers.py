"""Whether the answer stands in the input: as one token of a text, as a number, or as the target itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from trainbook.check.result import NO_LABELS, CheckOutcome, passed, skipped
from trainbook.check.shares import by_share
from trainbook.check.subject import CheckSubject
from trainbook.data.prepare.hashes import generator
from trainbook.data.sources.records import Document
from trainbook.loop.build import request_of

PIECE = re.compile(r"\w+|[^\w\s]+")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?")
FEWEST = 40  # records, half of them held out
FEWEST_OTHERS = 5  # held-out records that are not of the largest class
FEWEST_PIECES = 5  # of a text, on average: a shorter one is nothing but its answer
ENDS = (0, 1, 2, 3, -1, -2, -3, -4)  # places of a text where a column or a template would put it
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


Rule = Callable[[Sequence[str]], str]


def _of_classes(documents: Sequence[Document], seed: int) -> CheckOutcome:
    each_once = {document.text: str(document.label) for document in documents}  # a copy in the other half is known
    rows = [(pieces(text), label) for text, label in each_once.items()]
    if np.mean([len(found) for found, _ in rows]) < FEWEST_PIECES:
        return skipped(f"texts have fewer than {FEWEST_PIECES} words on average: one of them may well be the answer")
    order = generator("check-halves", seed).permutation(len(rows))
    made, judged = ([rows[index] for index in half] for half in np.array_split(order, 2))
    if len({label for _, label in made}) < 2:
        return skipped("half of the texts have one class only")
    guess = max(Counter(label for _, label in judged).values()) / len(judged)
    best, what = 0.0, ""
    for rule, said in rules(made):
        score = sum(rule(found) == label for found, label in judged) / len(judged)
        if score > best:
            best, what = score, said
    # Where one class is nearly all there is, any rule is nearly always right.
    others = (1 - guess) * len(judged)
    share = best if others >= FEWEST_OTHERS and best - guess >= (1 - guess) / 2 else 0.0
    return by_share(
        "label_in_input",
        share,
        f"the best rule of one token predicts {best:.1%} of {len(judged):,} held-out labels (the largest class is "
        f"{guess:.1%}){f': {what}' if share else ''}",
        "the label, or something that is only known with it, stands in the text",
        "Remove it from the text: a model will read it and learn nothing else.",
        accuracy=best,
        guess=guess,
        rule=what,
    )


def pieces(text: str) -> list[str]:
    """Words and punctuation, and what is written without a blank, such as 'label=1' or '[C2]'."""
    lowered = text.lower()
    return PIECE.findall(lowered) + [word for word in lowered.split() if not word.isalnum()]


def rules(rows: Sequence[tuple[list[str], str]]) -> list[tuple[Rule, str]]:
    """The class by the token at a place, and by which token of a class is anywhere in the text."""
    usual = Counter(label for _, label in rows).most_common(1)[0][0]
    found = [_at_place(rows, place, usual) for place in ENDS]
    return [*found, _by_presence(rows, usual)]


def _at_place(rows: Sequence[tuple[list[str], str]], place: int, usual: str) -> tuple[Rule, str]:
    def token(given: Sequence[str]) -> str:
        return given[place] if -len(given) <= place < len(given) else ""

    counts: dict[str, Counter[str]] = {}
    for given, label in rows:
        counts.setdefault(token(given), Counter())[label] += 1
    answer = {name: labels.most_common(1)[0][0] for name, labels in counts.items()}
    most = sorted(counts, key=lambda name: -counts[name].total())[:2]
    said = " and ".join(f"'{name}' means '{answer[name]}'" for name in most)
    where = f"token {place + 1}" if place >= 0 else f"token {-place} from the end"
    return lambda given: answer.get(token(given), usual), f"at {where}, {said}"


def _by_presence(rows: Sequence[tuple[list[str], str]], usual: str) -> tuple[Rule, str]:
    """Of each class the token with the best F1; a text with none of them is of the class that has the worst."""
    sizes = Counter(label for _, label in rows)
    having: dict[str, Counter[str]] = {}
    for given, label in rows:
        for token in set(given):
            having.setdefault(token, Counter())[label] += 1
    best: dict[str, tuple[float, str]] = {}
    for token, labels in having.items():
        total = labels.total()
        for label, count in labels.items():
            best[label] = max(best.get(label, (0.0, "")), (2 * count / (total + sizes[label]), token))
    by_quality = sorted(best, key=lambda label: -best[label][0])
    last = by_quality[-1] if by_quality else usual
    tokens = {best[label][1]: label for label in reversed(by_quality[:-1])}

    def rule(given: Sequence[str]) -> str:
        seen = set(given)
        return next((label for token, label in reversed(tokens.items()) if token in seen), last)

    return rule, " and ".join(f"'{best[label][1]}' means '{label}'" for label in by_quality[:2][: len(tokens)])


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
