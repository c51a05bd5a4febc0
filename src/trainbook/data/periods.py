"""Text with a fixed period (records of equal width, lines with the same number of words), cut at equal distances.

If the stride between windows is a multiple of the period, or shares a large factor with it, all windows of a pass start
at the same place of a record: a model learns that place instead of the text, and every other cut is new to it.
"""

from __future__ import annotations

import numpy as np

SHORTEST_STRIDE = 16  # tokens: over shorter distances, ordinary text agrees with itself more at one than at another
MULTIPLES = 8  # of the stride: as many different starts, at most, are too few
NEIGHBOURS = 8  # distances behind each multiple that it is compared with
MORE_ALIKE = 0.05  # of the tokens: prose differs by a tenth of that from one distance to the next
LOOKED_AT = 1 << 20  # tokens, from four places of the stream
PLACES = 4


def is_in_step(tokens: np.ndarray, stride: int) -> bool:
    """Whether tokens that are a few strides apart are clearly more often equal than those a little further apart."""
    if stride < SHORTEST_STRIDE:
        return False
    stretches = _stretches(tokens)
    distances = [stride * multiple for multiple in range(1, MULTIPLES + 1)]
    return any(
        _alike(stretches, distance) - min(_alike(stretches, distance + more) for more in range(1, NEIGHBOURS + 1))
        > MORE_ALIKE
        for distance in distances
        if distance + NEIGHBOURS <= min(map(len, stretches)) // 2
    )


def _stretches(tokens: np.ndarray) -> list[np.ndarray]:
    if len(tokens) <= LOOKED_AT:
        return [np.asarray(tokens[:])]
    length = LOOKED_AT // PLACES
    begins = np.linspace(0, len(tokens) - length, PLACES).astype(np.int64)
    return [np.asarray(tokens[begin : begin + length]) for begin in begins.tolist()]


def _alike(stretches: list[np.ndarray], distance: int) -> float:
    return float(np.mean([np.mean(each[:-distance] == each[distance:]) for each in stretches]))
