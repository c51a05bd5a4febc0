"""Sequences of tokens: topics, order, sums, reversed letters, and the source of Python's standard library."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np

from strangers.data.table import Table

Draw = np.random.Generator
PAD, UNKNOWN, MASK, FIRST = 0, 1, 2, 4  # ids below FIRST are no symbols


def topics(rng: Draw, rows: int, length: int, classes: int, symbols: int = 48, share: float = 0.35) -> Table:
    """Each class has its favourite symbols."""
    y = rng.integers(classes, size=rows)
    favourites = rng.permutation(symbols)[: classes * (symbols // classes)].reshape(classes, -1)
    any_symbol = rng.integers(symbols, size=(rows, length))
    own = favourites[y[:, None], rng.integers(favourites.shape[1], size=(rows, length))]
    x = np.where(rng.random((rows, length)) < share, own, any_symbol)
    return Table(x + FIRST, y.astype(np.int64))


def order(rng: Draw, rows: int, length: int, symbols: int = 12) -> Table:
    """Two symbols stand somewhere among others: which came first?"""
    x = rng.integers(2, symbols, size=(rows, length))
    places = np.sort(np.argsort(rng.random((rows, length)), 1)[:, :2], 1)
    y = rng.integers(2, size=rows)
    rows_ = np.arange(rows)
    x[rows_, places[:, 0]], x[rows_, places[:, 1]] = y, 1 - y
    return Table(x + FIRST, y.astype(np.int64))


def count(rng: Draw, rows: int, length: int, symbols: int = 12) -> Table:
    """How often the first symbol occurs, as a number."""
    often = rng.random(rows)
    x = np.where(rng.random((rows, length)) < often[:, None], 0, rng.integers(1, symbols, size=(rows, length)))
    y = (x == 0).mean(1)
    return Table(x + FIRST, ((y - y.mean()) / y.std()).astype(np.float32)[:, None])


def reversed_letters(rng: Draw, rows: int, length: int, symbols: int = 10) -> Table:
    """As one sequence: letters, a mark, the letters from the last to the first."""
    letters = rng.integers(symbols, size=(rows, length)) + FIRST
    mark = np.full((rows, 1), 3)
    return Table(np.concatenate([letters, mark, letters[:, ::-1]], 1))


def reversed_pairs(rng: Draw, rows: int, length: int, symbols: int = 10) -> Table:
    letters = rng.integers(symbols, size=(rows, length)) + FIRST
    return Table(letters, letters[:, ::-1].copy())


def chain(rng: Draw, rows: int, length: int, symbols: int = 24) -> Table:
    """A grammar: each symbol has four that may follow it, one much more often."""
    following = np.stack([rng.permutation(symbols)[:4] for _ in range(symbols)])
    x = np.empty((rows, length), dtype=np.int64)
    x[:, 0] = rng.integers(symbols, size=rows)
    for place in range(1, length):
        x[:, place] = following[x[:, place - 1], rng.choice(4, size=rows, p=[0.7, 0.1, 0.1, 0.1])]
    return Table(x + FIRST)


def sums(rng: Draw, rows: int, length: int) -> Table:
    """Lines such as 12+7=19; as characters."""
    return windows(
        " ".join(f"{a}+{b}={a + b}" for a, b in rng.integers(30, size=(rows * length // 5, 2))), rows, length
    )


SENTENCE = (("the", "a", "every"), ("cat", "dog", "bird", "old man", "child"), ("sees", "likes", "hears", "finds"))


def sentences(rng: Draw, count: int) -> str:
    article, noun, verb = SENTENCE

    def one(words: tuple[str, ...]) -> str:
        return words[rng.integers(len(words))]

    return ". ".join(f"{one(article)} {one(noun)} {one(verb)} {one(article)} {one(noun)}" for _ in range(count))


@cache
def library(start: int, characters: int) -> str:
    """Some source of the standard library, as ASCII."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found, size = [], 0
    for path in sorted(folder.glob("*.py"))[start : start + 60]:
        found.append(path.read_text(encoding="utf-8", errors="ignore").encode("ascii", "ignore").decode())
        size += len(found[-1])
        if size > characters:
            break
    return "\n".join(found)[:characters]


def as_tokens(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8).astype(np.int64).clip(9, 126) - 9 + FIRST


TEXT_SYMBOLS = 126 - 9 + 1 + FIRST


def windows(text: str, rows: int, length: int) -> Table:
    tokens = as_tokens(text)
    rows = min(rows, len(tokens) // length)
    return Table(tokens[: rows * length].reshape(rows, length).copy())


LETTERS = [chr(code) for code in (*range(97, 123), *range(65, 91), *range(48, 58))]


def as_texts(tokens: np.ndarray, separator: str = "") -> list[str]:
    """A letter a token: for programs that read texts."""
    return [separator.join(LETTERS[token - FIRST] if token >= FIRST else "?" for token in row) for row in tokens]
