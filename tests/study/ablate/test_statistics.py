"""Simulated studies whose true effects are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats
from tests.conftest import slow

from trainbook.study.ablate.statistics import (
    ALPHA,
    POWER,
    Effect,
    effect_of,
    equivalence_p,
    judge,
    power_of,
    probability_of_improvement,
    sign_flip_p,
    smallest_effect,
)
from trainbook.study.seeds import of_pairs

stats: Any = scipy_stats  # its answers have no types
STUDIES = 2_000
NOISES = np.array([0.01, 0.03])  # of two data sets


def drawn(draw: np.random.Generator, effect: float, pairs: int = 5, tails: str = "normal") -> list[np.ndarray]:
    if tails == "normal":
        noise = draw.standard_normal((len(NOISES), pairs))
    elif tails == "long":
        noise = draw.standard_t(4, (len(NOISES), pairs)) / np.sqrt(2)
    else:  # of two skewed ones; what differs by chance alone differs symmetrically
        noise = (draw.exponential(size=(2, len(NOISES), pairs)) * np.array([1, -1])[:, None, None]).sum(0)
    return list(effect + NOISES[:, None] * noise)


def found(strata: Any) -> Effect:
    effect = effect_of(strata)
    assert effect is not None
    return effect


@pytest.mark.parametrize("tails", ["normal", "long"])
def test_intervals_cover_the_truth_in_95_of_100_studies(tails: str):
    draw = np.random.default_rng(0)
    effects = [found(drawn(draw, 0.02, tails=tails)) for _ in range(STUDIES)]
    assert 0.93 <= np.mean([each.low <= 0.02 <= each.high for each in effects]) <= 0.97


@pytest.mark.parametrize("tails", [slow("normal"), "long", slow("skewed runs")])
def test_in_a_study_of_six_arms_without_effect_one_in_twenty_finds_any(tails: str):
    draw = np.random.default_rng(1)
    wrong = 0
    for _ in range(STUDIES // 4):
        judged = judge([effect_of(drawn(draw, 0.0, tails=tails)) for _ in range(6)], epsilon=1e-6)
        wrong += any(each.verdict != "no evidence" for each in judged)
    assert wrong / (STUDIES // 4) <= ALPHA + 2.5 * np.sqrt(ALPHA * (1 - ALPHA) / (STUDIES // 4))


def test_another_seed_alone_is_never_better():
    """Two hundred arms that differ from the control in nothing but their seeds."""
    draw = np.random.default_rng(2)
    verdicts = [each.verdict for each in judge([effect_of(drawn(draw, 0.0)) for _ in range(200)], epsilon=1e-6)]
    assert set(verdicts) == {"no evidence"}


@pytest.mark.parametrize("side", [-1, slow(1)])
def test_an_effect_of_epsilon_is_called_equivalent_in_one_study_of_twenty_at_most(side: int):
    draw, epsilon = np.random.default_rng(3), 0.04
    wrong = [judge([effect_of(drawn(draw, side * epsilon))], epsilon)[0].verdict for _ in range(STUDIES)]
    assert wrong.count("equivalent") / STUDIES <= ALPHA + 0.01
    right = [judge([effect_of(drawn(draw, 0.0, pairs=20))], epsilon)[0].verdict for _ in range(200)]
    assert right.count("equivalent") > 190


@pytest.mark.parametrize(("pairs", "data_sets", "arms"), [(5, 1, 1), (5, 3, 1), (8, 1, 4), (3, 2, 2)])
def test_a_design_finds_the_smallest_effect_as_often_as_it_says(pairs: int, data_sets: int, arms: int):
    smallest, draw = smallest_effect(0.02, pairs, data_sets, arms), np.random.default_rng(4)
    seen = 0
    for _ in range(800):
        strata = smallest + 0.02 * draw.standard_normal((data_sets, pairs))
        sure = Effect(*found(list(strata)).__dict__.values())
        # The others are further from 0, so that this one has the hardest place in Holm's order only if it is the first.
        seen += sure.p * arms <= ALPHA and sure.agrees
    assert seen / 800 == pytest.approx(POWER, abs=0.045)
    assert power_of(0.0, 0.02, pairs, data_sets, arms) <= ALPHA + 0.005
    assert power_of(2 * smallest, 0.02, pairs, data_sets, arms) > POWER + 0.1


def test_more_seeds_see_smaller_effects():
    assert smallest_effect(1.0, 5) > smallest_effect(1.0, 10) > smallest_effect(1.0, 40)
    assert smallest_effect(1.0, 40) == pytest.approx(2.8 / np.sqrt(40), rel=0.05), "as of the normal distribution"
    assert smallest_effect(1.0, 1) == np.inf and smallest_effect(0.0, 5) == 0.0


def test_one_data_set_is_the_paired_t_test_and_the_exact_test():
    values = np.random.default_rng(5).standard_normal(9) + 0.5
    effect, known, t = found([values]), of_pairs(list(values)), stats.ttest_1samp(values, 0.0)
    assert (effect.low, effect.high) == pytest.approx(tuple(t.confidence_interval(0.95)))
    assert effect.p == pytest.approx(t.pvalue) and effect.p_flips == pytest.approx(known.p)
    assert effect.least_flips == known.least_p == 2 / 2**9
    permuted = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert effect.p_flips == pytest.approx(permuted.pvalue)


def test_data_sets_count_equally_however_many_pairs_they_have():
    effect = found([[1.0, 1.2, 0.8], [0.0, 0.1, -0.1, 0.05, -0.05, 0.0]])
    assert effect.mean == pytest.approx(0.5) and effect.pairs == 9


def test_of_many_pairs_signs_are_drawn_and_the_answer_is_nearly_the_exact_one():
    values = np.random.default_rng(6).standard_normal(21) * 0.5 + 0.15
    drawn_p, least = sign_flip_p([values])
    sums = np.zeros(1)
    for each in values:
        sums = np.concatenate([sums + each, sums - each])
    exact = float(np.mean(np.abs(sums) >= abs(values.sum()) - 1e-9))
    assert drawn_p == pytest.approx(exact, abs=4 * np.sqrt(exact / 65_536)) and 0.01 < exact < 0.5
    assert 0 < least < 1e-4


def test_five_pairs_have_to_agree_in_their_sign():
    """One seed that says the opposite: the t test alone would call it a difference."""
    alike = [-1.0, -1.1, -0.9, -1.0, -1.05]
    assert judge([effect_of([alike])], 0.01)[0].verdict == "better"
    assert judge([effect_of([alike])], 0.01, lower_is_better=False)[0].verdict == "worse"
    split = [*alike[:4], 0.001]
    assert found([split]).p < ALPHA < found([split]).p_flips
    assert judge([effect_of([split])], 0.01)[0].verdict == "no evidence"


def test_a_difference_that_is_certain_but_too_small_to_matter_is_equivalent():
    sure = [[-0.0010, -0.0011, -0.0009, -0.0010, -0.0010]]
    assert judge([effect_of(sure)], 0.0001)[0].verdict == "better"
    assert judge([effect_of(sure)], 0.01)[0].verdict == "equivalent"
    assert equivalence_p(found(sure), 0.01) < 0.001 < equivalence_p(found(sure), 0.0010)


def test_runs_that_are_the_same_to_the_last_bit_are_equivalent():
    same = found([[0.0, 0.0, 0.0]])
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert judge([same], 0.01)[0].verdict == "equivalent"


def test_one_pair_alone_says_nothing():
    assert effect_of([[1.0]]) is None and effect_of([[1.0, 1.0], [1.0]]) is None and effect_of([]) is None
    assert judge([None], 0.01)[0].verdict == "no evidence"


def test_the_probability_of_improvement_is_that_of_mann_and_whitney():
    draw = np.random.default_rng(7)
    control, arm = draw.standard_normal(8), draw.standard_normal(7) - 0.5
    u = stats.mannwhitneyu(arm, control).statistic
    chance, low, high = probability_of_improvement([(control, arm)])
    assert chance == pytest.approx(1 - u / 56) and low < chance < high
    assert probability_of_improvement([(control, arm)], lower_is_better=False)[0] == pytest.approx(u / 56)
    assert probability_of_improvement([([1.0, 1.0], [1.0, 1.0])])[0] == 0.5
