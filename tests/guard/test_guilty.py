from __future__ import annotations

import math

import numpy as np
import pytest

from trainbook.loop.blame import guilty

USUAL = np.random.default_rng(0).normal(3, 0.3, 32)


def test_a_loss_far_from_the_usual_ones_is_guilty_on_either_side():
    losses = np.array([3.0, 2.6, 9.0, 3.4, 0.01, 3.1])
    assert guilty(losses, USUAL).tolist() == [False, False, True, False, True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_guilty_even_with_nothing_to_compare(bad: float):
    assert guilty(np.array([3.0, bad]), np.empty(0)).tolist() == [False, True]


def test_without_enough_to_compare_nobody_is_blamed_for_size():
    assert not guilty(np.array([3.0, 1e6]), USUAL[:7]).any()
    assert guilty(np.array([3.0, 1e6]), USUAL[:8]).tolist() == [False, True]


def test_what_is_not_finite_among_the_usual_ones_hides_nobody():
    usual = np.concatenate([USUAL, [math.nan, math.inf]])
    assert guilty(np.array([3.0, 30.0]), usual).tolist() == [False, True]


def test_usual_losses_with_a_long_tail_earn_a_wider_band():
    skewed = np.concatenate([USUAL[:28], [5.5, 6.0, 6.5, 7.0]])
    assert guilty(np.array([7.5]), USUAL).all()
    assert not guilty(np.array([7.5]), skewed).any()


def test_samples_that_are_all_alike_are_not_guilty_of_a_breath():
    assert not guilty(np.array([3.05]), np.full(32, 3.0)).any()


def test_most_healthy_samples_are_left_alone():
    draw = np.random.default_rng(1)
    blamed = [guilty(draw.normal(3, 0.3, 64), draw.normal(3, 0.3, 32)).mean() for _ in range(50)]
    assert np.mean(blamed) < 0.001
