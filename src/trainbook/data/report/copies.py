"""Documents with the same text, found among any number of them: sixteen bytes of each stay in memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from trainbook.bounded import json_text
from trainbook.data.report.scratch import scratch_file

MEMORY_BYTES = 1 << 20  # of the names of documents; more are in a temporary file


@dataclass(frozen=True)
class SharedTexts:
    """What two sets of documents have in common."""

    texts: int
    documents: int  # of the one that was asked
    examples: list[tuple[str, str]]  # where such a text is: in the one that was asked, and in the other


@dataclass
class ExactDuplicates:
    """Counts copies while documents pass by, without keeping any."""

    max_examples: int = 5
    _hashes: array[int] = field(default_factory=lambda: array("Q"))

    def __post_init__(self) -> None:
        self._origins = scratch_file(self, MEMORY_BYTES)

    def add(self, digest: bytes, origin: str) -> None:
        self._hashes.append(int.from_bytes(digest[:8], "little"))
        self._origins.write(json.dumps(origin).encode() + b"\n")

    @property
    def num_texts(self) -> int:
        return len(self._found()[0])

    @property
    def copies(self) -> int:
        return len(self._hashes) - self.num_texts

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Copies, and where the text of each first was."""
        hashes, first = self._found()
        is_copy = np.ones(len(self._hashes), dtype=bool)
        is_copy[first] = False
        chosen = np.flatnonzero(is_copy)[: self.max_examples]
        firsts = first[np.searchsorted(hashes, self._values[chosen])]
        named = self._named([*chosen.tolist(), *firsts.tolist()])
        return [(named[copy], named[one]) for copy, one in zip(chosen.tolist(), firsts.tolist(), strict=True)]

    def shared(self, other: ExactDuplicates, max_examples: int) -> SharedTexts:
        """Texts that another set of documents has too."""
        (mine, first), (theirs, their_first) = self._found(), other._found()
        is_common = np.isin(mine, theirs, assume_unique=True)
        texts = int(is_common.sum())
        documents = int(np.isin(self._values, mine[is_common]).sum()) if texts else 0
        chosen = np.sort(first[is_common])[:max_examples]
        others = their_first[np.searchsorted(theirs, self._values[chosen])]
        names, their_names = self._named(chosen.tolist()), other._named(others.tolist())
        pairs = zip(chosen.tolist(), others.tolist(), strict=True)
        return SharedTexts(texts, documents, [(names[one], their_names[two]) for one, two in pairs])

    @property
    def _values(self) -> np.ndarray:
        return np.frombuffer(self._hashes, dtype=np.uint64) if self._hashes else np.empty(0, dtype=np.uint64)

    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """Each hash once, in order, and the first document that has it."""
        return np.unique(self._values.copy(), return_index=True)

    def _named(self, chosen: Iterable[int]) -> dict[int, str]:
        wanted, named = set(chosen), {}
        self._origins.seek(0)
        for number, line in enumerate(self._origins if wanted else ()):
            if number in wanted:
                named[number] = json_text.loads(line)
                if len(named) == len(wanted):
                    break
        self._origins.seek(0, 2)
        return named
