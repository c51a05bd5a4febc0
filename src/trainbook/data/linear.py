"""Linear models of text, scikit-learn's: TF-IDF of words and pairs of words, with ridge or logistic regression on it.

They need seconds where a transformer needs hours, and on many labelled sets they are hard to beat: the score that a
trained classifier must pass to be worth its price. Asked to tell training from validation text, they measure shift.

On WordNet's 118 thousand definitions in 45 classes the baseline scores .758 after 26 CPU seconds; with a quarter of the
hashed terms, .754.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainbook.errors import MissingExtra

MIN_DOCUMENTS = 2  # a term of one document cannot tell anything of another
WORD = r"\w\w+"
HASHED_TERMS = 1 << 22  # of the baseline: a vocabulary of all pairs of words would cost more memory than the texts
TOLERANCE, ITERATIONS = 1e-2, 40  # of the baseline: enough for the accuracy, long before the last digit of the weights


def words_of(text: str) -> list[str]:
    return re.findall(WORD, text.lower())


def baseline_accuracy(
    train_texts: Sequence[str],
    train_labels: Sequence[str],
    validation_texts: Sequence[str],
    validation_labels: Sequence[str],
) -> float:
    """What ridge regression on TF-IDF features scores on the validation split. Texts without a single common word
    leave nothing to fit: the score is then that of the most frequent class."""
    try:
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import RidgeClassifier
    except ImportError:
        raise MissingExtra("evaluation.baseline", "scikit-learn", "data") from None
    vectorizer = _hashing_vectorizer(token_pattern=WORD, ngram_range=(1, 2))
    counts: Any = vectorizer.transform(train_texts)  # (texts, HASHED_TERMS)
    terms = np.flatnonzero(np.bincount(counts.indices, minlength=HASHED_TERMS) >= MIN_DOCUMENTS)
    names, frequencies = np.unique(np.asarray(train_labels), return_counts=True)
    if len(names) < 2 or not len(terms):
        return float(np.mean(np.asarray(validation_labels) == names[frequencies.argmax()]))
    counts = counts[:, terms]
    tfidf = TfidfTransformer(sublinear_tf=True).fit(counts)
    model = RidgeClassifier(solver="sparse_cg", tol=TOLERANCE, max_iter=ITERATIONS)
    model.fit(tfidf.transform(counts, copy=False), train_labels)
    counts = vectorizer.transform(validation_texts)
    return float(model.score(tfidf.transform(counts[:, terms], copy=False), validation_labels))


def _hashing_vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # Single precision is half the memory, and a class is decided long before its last digits.
    options |= {"norm": None, "dtype": np.float32, "n_features": HASHED_TERMS, "alternate_sign": False}
    return HashingVectorizer(preprocessor=_encodable_lower, **options)


def _encodable_lower(text: str) -> str:
    """Hashing needs UTF-8, which a lone surrogate has none of."""
    return text.lower().encode("utf-8", "replace").decode("utf-8")


class LabelBaseline:
    """Ridge regression on TF-IDF features of words and pairs of words, or of characters, that predicts the classes of
    texts it has not seen."""

    def __init__(self, texts: Sequence[str], *, characters: bool = False) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfTransformer
        except ImportError:
            raise MissingExtra("a baseline for the labels", "scikit-learn", "data") from None
        words: Any = {"token_pattern": WORD, "ngram_range": (1, 2)}
        options: Any = {"analyzer": "char_wb", "ngram_range": (1, 4)} if characters else words
        counts: Any = _hashing_vectorizer(**options).transform(texts)  # (texts, HASHED_TERMS)
        terms = np.flatnonzero(np.bincount(counts.indices, minlength=HASHED_TERMS) >= MIN_DOCUMENTS)
        self.has_terms = len(terms) > 0
        self.features: Any = TfidfTransformer(sublinear_tf=True).fit_transform(counts[:, terms]) if len(terms) else None

    def scores(self, labels: np.ndarray, held_out: np.ndarray) -> np.ndarray:
        """(texts held out, classes): of a model of the others. A class that those lack has the lowest score."""
        from sklearn.linear_model import RidgeClassifier

        found = np.full((int(held_out.sum()), int(labels.max()) + 1), -np.inf)
        known = np.unique(labels[~held_out])
        if not self.has_terms or len(known) < 2:
            found[:, known[:1]] = 0.0
            return found
        model = RidgeClassifier(solver="sparse_cg", tol=TOLERANCE, max_iter=ITERATIONS)
        given = model.fit(self.features[~held_out], labels[~held_out]).decision_function(self.features[held_out])
        found[:, known] = np.stack([-given, given], axis=1) if given.ndim == 1 else given
        return found

    def cross_validated(self, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
        """(texts, classes): of each text by a model of the other folds."""
        found = np.zeros((len(labels), int(labels.max()) + 1))
        for fold in np.unique(folds):
            found[folds == fold] = self.scores(labels, folds == fold)
        return found


class SplitClassifier:
    """Logistic regression on TF-IDF features that tells the texts of one split from those of another."""

    def __init__(self, texts: Sequence[str], is_second: np.ndarray) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError:
            raise MissingExtra("a classifier of training and validation text", "scikit-learn", "data") from None
        vectorizer = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, min_df=MIN_DOCUMENTS)
        if not any(re.search(WORD, text) for text in texts):
            raise ValueError("no text has a word of two or more characters")
        try:
            self.features: Any = vectorizer.fit_transform(texts)  # (texts, terms)
        except ValueError:
            raise ValueError(f"no word occurs in {MIN_DOCUMENTS} texts") from None
        self.is_second = is_second
        self.terms = vectorizer.get_feature_names_out()

    def scores(self, held_out: np.ndarray) -> np.ndarray:
        """Of the texts held out, by a model of the others: the higher, the more like the second split."""
        return self._fitted(~held_out).decision_function(self.features[held_out])

    def typical_terms(self, number: int) -> tuple[list[str], list[str]]:
        """The terms that speak most for the first split, and those for the second."""
        weights = self._fitted(np.ones(len(self.is_second), dtype=bool)).coef_[0]
        order = np.argsort(weights, kind="stable")
        first = [str(self.terms[index]) for index in order[:number] if weights[index] < 0]
        return first, [str(self.terms[index]) for index in order[::-1][:number] if weights[index] > 0]

    def _fitted(self, chosen: np.ndarray) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=2.0, max_iter=1000).fit(self.features[chosen], self.is_second[chosen])
