"""Orders in which samples of similar length come together."""

from __future__ import annotations

import math

import numpy as np

# Sorting is within so many blocks: enough that a block's samples are alike, few enough that each epoch has other ones.
BLOCKS_PER_CHUNK = 128


def bucketed_order(
    lengths: np.ndarray,
    target_lengths: np.ndarray | None,
    block: int,
    first: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """All samples in blocks of similar length, the blocks in random order.

    Blocks begin where the number of a sample, counted from the start of training, is a multiple of their size; `first`
    is the number of the first one here. What is before the first such number, and behind the last, is drawn at random:
    the blocks there are shared with the neighbouring epochs.
    """
    count = len(lengths)
    head = min(-first % block, count)
    num_blocks = (count - head) // block
    shuffled = generator.permutation(count)
    middle = shuffled[head : head + num_blocks * block]
    chunks = np.repeat(_groups(num_blocks, BLOCKS_PER_CHUNK), block)
    middle = middle[np.lexsort((lengths[middle], chunks))]
    if target_lengths is not None:
        # Of each chunk strips of similar length, sorted by the length of the targets: blocks are alike in both.
        strips = np.repeat(_groups(num_blocks, math.isqrt(BLOCKS_PER_CHUNK)), block)
        middle = middle[np.lexsort((target_lengths[middle], strips, chunks))]
    blocks = middle.reshape(num_blocks, block)[generator.permutation(num_blocks)]
    return np.concatenate([shuffled[:head], blocks.reshape(-1), shuffled[head + num_blocks * block :]])


def _groups(count: int, size: int) -> np.ndarray:
    """The group of each of so many blocks: groups of at least this size, none of them much smaller than another."""
    return np.arange(count) * max(1, count // size) // max(1, count)
