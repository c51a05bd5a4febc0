"""Surveys of parts: each is made once, kept in a file, and read with the others as the survey of the whole."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.arrays import opened_arrays
from trainbook.contained import replacing
from trainbook.data.prepare.folder_cache import SourcePart
from trainbook.data.prepare.split import Survey, Symbols, alphabet_of_texts, survey
from trainbook.data.sources.records import Document
from trainbook.data.sources.source import Passed

# What a damaged file raises, whichever part of it is damaged.
DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
NAMED = 3


@dataclass(frozen=True)
class Counts:
    """What is known of a part, or of several, without opening its survey."""

    documents: int = 0
    characters: int = 0
    bad: int = 0
    blank: int = 0
    empty: int = 0  # files that gave no document
    empty_named: tuple[str, ...] = ()  # the first few of them
    bad_named: tuple[str, ...] = ()  # where the first of the bad ones are, and what is wrong with them

    def __add__(self, other: Counts) -> Counts:
        added = {name: mine + getattr(other, name) for name, mine in vars(self).items()}
        named = {name: tuple(added[name])[:NAMED] for name in ("empty_named", "bad_named")}
        return Counts(**{**added, **named})

    @property
    def passed(self) -> Passed:
        passed = Passed(0, self.blank)
        for message in self.bad_named:
            passed.add_bad(message)
        passed.bad = self.bad
        return passed


def write_survey(
    path: Path, part: SourcePart, symbols: Symbols | None, advance: Callable[[int], None], check: Callable[[], None]
) -> Counts:
    """Read a part and keep what is seen of it, if `check` finds nothing wrong then."""
    counts = Counts()

    def documents() -> Iterator[Document]:
        nonlocal counts
        for file_name, source in part.by_file():
            number = 0
            for document in source.documents():
                number += 1
                yield document
            is_empty = number == 0 and file_name is not None
            named = (file_name,) if file_name is not None and is_empty else ()
            bad = sorted(source.passed.reasons.values(), key=lambda each: -each.records)
            such_as = tuple(map(str, bad[:NAMED]))
            counts += Counts(number, 0, source.passed.bad, source.passed.blank, int(is_empty), named, such_as)

    seen = survey(documents(), alphabet_of_texts(part.source, symbols), advance)
    counts += Counts(characters=seen.num_characters)
    facts = {"counts": asdict(counts), "classes": seen.class_sets, "alphabet": sorted(seen.alphabet)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, shared=True) as partial:
        with partial.open("wb") as stream:
            np.savez(
                stream,
                digests=seen.digests,
                groups=seen.groups if seen.groups.any() else np.empty((0, 2), dtype=np.uint64),
                class_numbers=seen.class_numbers.astype(np.int32),
                facts=np.frombuffer(json.dumps(facts).encode("utf-8"), dtype=np.uint8),
            )
        check()
    return counts


def read_counts(path: Path) -> Counts | None:
    """None where there is no survey, or one that is damaged: the archive has a checksum of all that is in it."""
    if path.is_symlink():
        return None
    try:
        with opened_arrays(path) as found:
            for name in found.files:
                found[name]
            return _counts(_facts(found))
    except DAMAGED:
        return None


def joined_survey(paths: Sequence[Path]) -> Survey:
    """The survey of all parts."""
    digests, groups, numbers = [], [], []
    class_sets: dict[tuple[str, ...], int] = {}
    alphabet: set[str] = set()
    characters = 0
    for path in paths:
        with opened_arrays(path) as found:
            facts, its_digests, its_groups = _facts(found), found["digests"], found["groups"]
            digests.append(its_digests)
            groups.append(its_groups if len(its_groups) else np.zeros_like(its_digests))
            its_sets = [class_sets.setdefault(tuple(names), len(class_sets)) for names in facts["classes"]]
            numbers.append(np.array(its_sets, dtype=np.int32)[found["class_numbers"]] if its_sets else _none)
            alphabet.update(facts["alphabet"])
            characters += _counts(facts).characters
    none = np.empty((0, 2), dtype=np.uint64)
    return Survey(
        np.concatenate([none, *digests]),
        np.concatenate([none, *groups]),
        tuple(class_sets),
        np.concatenate([_none, *numbers]),
        characters,
        frozenset(alphabet),
    )


_none = np.empty(0, dtype=np.int32)


def _facts(found: Any) -> dict[str, Any]:
    return json_text.loads(found["facts"].tobytes())


def _counts(facts: dict[str, Any]) -> Counts:
    named = {name: tuple(facts["counts"].get(name, ())) for name in ("empty_named", "bad_named")}
    return Counts(**{**facts["counts"], **named})
