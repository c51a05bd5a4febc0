from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import spatial, stats
from sklearn.metrics import roc_auc_score

from trainbook.data.report import shift
from trainbook.data.sources.records import jensen_shannon

WORDS = [f"word{number}" for number in range(300)]


def documents(count: int, seed: int, words: list[str] = WORDS) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=20)) for _ in range(count)]


def token_shift(train: list[np.ndarray], validation: list[np.ndarray], vocab_size: int, **more: Any) -> dict[str, Any]:
    return shift.token_shift(shift.counted(train, vocab_size), shift.counted(validation, vocab_size), **more)


def one_of_each(texts: list[str]) -> list[str]:
    return [texts[index] for index in shift.one_of_each(texts)]


def test_lengths_are_compared_as_scipy_compares_them():
    draw = np.random.default_rng(0)
    a, b = draw.integers(1, 100, 400), draw.integers(30, 130, 300)
    facts = shift.length_shift(a, b)
    expected = stats.ks_2samp(a, b, method="asymp")
    assert facts["ks_statistic"] == expected.statistic and facts["p_value"] == expected.pvalue  # type: ignore
    assert shift.length_shift(np.array([5]), np.array([7]))["p_value"] == 1.0


def test_divergence_is_the_square_of_scipys_distance():
    a, b = np.array([3.0, 1, 0, 4]), np.array([1.0, 1, 5, 0])
    assert jensen_shannon(a, b) == pytest.approx(spatial.distance.jensenshannon(a, b, base=2) ** 2)
    assert jensen_shannon(a, 2 * a) == 0
    assert jensen_shannon(np.array([1.0, 0]), np.array([0, 7.0])) == 1


def test_tokens_that_training_has_not_are_counted_as_often_as_they_occur():
    train, validation = [np.array([0, 1, 1]), np.array([2])], [np.array([1, 3, 3, 0])]
    assert token_shift(train, validation, 5)["unseen_tokens"] == 0.5


def test_a_random_split_diverges_no_more_than_by_chance_and_other_text_more():
    draw = np.random.default_rng(1)
    alike = [draw.integers(0, 50, 30) for _ in range(300)]
    same = token_shift(alike[:200], alike[200:], 60)
    assert 0 < same["jensen_shannon"] < 2 * same["by_chance"]
    other = token_shift(alike[:200], [draw.integers(20, 60, 30) for _ in range(100)], 60)
    assert other["jensen_shannon"] > 5 * other["by_chance"]


def test_unseen_words_are_a_share_of_all_words():
    assert shift.unseen_words(["The cat", "sat there"], ["the dog, the dog!"]) == 0.5
    assert shift.unseen_words(["one two"], ["?"]) == 0


def test_classes_are_compared_by_a_chi_square_test():
    facts = shift.label_shift(["a"] * 60 + ["b"] * 40, ["a"] * 10 + ["b"] * 30 + ["c"] * 10)
    assert facts is not None
    assert facts["total_variation"] == pytest.approx((0.4 + 0.2 + 0.2) / 2)
    expected = stats.chi2_contingency([[60, 40, 0], [10, 30, 10]], correction=False).pvalue  # type: ignore
    assert facts["p_value"] == pytest.approx(expected)
    assert facts["most_different"] == "a" and (facts["share_in_train"], facts["share_in_validation"]) == (0.6, 0.2)
    assert facts["missing_in_train"] == ["c"] and facts["missing_in_validation"] == []


def test_tags_numbers_and_nothing_are_compared_too():
    tags = shift.label_shift([], [], Counter("OOOB"), Counter("OB"))
    assert tags is not None and tags["kind"] == "tags" and tags["total_variation"] == 0.25
    numbers = shift.label_shift([1.0, 2.0], [5.0, 6.0])
    assert numbers is not None and numbers["ks_statistic"] == 1
    assert shift.label_shift([], []) is None


def test_the_area_is_that_of_scikit_learn_and_its_variance_that_of_delong():
    draw = np.random.default_rng(2)
    positive, negative = draw.integers(2, 12, 30).astype(float), draw.integers(0, 10, 40).astype(float)
    area, variance = shift.area_under_curve(positive, negative)
    labels, scores = np.repeat([1, 0], [30, 40]), np.concatenate([positive, negative])
    assert area == pytest.approx(roc_auc_score(labels, scores))
    # By definition: the kernel of every pair, and the variance of its means over either side.
    kernel = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    assert area == pytest.approx(kernel.mean())
    assert variance == pytest.approx(kernel.mean(1).var(ddof=1) / 30 + kernel.mean(0).var(ddof=1) / 40)


def test_other_words_are_a_strong_shift_and_are_named():
    other = documents(60, 2, [*WORDS, *(["weather"] * 60)])
    facts = shift.domain_shift(documents(80, 1), other)
    assert facts["auc"] > 0.9 and facts["interval"][0] > 0.8
    assert facts["typical_of_validation"][0] == "weather"
    assert shift.verdict(facts["auc"], facts["p_value"]) == "strong shift"
    assert facts == shift.domain_shift(documents(80, 1), other)


def test_random_splits_of_one_source_are_not_called_shifted():
    """By the threshold of one in a thousand, sixty splits have one false alarm in sixteen such tests."""
    verdicts, small = [], 0
    for seed in range(60):
        texts = documents(160, seed)
        facts = shift.domain_shift(texts[:100], texts[100:], seed)
        verdicts.append(shift.verdict(facts["auc"], facts["p_value"]))
        small += facts["p_value"] < 0.05
    assert set(verdicts) == {"no shift detected"}
    assert small <= 6


