"""Data with real structure, made up: a mixture of texts for a GPT, texts with a topic for a BERT, words to turn round.

Only `random` is used, which gives the same numbers in every version of Python. File names tell nothing of what was done
to the data: what the doctor reads of a run must not have the answer in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

Records = list[dict[str, str]]

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
TEXT_CHARACTERS, VALIDATION_CHARACTERS = 400_000, 40_000
NUM_TEXTS, NUM_VALIDATION_TEXTS, NUM_TOPICS = 8_000, 600, 6
SYMBOLS = [chr(0x4E00 + number) for number in range(80)]  # a word each, so that short rows hold whole texts
LABEL_NOISE = 0.04


class Words:
    """A vocabulary of so many invented words; some are used much more often than others."""

    def __init__(self, draw: random.Random, count: int) -> None:
        syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
        found = {"".join(draw.choice(syllables) for _ in range(draw.randint(1, 3))) for _ in range(2 * count)}
        self.words = sorted(found)[:count]
        draw.shuffle(self.words)
        self.weights = [1 / (rank + 2) for rank in range(len(self.words))]

    def draw(self, draw: random.Random) -> str:
        return draw.choices(self.words, self.weights)[0]


# Paragraphs: three kinds of text that have little in common


def prose(draw: random.Random, nouns: Words, verbs: Words) -> str:
    def thing() -> str:
        return f"{draw.choice(('the', 'a', 'every'))} {nouns.draw(draw)}"

    sentences = []
    for _ in range(draw.randint(2, 5)):
        sentence = f"{thing()} {verbs.draw(draw)}s {thing()}"
        if draw.random() < 0.4:
            sentence += f" and {verbs.draw(draw)}s {thing()}"
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return " ".join(sentences)


def code(draw: random.Random, nouns: Words, verbs: Words) -> str:
    names = [nouns.draw(draw) for _ in range(3)]
    lines = [f"def {verbs.draw(draw)}_{names[0]}({names[1]}, {names[2]}):"]
    for _ in range(draw.randint(1, 3)):
        lines.append(f"    {draw.choice(names)} = {draw.choice(names)} {draw.choice('+-*')} {draw.choice(names)}")
    return "\n".join([*lines, f"    return {draw.choice(names)}"])


def sums(draw: random.Random, nouns: Words, verbs: Words) -> str:
    found = []
    for _ in range(draw.randint(4, 9)):
        one, other = draw.randint(0, 99), draw.randint(0, 99)
        found.append(f"{one}+{other}={one + other}")
    return "; ".join(found)


KINDS = (prose, code, sums)


def paragraphs(seed: int, characters: int, kinds: Sequence[Callable[..., str]] = KINDS) -> list[str]:
    """Of all kinds in turn. The vocabulary is the same for every seed: only what is told with it differs."""
    vocabulary, draw = random.Random(0), random.Random(f"paragraphs {seed}")
    nouns, verbs = Words(vocabulary, 150), Words(vocabulary, 60)
    found, size = [], 0
    while size < characters:
        found.append(draw.choice(kinds)(draw, nouns, verbs))
        size += len(found[-1]) + 2
    return found


def kind_of(paragraph: str) -> int:
    """The number of the kind of a paragraph, which its text tells."""
    return 1 if paragraph.startswith("def ") else 2 if paragraph[0].isdigit() else 0


def foreign_paragraphs(seed: int, characters: int) -> list[str]:
    """The same characters, but another language: other words, other sums."""
    vocabulary, draw = random.Random(1), random.Random(f"foreign {seed}")
    nouns, verbs = Words(vocabulary, 150), Words(vocabulary, 60)
    found, size = [], 0
    while size < characters:
        words = [draw.choice((nouns, verbs)).draw(draw)[::-1] for _ in range(12)]
        found.append(" ".join(words))
        size += len(found[-1]) + 2
    return found


def joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


# Texts with a topic


def topics(seed: int, count: int, noise: float = LABEL_NOISE, is_foreign: bool = False) -> Records:
    """Symbols of which each topic has its favourites, and each symbol its favourite neighbour; some labels are wrong.

    `is_foreign`: the topics are the same, but symbols are used in other ways, and favourites seldom.
    """
    draw = random.Random(f"topics {seed}")
    step, start = (11, 5) if is_foreign else (7, 3)
    found: Records = []
    for _ in range(count):
        topic = draw.randrange(NUM_TOPICS)
        numbers: list[int] = []
        for _ in range(draw.randint(8, 32)):
            if numbers and draw.random() < 0.5:
                number = (numbers[-1] * step + start) % len(SYMBOLS)
            elif draw.random() < (0.12 if is_foreign else 0.5):
                number = topic * 12 + int(12 * draw.random() ** 1.5)
            else:
                number = int(len(SYMBOLS) * draw.random() ** 1.3)
                number = len(SYMBOLS) - 1 - number if is_foreign else number
            numbers.append(number)
        named = draw.randrange(NUM_TOPICS) if draw.random() < noise else topic
        found.append({"text": "".join(SYMBOLS[number] for number in numbers), "label": f"topic {named}"})
    return found


def as_json_lines(records: Records) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


# Files


class Files:
    """Texts in files with names that say nothing; each is made once for all runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, key: str, make: Callable[[], str], suffix: str) -> str:
        path = self.folder / f"{sha256(key.encode()).hexdigest()[:12]}{suffix}"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.{random.SystemRandom().getrandbits(48):x}")
            unfinished.write_text(make(), encoding="utf-8")
            unfinished.rename(path)
        return str(path.resolve())

    def text(self, key: str, make: Callable[[], Sequence[str]]) -> str:
        return self.file(key, lambda: joined(make()), ".txt")

    def records(self, key: str, make: Callable[[], Records]) -> str:
        return self.file(key, lambda: as_json_lines(make()), ".jsonl")

    # What most runs are trained on; `variant` 0, 1, … are of one kind and share nothing.

    def mixture(self, variant: int) -> tuple[str, str]:
        return (
            self.text(f"mixture {variant}", partial(paragraphs, variant, TEXT_CHARACTERS)),
            self.text(f"mixture {variant} validation", partial(paragraphs, 1_000 + variant, VALIDATION_CHARACTERS)),
        )

    def documents(self, variant: int) -> tuple[str, str]:
        """The same, each paragraph a record of its own."""

        def make(seed: int, characters: int) -> Records:
            return [{"text": paragraph} for paragraph in paragraphs(seed, characters)]

        return (
            self.records(f"documents {variant}", partial(make, variant, TEXT_CHARACTERS)),
            self.records(f"documents {variant} validation", partial(make, 1_000 + variant, VALIDATION_CHARACTERS)),
        )

    def topics(self, variant: int) -> tuple[str, str]:
        return (
            self.records(f"topics {variant}", partial(topics, variant, NUM_TEXTS)),
            self.records(f"topics {variant} validation", partial(topics, 1_000 + variant, NUM_VALIDATION_TEXTS)),
        )
