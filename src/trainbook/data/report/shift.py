"""Whether validation text is like training text: in length, in words, in labels, and to a classifier that tries to
tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse, special, stats

from trainbook.data.linear import LogisticRegression, Sparse, Tfidf, words_of
from trainbook.data.report.labels import Label, class_counts
from trainbook.data.seeding import generator

CONFIDENCE = 0.95
MIN_DOCUMENTS = 20  # on each side: fewer give no usable interval
MAX_DOCUMENTS = 4000  # on each side, for the classifier: the interval is then within a hundredth or two
FOLDS = 5
RESPLITS = 10
NAMED_TERMS = 5
SLIGHT, CLEAR = 0.6, 0.75  # of the area under the curve


def length_shift(train: np.ndarray, validation: np.ndarray) -> dict[str, float]:
    """How far apart the two distributions of lengths are."""
    medians = {"median_train": float(np.median(train)), "median_validation": float(np.median(validation))}
    return {**_kolmogorov_smirnov(train, validation), **medians}


def _kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """The largest distance between two distributions, and how probable one like it is between samples of one."""
    found: Any = stats.ks_2samp(a, b, method="exact" if max(len(a), len(b)) <= 100 else "asymp")
    return {"ks_statistic": float(found.statistic), "p_value": float(found.pvalue)}


def token_shift(
    train: Sequence[np.ndarray], validation: Sequence[np.ndarray], vocab_size: int, seed: int = 0
) -> dict[str, float]:
    """Tokens of validation that training has not, and the Jensen-Shannon divergence of the two distributions of tokens,
    in bits: 0 is the same, 1 is nothing in common.

    Samples of one distribution differ too, the more the smaller they are: `by_chance` is the largest divergence between
    parts of the same sizes into which all documents together were divided at random.
    """
    documents = _counted([*train, *validation], vocab_size)
    is_validation = np.arange(documents.shape[0]) >= len(train)
    of_train, of_validation = _sums(documents, is_validation)
    draw = generator("data-report-resplit", seed)
    by_chance = max(
        jensen_shannon(*_sums(documents, is_validation[draw.permutation(len(is_validation))])) for _ in range(RESPLITS)
    )
    total = of_validation.sum()
    return {
        "unseen_tokens": float(of_validation[of_train == 0].sum() / total) if total else 0.0,
        "jensen_shannon": jensen_shannon(of_train, of_validation),
        "by_chance": by_chance,
    }


def unseen_words(train: Sequence[str], validation: Sequence[str]) -> float:
    """The share of words in validation that training has not: what a model cannot have learned."""
    known = {word for text in train for word in words_of(text)}
    counts = Counter(word for text in validation for word in words_of(text))
    total = counts.total()
    return sum(count for word, count in counts.items() if word not in known) / total if total else 0.0


def jensen_shannon(a: np.ndarray, b: np.ndarray) -> float:
    """Of two vectors of counts, in bits."""
    if a.sum() == 0 or b.sum() == 0:
        return float(a.sum() != b.sum())
    p, q = a / a.sum(), b / b.sum()
    middle = (p + q) / 2
    return float((special.rel_entr(p, middle) + special.rel_entr(q, middle)).sum() / 2 / np.log(2))


def label_shift(
    train: Sequence[Label],
    validation: Sequence[Label],
    train_tags: Counter[str] | None = None,
    validation_tags: Counter[str] | None = None,
) -> dict[str, Any] | None:
    """Numbers as lengths are compared; classes by total variation and a chi-square test. None: no labels."""
    if any(isinstance(label, float) for label in train):
        return {"kind": "number", **_kolmogorov_smirnov(np.array(train), np.array(validation))}
    kind, of_train = class_counts(train, train_tags)
    _, of_validation = class_counts(validation, validation_tags)
    names = sorted(of_train | of_validation)
    if not of_train or not of_validation:
        return None
    table = np.array([[of_train[name] for name in names], [of_validation[name] for name in names]], dtype=np.float64)
    shares = table / table.sum(axis=1, keepdims=True)
    distances = shares[1] - shares[0]
    most = int(np.abs(distances).argmax())
    tested: Any = stats.chi2_contingency(table, correction=False)
    return {
        "kind": kind,
        "total_variation": float(np.abs(distances).sum() / 2),
        "p_value": float(tested.pvalue),
        "most_different": names[most],
        "share_in_train": float(shares[0, most]),
        "share_in_validation": float(shares[1, most]),
        "missing_in_validation": [name for name in names if of_validation[name] == 0],
        "missing_in_train": [name for name in names if of_train[name] == 0],
    }


def domain_shift(train: Sequence[str], validation: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """How well a linear classifier on TF-IDF features tells validation from training documents it has not seen.

    The area under its curve is the probability that it ranks a validation document above a training one: 0.5 is a coin.
    It is the mean over the folds of a cross-validation (pooling their scores would bias it down). The interval is by
    DeLong's variance, widened as Nadeau and Bengio (2003) have it, because folds share their training documents:
    without that, random splits of one source are called shifted in one of six cases.
    """
    sides = [_drawn(train, seed, 0), _drawn(validation, seed, 1)]
    counts = {"train_documents": len(sides[0]), "validation_documents": len(sides[1]), "confidence": CONFIDENCE}
    if min(map(len, sides)) < MIN_DOCUMENTS:
        return {"auc": None, "interval": None, **counts, "reason": f"needs {MIN_DOCUMENTS} documents on each side"}
    try:
        tfidf = Tfidf()
        features = tfidf.fit_transform([*sides[0], *sides[1]])
    except ValueError as error:
        return {"auc": None, "interval": None, **counts, "reason": str(error)}
    labels = np.repeat([0, 1], [len(sides[0]), len(sides[1])])
    # Each fold has its share of both sides.
    draw = generator("data-report-folds", seed)
    folds = np.concatenate([draw.permutation(np.arange(len(side)) % FOLDS) for side in sides])
    areas, variances = [], []
    for fold in range(FOLDS):
        held_out = folds == fold
        model = LogisticRegression(strength=1.0).fit(features[~held_out], labels[~held_out])
        scores = model.predict_proba(features[held_out])[:, 1]
        area, variance = area_under_curve(scores[labels[held_out] == 1], scores[labels[held_out] == 0])
        areas.append(area)
        variances.append(variance)
    area = float(np.mean(areas))
    variance = np.mean(variances) * (1 / FOLDS + 1 / (FOLDS - 1))
    reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt(variance))
    whole = LogisticRegression(strength=1.0).fit(features, labels)
    leaning = whole.weights[:, 1] - whole.weights[:, 0]
    order, terms = np.argsort(leaning, kind="stable"), tfidf.terms
    return {
        "auc": area,
        "interval": [max(0.0, area - reach), min(1.0, area + reach)],
        **counts,
        "typical_of_train": [terms[index] for index in order[:NAMED_TERMS] if leaning[index] < 0],
        "typical_of_validation": [terms[index] for index in order[::-1][:NAMED_TERMS] if leaning[index] > 0],
        "reason": None,
    }


def verdict(auc: float | None, interval: Sequence[float] | None, reason: str | None = None) -> str:
    """In words; the interval decides whether there is something to see at all."""
    if auc is None or interval is None:
        return f"not judged: {reason}"
    low, high = interval
    if low <= 0.5 <= high:
        return "no shift seen"
    if high < 0.5:
        return "documents have near copies on the other side"
    return "slight shift" if auc < SLIGHT else "clear shift" if auc < CLEAR else "strong shift"


def area_under_curve(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float]:
    """The probability that a positive scores above a negative, ties counted half, and DeLong's variance of it."""
    ranks = stats.rankdata(np.concatenate([positive, negative]))
    m, n = len(positive), len(negative)
    # Of each document, the share of the other side that it is on the right side of.
    above = (ranks[:m] - stats.rankdata(positive)) / n
    below = 1 - (ranks[m:] - stats.rankdata(negative)) / m
    variance = (above.var(ddof=1) / m if m > 1 else 0.0) + (below.var(ddof=1) / n if n > 1 else 0.0)
    return float(above.mean()), float(variance)


def _drawn(texts: Sequence[str], seed: int, side: int) -> list[str]:
    if len(texts) <= MAX_DOCUMENTS:
        return list(texts)
    chosen = generator("data-report-domain", seed, side).permutation(len(texts))[:MAX_DOCUMENTS]
    return [texts[int(index)] for index in np.sort(chosen)]


def _counted(documents: Sequence[np.ndarray], vocab_size: int) -> Sparse:
    """(documents, vocabulary): how often each has each token."""
    ends = np.cumsum([0] + [len(tokens) for tokens in documents])
    values = np.concatenate([*documents, np.empty(0, dtype=np.int64)]).astype(np.int64)
    shape = (len(documents), vocab_size)
    counted = sparse.csr_array((np.ones(len(values)), values, ends), shape=shape)
    counted.sum_duplicates()
    return counted


def _sums(documents: Sparse, is_validation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chosen = is_validation.astype(np.float64)
    return documents.T @ (1 - chosen), documents.T @ chosen
