"""Entities in rows of tags, such as B-PER I-PER O: found, compared and counted as seqeval and conlleval do.

IOB1, IOB2 and IOBES are read alike: an entity begins where a prefix says so or where the type changes. BILOU is IOBES
with two other letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

OUTSIDE = "O"
PREFIXED = re.compile(r"[BIESLU]-.+")
SAME_AS = {"L": "E", "U": "S"}
ENDS_BEFORE = "BSO"  # a tag that ends whatever entity stands before it


def has_entities(names: Sequence[str]) -> bool:
    """Whether tags mark entities, rather than naming a class for each word as parts of speech do."""
    marked = [name for name in names if name != OUTSIDE]
    return bool(marked) and all(PREFIXED.fullmatch(name) for name in marked)


def entity_types(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({_parts(name)[1] for name in names if name != OUTSIDE}))


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Type, first and last word of each entity."""
    before, kind, first = OUTSIDE, "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, its_kind = _parts(tag)
        is_other = kind != its_kind
        if before != OUTSIDE and (before in "ES" or prefix in ENDS_BEFORE or is_other):
            yield kind, first, place - 1
        if prefix != OUTSIDE and (prefix in "BS" or before in "ESO" or is_other):
            first = place
        before, kind = prefix, its_kind


def entity_counts(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]], types: Sequence[str]) -> Tensor:
    """(3, types): entities that were found, found wrongly and missed, over sentences. An entity counts as found if its
    type, its first and its last word are right."""
    counts = torch.zeros(3, len(types), dtype=torch.int64)
    column = {name: number for number, name in enumerate(types)}
    for guessed, right in zip(predicted, truth, strict=True):
        ours, theirs = set(entities(guessed)), set(entities(right))
        for row, found in enumerate((ours & theirs, ours - theirs, theirs - ours)):
            for kind, *_ in found:
                counts[row, column[kind]] += 1
    return counts


def sentences(keys: Sequence[int], numbers: Sequence[int], names: Sequence[str]) -> list[list[str]]:
    """The tags of each sentence: words that stand behind each other with the same key."""
    return [[names[number] for _, number in group] for _, group in groupby(zip(keys, numbers, strict=True), _first)]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type."""
    return SAME_AS.get(tag[0], tag[0]), tag[2:]
