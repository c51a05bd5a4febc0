"""Which samples of a rejected batch are to blame: those whose own loss is unlike that of accepted samples."""

from __future__ import annotations

import numpy as np

from trainbook.guard.window import EDGE, MAD_TO_SIGMA

EDGE_TO_SIGMA = 1 / 1.96
THRESHOLD = 5.0  # robust standard deviations; the batch was rejected already, so less is asked than of a batch
LEAST_SPREAD = 0.01  # of the median
ENOUGH = 8  # samples to compare with


def guilty(losses: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """A flag for each loss: not finite, or far above or below the losses of accepted samples, and beyond all of them.
    Where one accepted sample in a hundred has such a loss, as in a rare class, it is part of the data."""
    found = ~np.isfinite(losses)
    usual = usual[np.isfinite(usual)]
    if len(usual) < ENOUGH:
        return found
    median = float(np.median(usual))
    deviation = float(np.median(np.abs(usual - median))) * MAD_TO_SIGMA
    least = max(deviation, LEAST_SPREAD * abs(median), 1e-12)
    above = max(least, (float(np.quantile(usual, EDGE)) - median) * EDGE_TO_SIGMA)
    below = max(least, (median - float(np.quantile(usual, 1 - EDGE))) * EDGE_TO_SIGMA)
    finite = np.where(np.isfinite(losses), losses, median)
    too_high = (finite - median > THRESHOLD * above) & (finite > usual.max())
    too_low = (median - finite > THRESHOLD * below) & (finite < usual.min())
    return found | too_high | too_low
