"""Classes that a single token of the text gives away: the label, or something that is only known with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainbook.data.prepare.hashes import generator

PIECE = re.compile(r"\w+|[^\w\s]+")
FEWEST = 40  # texts, half of them held out
FEWEST_OTHERS = 5  # held-out texts that are not of the largest class
FEWEST_PIECES = 5  # of a text, on average: a shorter one is nothing but its answer
ENDS = (0, 1, 2, 3, -1, -2, -3, -4)  # places of a text where a column or a template would put it
MOST_PER_CLASS = 2  # tokens at a place that are still a mark of their class

Rule = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class BestRule:
    """Of a single token, made on one half of the texts and judged on the other."""

    accuracy: float
    guess: float  # the share of the largest class
    told: str  # the rule in words
    judged: int  # held-out texts
    is_a_mark: bool  # few tokens stand for each class: a label, and not words that go with it
    gives_away: bool  # far better than a guess. Where one class is nearly all there is, any rule is nearly always right


def best_rule(texts: Sequence[str], labels: Sequence[str], seed: int) -> BestRule | str:
    """Or why there is none."""
    each_once = dict(zip(texts, labels, strict=True))  # a copy in the other half is known
    rows = [(pieces(text), label) for text, label in each_once.items()]
    if np.mean([len(found) for found, _ in rows]) < FEWEST_PIECES:
        return f"texts have fewer than {FEWEST_PIECES} words on average: one of them may well be the answer"
    order = generator("check-halves", seed).permutation(len(rows))
    made, judged = ([rows[index] for index in half] for half in np.array_split(order, 2))
    if len({label for _, label in made}) < 2:
        return "half of the texts have one class only"
    guess = max(Counter(label for _, label in judged).values()) / len(judged)
    classes = len({label for _, label in made})
    best, told, is_a_mark = 0.0, "", False
    for place, (rule, said) in zip((*ENDS, None), rules(made), strict=True):
        score = sum(rule(found) == label for found, label in judged) / len(judged)
        if score > best:
            tokens = {found[place] for found, _ in made if place is not None and -len(found) <= place < len(found)}
            best, told, is_a_mark = score, said, len(tokens) <= MOST_PER_CLASS * classes
    gives_away = (1 - guess) * len(judged) >= FEWEST_OTHERS and best - guess >= (1 - guess) / 2
    return BestRule(best, guess, told, len(judged), is_a_mark, gives_away)


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
