"""Documents in which a few tokens come again and again: what a broken page, a table of dashes or a scraper leaves.

Batches of such text have made losses spike, and the model learns nothing from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAX_PERIOD = 13
MIN_REPETITIONS = 32


class Repeat(NamedTuple):
    document: int  # index among the documents
    position: int  # of the first token within the document
    period: int  # tokens that come again
    repetitions: int


def find_repeats(
    tokens: np.ndarray, lengths: np.ndarray, max_period: int = MAX_PERIOD, min_repetitions: int = MIN_REPETITIONS
) -> list[Repeat]:
    """The longest repeat of each document that has one, by the shortest period; documents lie one behind the other."""
    starts = np.cumsum(lengths) - lengths
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    found: dict[int, Repeat] = {}
    for period in range(1, max_period + 1):
        # A run of tokens equal to the one `period` before it: so many, and the first period itself, are repetitions.
        equal = tokens[period:] == tokens[:-period]
        equal &= document_of[period:] == document_of[:-period]
        changes = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]])))
        begins, ends = changes[::2], changes[1::2]
        repetitions = (ends - begins + period) // period
        for at in np.flatnonzero(repetitions >= min_repetitions):
            document, count = int(document_of[begins[at]]), int(repetitions[at])
            known = found.get(document)
            if known is None or (known.period == period and count > known.repetitions):
                found[document] = Repeat(document, int(begins[at] - starts[document]), period, count)
    return [found[document] for document in sorted(found)]
