"""Random numbers for single tokens: a pure function of seed, epoch, sample and place, for a whole batch at once.

The same sample is masked differently in each epoch, and alike whichever batch, worker or rank it comes to.
"""

from __future__ import annotations

import numpy as np

from trainbook.data.row_hashes import mixed

_STEP = np.uint64(0x9E3779B97F4A7C15)


def draw(purpose: int, seed: int, epochs: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), one for each (epoch, id, place); `purpose` keeps several draws for one token apart."""
    state = np.full(np.broadcast_shapes(epochs.shape, ids.shape, places.shape), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (np.asarray(purpose), epochs, ids, places):
            state = mixed(state + part.astype(np.int64).view(np.uint64) * _STEP + _STEP)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
