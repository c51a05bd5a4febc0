from __future__ import annotations

import numpy as np

from trainbook.tasks.losses import draw

N = 200_000


def numbers(purpose: int = 1, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return draw(purpose, seed, np.full(N, epoch), np.arange(N) // 100, np.arange(N) % 100)


def test_numbers_are_spread_evenly():
    found = numbers()
    assert found.min() >= 0 and found.max() < 1
    counts = np.histogram(found, bins=50, range=(0, 1))[0]
    chi_square = ((counts - N / 50) ** 2 / (N / 50)).sum()
    assert chi_square < 96  # 49 degrees of freedom: exceeded by chance less than once in ten thousand times


def test_each_of_seed_epoch_sample_and_place_changes_them():
    base = numbers()
    for other in (numbers(purpose=2), numbers(seed=1), numbers(epoch=1), numbers(epoch=-1), np.roll(base, 1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.01  # the standard error is 1/sqrt(N) = .0022
        assert (base == other).mean() < 1e-4


def test_a_token_draws_the_same_in_whatever_company():
    alone = draw(1, 7, np.array([3]), np.array([42]), np.array([5]))
    among = draw(1, 7, np.array([0, 3, 3]), np.array([1, 42, 43]), np.array([5, 5, 5]))
    assert alone[0] == among[1] and len(set(among)) == 3
