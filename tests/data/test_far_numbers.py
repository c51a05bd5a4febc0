from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.far_numbers import far_numbers


@pytest.mark.parametrize("number", [1e15, -1e18, 3e4])
def test_one_number_that_the_squared_error_is_about_is_found_and_named(number: float):
    values = np.append(np.arange(200) + 0.5, number).astype(np.float32)
    found = far_numbers(values)
    assert found is not None and found.places == [200] and found.median in (99.5, 100.5)
    assert found.told(lambda place: f"big.csv:{place + 2}").startswith(
        f"The target {number:.6g} (big.csv:202) makes up"
    )


def test_the_fewest_that_make_up_most_of_it_are_named():
    values = np.append(np.linspace(0, 1, 500), [1e9, -1e9, 5.0])
    found = far_numbers(values)
    assert found is not None and sorted(found.places) == [500, 501] and found.told(str).startswith("2 targets, the")


@pytest.mark.parametrize("seed", range(20))
def test_heavy_tails_and_few_numbers_are_left_alone(seed: int):
    draw = np.random.default_rng(seed)
    assert far_numbers(draw.standard_normal(500)) is None
    assert far_numbers(draw.lognormal(10, 1, 2000)) is None
    assert far_numbers(draw.standard_t(3, 1000)) is None
    assert far_numbers((draw.random(1000) < 0.05) * 1e6) is None  # a rare value
    assert far_numbers(np.array([1.0, 2.0, 1e9])) is None
    assert far_numbers(np.full(100, 7.0)) is None
