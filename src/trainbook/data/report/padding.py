"""How much of each batch would be padding, by strategy: counted on the batches that training would make."""

from __future__ import annotations

import numpy as np

from trainbook.data.bucketing import bucketed_order
from trainbook.data.packing import pack
from trainbook.data.seeding import generator

STRATEGIES = ("max_length", "longest", "bucketed", "packed", "windows")
WORTH_IT = 0.05  # of all positions: less than this is not worth another strategy


def padding_waste(
    positions: np.ndarray,
    max_positions: int,
    micro_batch: int,
    seed: int = 0,
    target_positions: np.ndarray | None = None,
    max_target_positions: int = 0,
) -> dict[str, float]:
    """The share of positions that hold no token in the first epoch, those for target texts included. What is too long
    counts as cut.

    Windows run from one document into the next and are full; what they give up instead is that a text begins at
    position 0. Micro-batches are what is padded, so their size is what matters, not that of the global batch.
    """
    usable = positions > 0
    parts = [(np.minimum(positions[usable], max_positions), max_positions)]
    if target_positions is not None:
        parts.append((np.minimum(target_positions[usable], max_target_positions), max_target_positions))
    lengths, targets = parts[0][0], parts[1][0] if len(parts) > 1 else None
    if len(lengths) == 0:
        return dict.fromkeys(STRATEGIES, 0.0)
    order = generator("order", seed, 0).permutation(len(lengths))
    blocks = bucketed_order(lengths, targets, micro_batch, 0, generator("order", seed, 0))
    rows = len(pack(lengths, max_positions, seed, target_lengths=targets, target_capacity=max_target_positions))
    taken = sum(int(part.sum()) for part, _ in parts)
    made = {
        "max_length": len(lengths) * sum(width for _, width in parts),
        "longest": sum(_padded(part[order], micro_batch) for part, _ in parts),
        "bucketed": sum(_padded(part[blocks], micro_batch) for part, _ in parts),
        "packed": rows * sum(width for _, width in parts),
        "windows": taken,
    }
    return {strategy: 1 - taken / made[strategy] for strategy in STRATEGIES}


def best_strategy(waste: dict[str, float], can_pack: bool = True) -> str:
    """The simplest strategy that wastes at most a little more than the thriftiest one."""
    candidates = ["longest", "bucketed", "packed"] if can_pack else ["longest", "bucketed"]
    least = min(waste[name] for name in candidates)
    return next(name for name in candidates if waste[name] <= least + WORTH_IT)


def _padded(lengths: np.ndarray, micro_batch: int) -> int:
    starts = np.arange(0, len(lengths), micro_batch)
    sizes = np.diff(np.append(starts, len(lengths)))
    return int((np.maximum.reduceat(lengths, starts) * sizes).sum())
