"""One part of a corpus as tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainbook.data.corpus import CorpusPlan, PartOffset
from trainbook.data.gopher import Left
from trainbook.data.writing import Encoding, write_side, write_sides


def encode(
    decided: CorpusPlan, one: PartOffset, encoding: Encoding, folder: Path, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write what a part has for each side; the answer says how much."""
    corpus, root = decided.corpus, one.part.source.root
    facts: dict[str, Any] = {"sides": {}}
    sides = decided.sides_of(one)
    encodings = {
        side: replace(encoding, validation_ratio=corpus.validation_ratio)
        if side == "validation" and corpus.validation is None
        else encoding
        for side in sides
    }
    for side in sides:
        (folder / side).mkdir()
    if len(sides) == 2 and not corpus.gopher_filter:
        folders, its_encodings = [folder / side for side in sides], [encodings[side] for side in sides]
        found = write_sides(folders, decided.both_sides(one), its_encodings, advance, root, closed=True)
        facts["sides"] = dict(zip(sides, found, strict=True))
        return facts
    for side in sides:
        filtered = Left() if side == "train" and corpus.gopher_filter else None
        facts["sides"][side] = write_side(
            folder / side, decided.documents(one, side, filtered), encodings[side], advance, root, closed=True
        )
        if filtered is not None:
            facts["gopher"] = filtered.facts
    return facts