def test_copies_that_a_split_keeps_together_are_no_shift():
    texts, more = documents(100, 1), documents(60, 2)
    train, validation = texts * 3, more * 3
    once = shift.domain_shift(one_of_each(train), one_of_each(validation))
    assert once["train_documents"] == 100 and shift.verdict(once["auc"], once["p_value"]) == "no shift detected"
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokens = [[np.array([numbers[word] for word in text.split()]) for text in side] for side in (train, validation)]
    alone = token_shift(tokens[0], tokens[1], len(WORDS))
    together = token_shift(tokens[0], tokens[1], len(WORDS), units=[*train, *validation])
    assert shift.tokens_differ(alone) and not shift.tokens_differ(together)


def test_tokens_that_training_never_has_are_told_from_those_that_any_split_lacks():
    draw = np.random.default_rng(3)
    common = [draw.integers(0, 50, 30) for _ in range(300)]
    rare = [np.append(part, 100 + number) for number, part in enumerate(common)]  # one token of its own in each
    facts = token_shift(rare[:200], rare[200:], 500)
    assert facts["unseen_tokens"] == pytest.approx(1 / 31) and not shift.many_unseen(facts)
    foreign = token_shift(rare[:200], [draw.integers(400, 500, 30) for _ in range(100)], 500)
    assert foreign["unseen_tokens"] == 1 and shift.many_unseen(foreign)
    few = token_shift(common[:5], [np.arange(60, 80)] * 5, 500)
    assert not few["is_judged"] and shift.many_unseen(few)


def test_a_few_documents_are_not_judged():
    facts = shift.domain_shift(documents(80, 1), documents(5, 2))
    assert facts["auc"] is None
    assert (
        shift.verdict(None, None, facts["reason"])
        == "skipped: a classifier needs 20 different texts or groups on each side"
    )
    assert shift.domain_shift(["?"] * 30, ["!"] * 30)["reason"] == "no text has a word of two or more characters"


def test_no_more_documents_than_needed_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shift, "MAX_DOCUMENTS", 30)
    chosen = shift.drawn(80, 1, 0)
    assert len(chosen) == 30 and chosen == sorted(set(chosen)) and chosen[-1] < 80
    assert shift.drawn(25, 1, 0) == list(range(25))


def test_texts_are_cut_to_a_common_length_that_fits_together():
    assert shift.longest_within([5, 100, 7], 112) is None
    assert shift.longest_within([5, 100, 7, 100], 112) == 50
    assert shift.longest_within([100] * 4, 10) == 2


def test_many_different_words_are_judged_by_a_random_part_of_them(monkeypatch: pytest.MonkeyPatch):
    train, validation = (
        [f"word{number}" for number in range(20_000)],
        [f"word{number}" for number in range(15_000, 25_000)],
    )
    assert shift.unseen_words([" ".join(train)], [" ".join(validation)]) == 0.5
    monkeypatch.setattr(shift, "MAX_WORDS", 4000)
    assert shift.unseen_words(train, validation) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("auc", "p_value", "expected"),
    [
        (0.52, 0.2, "no shift detected"),
        (0.7, 0.001, "no shift detected"),
        (0.55, 0.0009, "slight shift"),
        (0.7, 1e-5, "clear shift"),
        (0.9, 1e-9, "strong shift"),
        (0.3, 1e-5, "documents have near copies on the other side"),
    ],
)
def test_the_test_decides_the_verdict(auc, p_value, expected):
    assert shift.verdict(auc, p_value) == expected


def raters(seed: int, spread: float = 1.0) -> tuple[list[float], list[int]]:
    """40 authors of 30 texts each, who rate higher or lower by habit."""
    draw = np.random.default_rng(seed)
    habits = draw.normal(0, spread, 40).repeat(30)
    return (habits + draw.normal(0, 0.3, 1200)).tolist(), np.arange(40).repeat(30).tolist()


@pytest.mark.parametrize("kind", ["number", "class"])
def test_labels_that_stay_together_are_compared_with_splits_that_keep_them_together(kind: str):
    """Authors on one side make the sides differ: by chance as often as the p-value says."""
    low = 0
    for seed in range(20):
        numbers, authors = raters(seed)
        labels = numbers if kind == "number" else ["high" if number > 0 else "low" for number in numbers]
        facts = shift.label_shift(labels[:1020], labels[1020:], seed=seed, units=authors)
        assert facts is not None
        low += facts["p_value"] < 0.05
    assert low <= 4  # of 20, at 5 %: more by chance once in 400 times; all of them without the units
    shifted = [number + 3 * (author >= 34) for number, author in zip(*raters(1), strict=True)]
    found = shift.label_shift(shifted[:1020], shifted[1020:], units=raters(1)[1])
    assert found is not None and found["p_value"] < 0.01


def test_labels_of_which_none_stay_together_have_the_p_value_of_the_test():
    labels = ["a"] * 60 + ["b"] * 40 + ["a"] * 10 + ["b"] * 40
    plain = shift.label_shift(labels[:100], labels[100:])
    assert plain == shift.label_shift(labels[:100], labels[100:], units=range(150))
