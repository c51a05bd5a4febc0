from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from trainbook.data.linear import SplitClassifier, baseline_accuracy
from trainbook.errors import MissingExtra

WORDS = ["river", "boat", "Water", "fish", "stone", "wall", "house", "roof", "a", "über", "the", "x1", "of_it"]


def texts_of(count: int, seed: int, classes: int = 3) -> tuple[list[str], list[str]]:
    """Texts whose words lean towards their class, so that there is something to learn and something to get wrong."""
    draw = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = draw.randrange(classes)
        weights = [3.0 if index % classes == label else 1.0 for index in range(len(WORDS))]
        texts.append(" ".join(draw.choices(WORDS, weights, k=draw.randint(2, 12))) + draw.choice(["", ".", ", and?"]))
        labels.append(f"class {label}")
    return texts, labels


@pytest.mark.parametrize(("classes", "expected"), [(2, 0.86), (3, 0.71), (4, 0.62)])
def test_the_baseline_has_the_accuracy_of_an_exact_ridge_regression_on_tf_idf(classes: int, expected: float):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline

    texts, labels = texts_of(600, 7, classes)
    new, new_labels = texts_of(400, 8, classes)
    exact = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2), RidgeClassifier(tol=1e-10))
    found = baseline_accuracy(texts, labels, new, new_labels)
    assert found == pytest.approx(exact.fit(texts, labels).score(new, new_labels), abs=0.01)
    assert found == pytest.approx(expected, abs=0.02)
    assert found == baseline_accuracy(texts, labels, new, new_labels)


@pytest.mark.parametrize("texts", [["1", "2", "3"], ["all different", "words here", "never twice"]])
def test_without_words_the_baseline_is_the_most_frequent_class(texts: list[str]):
    assert baseline_accuracy(texts, ["a", "a", "b"], texts, ["a", "b", "b"]) == pytest.approx(1 / 3)


def test_one_class_is_its_own_baseline():
    assert baseline_accuracy(["one two"] * 3, ["a"] * 3, ["one two"] * 2, ["a", "b"]) == 0.5


def test_text_that_cannot_be_encoded_has_a_baseline():
    texts = ["up \ud800\ud801 river", "down hill"] * 10
    assert baseline_accuracy(texts, ["a", "b"] * 10, texts, ["a", "b"] * 10) == 1.0


def test_texts_without_a_common_word_are_not_told_apart():
    labels = np.array([0, 1])
    with pytest.raises(ValueError, match="no text has a word"):
        SplitClassifier(["a", "?"], labels)
    with pytest.raises(ValueError, match="no word occurs in 2 texts"):
        SplitClassifier(["one two", "three four"], labels)


def test_without_scikit_learn_the_baseline_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtra, match=r"evaluation.baseline needs .*pip install 'trainbook\[data\]'"):
        baseline_accuracy(["one"], ["a"], ["one"], ["a"])
    with pytest.raises(MissingExtra, match=r"trainbook\[data\]"):
        SplitClassifier(["one", "two"], np.array([0, 1]))
