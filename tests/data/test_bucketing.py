from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.batches.filling import bucketed_order


def order(lengths: np.ndarray, block: int, first: int = 0, targets: np.ndarray | None = None, seed: int = 0):
    return bucketed_order(lengths, targets, block, first, np.random.default_rng(seed))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(0, 300), block=st.integers(1, 40), first=st.integers(0, 500), pairs=st.booleans())
def test_every_sample_comes_once(count: int, block: int, first: int, pairs: bool) -> None:
    lengths = np.random.default_rng(count).integers(1, 50, count)
    given_order = order(lengths, block, first, lengths[::-1] if pairs else None)
    assert sorted(given_order.tolist()) == list(range(count))


def test_blocks_begin_at_multiples_of_their_size_counted_from_the_start_of_training() -> None:
    lengths = np.random.default_rng(0).permutation(1000)
    for first in (0, 1000, 2000, 1003):
        head = -first % 8
        inside = order(lengths, 8, first)[head : head + (1000 - head) // 8 * 8]
        blocks = lengths[inside].reshape(-1, 8)
        # One chunk: sorted lengths cut into blocks, but for the few samples that the neighbouring epochs' blocks have.
        assert (blocks.max(axis=1) - blocks.min(axis=1)).max() <= 8 + 14
        assert not (np.diff(blocks[:, 0]) > 0).all()


def test_blocks_of_pairs_are_alike_in_both_lengths() -> None:
    rng = np.random.default_rng(0)
    lengths, targets = rng.integers(1, 1000, 4096), rng.integers(1, 1000, 4096)

    def waste(values: np.ndarray, by: np.ndarray) -> float:
        blocks = values[by].reshape(-1, 16)
        return 1 - blocks.sum() / (blocks.max(axis=1).sum() * 16)

    one, both = order(lengths, 16), order(lengths, 16, targets=targets)
    assert waste(lengths, one) < 0.02 and waste(targets, one) > 0.4
    assert waste(lengths, both) < 0.15 and waste(targets, both) < 0.15


def test_orders_follow_from_the_generator() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 200)
    assert order(lengths, 4).tolist() == order(lengths, 4).tolist() != order(lengths, 4, seed=1).tolist()
