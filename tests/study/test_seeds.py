"""What repeated seeds say of a difference, against scipy and against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from trainbook.study import seeds
from trainbook.study.seeds import corrected, of_groups, of_pairs


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
def test_the_interval_of_pairs_and_its_p_are_scipys(n: int):
    differences = np.random.default_rng(n).normal(0.3, 1.0, n)
    found = of_pairs(list(differences))
    theirs = stats.ttest_1samp(differences, 0.0)
    assert [found.low, found.high] == pytest.approx(list(theirs.confidence_interval(0.95)))
    assert found.mean == pytest.approx(differences.mean()) and found.pairs == n
    exact = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=1 << 20, alternative="two-sided"
    )
    assert found.is_exact and found.p == pytest.approx(exact.pvalue)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (4, 5), (6, 6)])
def test_the_interval_of_two_groups_and_its_p_are_scipys(n: int, m: int):
    draw = np.random.default_rng(10 * n + m)
    reference, other = draw.normal(0.0, 1.0, n), draw.normal(0.5, 2.0, m)
    found = of_groups(list(reference), list(other))
    theirs = stats.ttest_ind(other, reference, equal_var=False)
    assert [found.low, found.high] == pytest.approx(list(theirs.confidence_interval(0.95)))
    means = [np.mean(chosen) - np.mean(rest) for chosen, rest in _ways([*reference, *other], m)]
    expected = np.mean([abs(mean) >= abs(found.mean) - 1e-12 for mean in means])
    assert found.p == pytest.approx(expected) and found.pairs is None


def _ways(values: list[float], m: int):
    from itertools import combinations

    for chosen in combinations(range(len(values)), m):
        rest = [value for place, value in enumerate(values) if place not in chosen]
        yield [values[place] for place in chosen], rest


def test_beyond_what_is_counted_p_is_the_t_tests():
    differences = np.random.default_rng(0).normal(0.2, 1.0, 20)
    found = of_pairs(list(differences))
    assert not found.is_exact and found.p == pytest.approx(stats.ttest_1samp(differences, 0.0)[1])
    reference, other = np.random.default_rng(1).normal(size=(2, 12))
    found = of_groups(list(reference), list(other))
    assert math.comb(24, 12) > seeds.MOST_CASES and not found.is_exact
    assert found.p == pytest.approx(stats.ttest_ind(other, reference, equal_var=False)[1])


def test_so_few_pairs_cannot_show_less_than_their_number_allows():
    """All of one sign, the least that can be had: two of the 2ⁿ choices of signs."""
    for n in range(2, 9):
        found = of_pairs([1.0 + 0.1 * place for place in range(n)])
        assert found.p == found.least_p == 2 / 2**n


def test_equal_differences_have_an_interval_of_one_point():
    found = of_pairs([0.5, 0.5, 0.5])
    assert (found.low, found.high) == (0.5, 0.5) and found.excludes_zero
    nothing = of_pairs([0.0, 0.0, 0.0])
    assert nothing.p == 1.0 and not nothing.excludes_zero


def test_pairs_of_the_same_numbers_in_another_order_count_as_equal():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit."""
    assert of_pairs([0.1, 0.2, 0.3]).p == of_pairs([0.3, 0.2, 0.1]).p == 0.25


def test_the_correction_is_holms():
    """By hand: 3 x 0.01; 2 x 0.03; and the largest is no less than those before it."""
    assert corrected([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert corrected([0.5, 0.9]) == [1.0, 1.0] and corrected([]) == []
