"""One part of a corpus as tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainbook.data.corpus import Decided, Placed
from trainbook.data.gopher import Left
from trainbook.data.writing import Encoding, write_side


def encode(
    decided: Decided, one: Placed, encoding: Encoding, folder: Path, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write what a part has for each side; the answer says how much."""
    corpus, root = decided.corpus, one.part.source.root
    facts: dict[str, Any] = {"sides": {}}
    for side in decided.sides_of(one):
        filtered = Left() if side == "train" and corpus.gopher_filter else None
        its_encoding = encoding
        if side == "validation" and corpus.validation is None:
            its_encoding = replace(encoding, validation_ratio=corpus.validation_ratio)
        (folder / side).mkdir()
        facts["sides"][side] = write_side(
            folder / side, decided.documents(one, side, filtered), its_encoding, advance, root, closed=True
        )
        if filtered is not None:
            facts["gopher"] = filtered.facts
    return facts
