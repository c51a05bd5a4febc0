from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.samples.datasets import LOOKED_AT, TokenWindows, is_in_step
from trainbook.data.samples.frame import Frame

CAUSAL = Frame(32, shift=1)


def records(count: int, width: int = 8) -> np.ndarray:
    """Two fixed tokens and random ones, in records of equal width."""
    made = np.random.default_rng(1).integers(10, 60, size=(count, width))
    made[:, 0], made[:, -1] = 1, 2
    return made.reshape(-1).astype(np.uint16)


def lines(count: int) -> np.ndarray:
    """The same in records of 5 to 11 tokens."""
    draw = np.random.default_rng(2)
    widths = draw.integers(5, 12, size=count).tolist()
    made = [np.concatenate([[1], draw.integers(10, 60, size=width - 2), [2]]) for width in widths]
    return np.concatenate(made).astype(np.uint16)


@pytest.mark.parametrize("stride", [16, 32, 64, 100, 128])
def test_a_stride_that_meets_few_places_of_a_record_is_in_step(stride: int) -> None:
    assert is_in_step(records(2000), stride)
    assert not is_in_step(lines(2000), stride)


@pytest.mark.parametrize("stride", [31, 33, 45])
def test_a_stride_that_meets_every_place_of_a_longer_record_is_not(stride: int) -> None:
    assert not is_in_step(records(2000, width=13), stride)


@pytest.mark.slow
def test_a_long_stream_is_looked_at_in_some_places() -> None:
    assert is_in_step(records(LOOKED_AT // 4), 32)
    assert not is_in_step(lines(LOOKED_AT // 4), 32)


def test_every_epoch_of_such_text_has_windows_that_start_at_every_place_of_a_record() -> None:
    tokens = records(1000)
    dataset = TokenWindows(tokens, CAUSAL, shuffle=True, seed=3)
    firsts = []
    for epoch in range(20):
        starts = dataset.ids(np.arange(dataset.num_samples), np.full(dataset.num_samples, epoch))
        places = np.bincount(starts % 8, minlength=8)
        assert places.min() >= 0.7 * places.max()
        # No token is read twice, the last window is whole, and hardly anything is left out.
        assert np.diff(starts).min() >= dataset.stride
        assert starts[0] >= 0
        assert starts[-1] + dataset.window_length <= len(tokens)
        assert dataset.num_samples >= len(tokens) // dataset.stride - 3
        firsts.append(starts[0])
    assert len(set(firsts)) > 10


def test_other_text_is_cut_at_one_offset_an_epoch() -> None:
    dataset = TokenWindows(lines(1000), CAUSAL, shuffle=True, seed=3)
    starts = dataset.ids(np.arange(dataset.num_samples), np.zeros(dataset.num_samples, dtype=np.int64))
    assert set(np.diff(starts)) == {dataset.stride}
