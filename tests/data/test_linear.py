from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.linear_model import RidgeClassifier as TheirRidgeClassifier
from sklearn.metrics import f1_score

from trainbook.data.linear import LogisticRegression, RidgeClassifier, Tfidf, baseline_accuracy, macro_f1

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


def columns_as(theirs: Any, ours: Tfidf) -> list[int]:
    return [theirs.vocabulary_[term] for term in ours.terms]


@pytest.mark.parametrize("min_documents", [1, 2, 5])
def test_features_are_those_of_scikit_learn(min_documents: int):
    texts, _ = texts_of(150, 1)
    new, _ = texts_of(60, 2)
    new += ["", "words that nobody knows", "river river river"]
    theirs: Any = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=min_documents)
    expected, expected_new = theirs.fit_transform(texts).toarray(), theirs.transform(new).toarray()
    ours = Tfidf(min_documents)
    features, features_new = ours.fit_transform(texts), ours.transform(new)
    assert set(ours.terms) == set(theirs.vocabulary_)
    order = columns_as(theirs, ours)
    np.testing.assert_allclose(features.toarray(), expected[:, order], atol=1e-12)
    np.testing.assert_allclose(features_new.toarray(), expected_new[:, order], atol=1e-12)


def test_the_same_text_gives_the_same_row_whenever_it_comes():
    texts, _ = texts_of(40, 3)
    ours = Tfidf()
    features = ours.fit_transform(texts)
    np.testing.assert_array_equal(ours.transform(texts).toarray(), features.toarray())


def test_texts_without_a_common_word_are_refused():
    with pytest.raises(ValueError, match="no text has a word"):
        Tfidf().fit(["a", "?", ""])
    with pytest.raises(ValueError, match="no word occurs in 2 texts"):
        Tfidf().fit(["one two", "three four"])


@pytest.mark.parametrize("strength", [0.5, 10.0])
def test_logistic_regression_is_that_of_scikit_learn(strength: float):
    texts, labels = texts_of(200, 4)
    features = Tfidf().fit_transform(texts)
    theirs = TheirLogisticRegression(C=strength, tol=1e-8, max_iter=2000).fit(_narrow(features), labels)
    ours = LogisticRegression(strength, max_iterations=2000, tolerance=1e-9).fit(features, labels)
    np.testing.assert_allclose(ours.weights.T, theirs.coef_, atol=1e-3)
    # Only differences between biases mean anything.
    np.testing.assert_allclose(
        ours.biases - ours.biases.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-3
    )
    np.testing.assert_allclose(ours.predict_proba(features), theirs.predict_proba(_narrow(features)), atol=1e-4)
    assert ours.predict(features).tolist() == theirs.predict(_narrow(features)).tolist()


def test_two_classes_are_binary_logistic_regression_of_twice_the_strength():
    texts, labels = texts_of(200, 5, classes=2)
    features = Tfidf().fit_transform(texts)
    theirs = TheirLogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(_narrow(features), labels)
    ours = LogisticRegression(1.0, max_iterations=2000, tolerance=1e-9).fit(features, labels)
    np.testing.assert_allclose(ours.weights[:, 1] - ours.weights[:, 0], theirs.coef_[0], atol=1e-3)
    np.testing.assert_allclose(ours.predict_proba(features), theirs.predict_proba(_narrow(features)), atol=1e-4)


@pytest.mark.parametrize("penalty", [0.3, 1.0])
def test_ridge_regression_is_that_of_scikit_learn(penalty: float):
    texts, labels = texts_of(200, 6, classes=4)
    features = Tfidf().fit_transform(texts)
    theirs: Any = TheirRidgeClassifier(alpha=penalty, solver="sparse_cg", tol=1e-10).fit(_narrow(features), labels)
    ours = RidgeClassifier(penalty).fit(features, labels)
    np.testing.assert_allclose(ours.weights.T, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(ours.biases, theirs.intercept_, atol=1e-3)
    assert ours.predict(features).tolist() == theirs.predict(_narrow(features)).tolist()


@pytest.mark.parametrize("model", [LogisticRegression(), RidgeClassifier()])
def test_one_class_is_refused(model):
    features = Tfidf().fit_transform(["one two", "one two"])
    with pytest.raises(ValueError, match="two classes or more, but got 1"):
        model.fit(features, ["same", "same"])


def test_macro_f1_is_that_of_scikit_learn():
    draw = np.random.default_rng(0)
    truth, predicted = draw.choice(list("abc"), 50), draw.choice(list("bc"), 50)
    assert macro_f1(truth, predicted) == pytest.approx(f1_score(truth, predicted, average="macro"))


def test_the_baseline_beats_the_commonest_class():
    texts, labels = texts_of(300, 7)
    new, new_labels = texts_of(100, 8)
    scores = baseline_accuracy(texts, labels, new, new_labels)
    assert scores["accuracy"] > scores["majority_accuracy"] + 0.2
    assert scores["accuracy"] == pytest.approx(scores["macro_f1"], abs=0.1)
    assert "ridge" in scores["method"]
    assert scores == baseline_accuracy(texts, labels, new, new_labels)


@pytest.mark.parametrize("texts", [["1", "2", "3"], ["all different", "words here", "never twice"]])
def test_without_words_the_baseline_is_the_commonest_class(texts: list[str]):
    scores = baseline_accuracy(texts, ["a", "a", "b"], texts, ["a", "b", "b"])
    assert scores["method"] == "the most frequent class"
    assert scores["accuracy"] == scores["majority_accuracy"] == pytest.approx(1 / 3)


def _narrow(features):
    """With the 32-bit indices that scikit-learn insists on."""
    narrow = features.copy()
    narrow.indices, narrow.indptr = narrow.indices.astype(np.int32), narrow.indptr.astype(np.int32)
    return narrow
