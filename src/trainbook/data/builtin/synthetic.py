"""Small tasks that are made up: for trying things out and for tests, since the right answer is always known."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainbook.data.builtin.texts import Builtin
from trainbook.data.sources.reader import Reader
from trainbook.data.sources.records import Complain, DataRecord, LabelKind, RecordKind
from trainbook.errors import DataError

OPTIONS = {"size": "2000", "length": "8", "seed": "0"}
MOST = {"size": 10**7, "length": 10**5, "seed": 10**18}
MOST_LETTERS = 10**9  # of all records together, at most: about an hour to make
VOWELS = "aeiou"


@dataclass(frozen=True)
class SyntheticReader:
    """`size` records; each begins with 1 to `length` letters, and the rest follows from them."""

    name: str
    size: int
    length: int
    seed: int
    fields: Callable[[str], Mapping[str, Any]]
    has_fields = True
    nothing = "its size is 0"
    changed = ""  # never

    @property
    def root(self) -> str:
        return f"{self.name} "

    def fingerprint(self) -> dict[str, Any]:
        return {"synthetic": self.fields.__name__, "size": self.size, "length": self.length, "seed": self.seed}

    def records(self, complain: Complain) -> Iterator[DataRecord]:
        # Only `random` is promised to give the same numbers in every version of Python.
        draw = random.Random(self.seed).random
        for number in range(1, self.size + 1):
            length = 1 + int(draw() * self.length)
            letters = "".join(string.ascii_lowercase[int(draw() * 26)] for _ in range(length))
            yield DataRecord(self.fields(letters), f"record {number}")

    def first(self, count: int) -> list[DataRecord]:
        return list(itertools.islice(self.records(lambda message: None), count))


def copy(letters: str) -> Mapping[str, Any]:
    return {"text": letters, "target": letters}


def reverse(letters: str) -> Mapping[str, Any]:
    return {"text": letters, "target": letters[::-1]}


def sort(letters: str) -> Mapping[str, Any]:
    return {"text": letters, "target": "".join(sorted(letters))}


def parity(letters: str) -> Mapping[str, Any]:
    count = sum(letter in VOWELS for letter in letters)
    return {"text": letters, "label": "odd" if count % 2 else "even"}


def vowels(letters: str) -> Mapping[str, Any]:
    return {"text": letters, "labels": sorted(set(letters) & set(VOWELS))}


def count(letters: str) -> Mapping[str, Any]:
    return {"text": letters, "label": sum(letter in VOWELS for letter in letters)}


def tag(letters: str) -> Mapping[str, Any]:
    """Words of three letters, or what is left of them, each with the kind of its first letter."""
    words = [letters[at : at + 3] for at in range(0, len(letters), 3)]
    return {"words": words, "tags": ["vowel" if word[0] in VOWELS else "consonant" for word in words]}


def echo(letters: str) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": letters}, {"role": "assistant", "content": letters}]}


def _builtin(
    fields: Callable[[str], Mapping[str, Any]],
    what: str,
    gives: tuple[RecordKind, ...],
    labels: LabelKind | None = None,
) -> Builtin:
    def open_synthetic(options: dict[str, str], knob: str, name: str) -> Reader:
        numbers = {}
        for option, value in options.items():
            least, most = 0 if option == "seed" else 1, MOST[option]
            if not value.isdecimal() or len(value) > len(str(most)) or not least <= int(value) <= most:
                law = f"must be a whole number from {least} to {most:,}"
                raise DataError(f"{knob}: '{name}': {option} {law}, but got '{value[:20]}{'…' * (len(value) > 20)}'.")
            numbers[option] = int(value)
        if (letters := numbers["size"] * numbers["length"]) > MOST_LETTERS:
            law = f"must be at most {MOST_LETTERS:,} letters, but size times length is {letters:,}"
            raise DataError(f"{knob}: '{name}': {law}.")
        return SyntheticReader(name.partition("?")[0], **numbers, fields=fields)

    return Builtin(fields.__name__, what, gives, open_synthetic, labels, OPTIONS)


BUILTINS = (
    _builtin(copy, "letters to the same letters", ("text", "pairs")),
    _builtin(reverse, "letters to the same letters in reverse order", ("text", "pairs")),
    _builtin(sort, "letters to the same letters in alphabetical order", ("text", "pairs")),
    _builtin(parity, "whether the number of vowels is odd or even", ("text", "labelled"), "class"),
    _builtin(vowels, "which vowels occur", ("text", "labelled"), "classes"),
    _builtin(count, "the number of vowels", ("text", "labelled"), "number"),
    _builtin(tag, "words, each with a tag for its first letter: vowel or consonant", ("tagged",)),
    _builtin(echo, "conversations in which the assistant repeats what the user says", ("chat",)),
)
