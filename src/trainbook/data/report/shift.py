"""Whether validation text is like training text: in length, in words, in labels, and to a classifier that tries to
tell them apart.

What is the same text, or of the same group, is on one side by design. So the unit that chance deals out is not the
document but what stays together, and the tests below compare with splits of such units.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse, stats

from trainbook.data.linear import SplitClassifier, words_of
from trainbook.data.prepare.hashes import generator
from trainbook.data.report.labels import Label, class_counts
from trainbook.data.sources.records import jensen_shannon
from trainbook.errors import MissingExtra

Sparse = Any  # scipy.sparse.csr_array, whose type hints do not say all that it can do

CONFIDENCE = 0.95
MIN_DOCUMENTS = 20  # on each side: fewer give no usable interval
MAX_DOCUMENTS = 4000  # on each side, for the classifier: the interval is then within a hundredth or two
MAX_CHARACTERS = 1 << 23  # on each side, for the classifier: longer texts are cut to a common length
MAX_WORDS = 1 << 20  # different ones of training that are known by themselves
RESPLITS = 99
MOST_RESPLITS, RESPLIT_DOCUMENTS = 999, 20_000_000  # of lengths and labels: as many as sort out so many documents
MARGIN = 1.25  # tokens differ if they diverge by this factor more than in the worst of so many random splits
MANY_UNSEEN = 0.01  # of the tokens: less is not worth a word
MANY_UNSEEN_UNJUDGED = 0.2  # the same where documents are too few for random splits
NAMED_TERMS = 5
P_VALUE = (
    0.001  # the classifier's ranks are this improbable by chance: one random split in a thousand is called shifted
)
UNCORRECTED = 0.05  # of the tests of lengths and labels: below it, a shift is told or called chance
SLIGHT, CLEAR = 0.6, 0.75  # of the area under the curve


def length_shift(
    train: np.ndarray, validation: np.ndarray, seed: int = 0, units: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """How far apart the two distributions of lengths are. `units`: as of `token_shift`."""
    medians = {"median_train": float(np.median(train)), "median_validation": float(np.median(validation))}
    return {**_kolmogorov_smirnov(train, validation, seed, units), **medians}


def _kolmogorov_smirnov(
    a: np.ndarray, b: np.ndarray, seed: int = 0, units: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """The largest distance between two distributions, and how probable one like it is between samples of one."""
    found: Any = stats.ks_2samp(a, b, method="exact" if max(len(a), len(b)) <= 100 else "asymp")
    both = np.concatenate([a, b])
    order = np.argsort(both, kind="stable")
    ends = np.append(np.diff(both[order]) > 0, True)  # of values that are equal

    def distance(is_validation: np.ndarray) -> float:
        here = is_validation[order]
        shares = (np.cumsum(side)[ends] / max(int(side.sum()), 1) for side in (here, ~here))
        return float(np.abs(np.subtract(*shares)).max())

    by_units = _probability_by_units(distance, len(a), len(b), units, seed)
    return {"ks_statistic": float(found.statistic), "p_value": float(found.pvalue) if by_units is None else by_units}


def _probability_by_units(
    distance: Callable[[np.ndarray], float], num_train: int, num_validation: int, units: Any, seed: int
) -> float | None:
    """How probable a distance like that of the two sides is in random splits of what stays together, given which
    documents are validation. None if nothing stays together: then the documents are independent, as tests assume."""
    numbers = None if units is None else _numbered(units)
    if numbers is None or numbers.max(initial=-1) + 1 == len(numbers):
        return None
    is_validation = np.arange(num_train + num_validation) >= num_train
    flags = np.zeros(numbers.max() + 1, dtype=bool)
    flags[numbers[is_validation]] = True
    draw, found = generator("data-report-units", seed), distance(is_validation)
    splits = max(RESPLITS, min(MOST_RESPLITS, RESPLIT_DOCUMENTS // len(numbers)))
    as_far = sum(distance(flags[draw.permutation(len(flags))][numbers]) >= found for _ in range(splits))
    return (1 + as_far) / (1 + splits)


def token_shift(
    train: Sparse, validation: Sparse, seed: int = 0, units: Sequence[Hashable] | None = None
) -> dict[str, Any]:
    """Tokens of validation that training has not, and the Jensen-Shannon divergence of the two distributions of tokens,
    in bits: 0 is the same, 1 is nothing in common. Both sides are given as (documents, vocabulary) counts.

    Samples of one distribution differ too, the more the smaller they are: `by_chance` and `unseen_by_chance` are the
    largest values in random splits of all documents into parts of about the same sizes. `units` says of each document,
    training first, what stays together; None: each is by itself.
    """
    documents: Sparse = sparse.vstack([train, validation], format="csr")
    is_validation = np.arange(documents.shape[0]) >= train.shape[0]
    of_train, of_validation = _sums(documents, is_validation)
    numbers = _numbered(units) if units is not None else np.arange(len(is_validation))
    flags = np.zeros(numbers.max(initial=-1) + 1, dtype=bool)
    flags[numbers[is_validation]] = True
    draw = generator("data-report-resplit", seed)
    divergences, unseen = [], []
    for _ in range(RESPLITS):
        parts = _sums(documents, flags[draw.permutation(len(flags))][numbers])
        divergences.append(jensen_shannon(*parts))
        unseen.append(_unseen(*parts))
    is_judged = min(flags.sum(), (~flags).sum()) >= MIN_DOCUMENTS
    return {
        "unseen_tokens": _unseen(of_train, of_validation),
        "jensen_shannon": jensen_shannon(of_train, of_validation),
        "by_chance": max(divergences),
        "unseen_by_chance": max(unseen) if is_judged else None,
        "is_judged": bool(is_judged),
    }


def tokens_differ(tokens: dict[str, Any]) -> bool:
    return tokens["is_judged"] and tokens["jensen_shannon"] > MARGIN * tokens["by_chance"]


def many_unseen(tokens: dict[str, Any]) -> bool:
    """Whether validation has more tokens that training has not than any random split has."""
    if not tokens["is_judged"]:
        return tokens["unseen_tokens"] >= MANY_UNSEEN_UNJUDGED
    return tokens["unseen_tokens"] > max(MANY_UNSEEN, MARGIN * tokens["unseen_by_chance"])


def _unseen(of_train: np.ndarray, of_validation: np.ndarray) -> float:
    total = of_validation.sum()
    return float(of_validation[of_train == 0].sum() / total) if total else 0.0


def unseen_words(train: Iterable[str], validation: Iterable[str]) -> float:
    """The share of words in validation that training has not: what a model cannot have learned.

    Beyond MAX_WORDS different words in training, only those with a small hash count, on both sides: a random part of
    all different words."""
    known: set[str] = set()
    below = 1 << 32  # of the hash

    def is_counted(word: str) -> bool:
        return below == 1 << 32 or zlib.crc32(word.encode("utf-8", "surrogatepass")) < below

    for text in train:
        known.update(word for word in set(words_of(text)) - known if is_counted(word))
        while len(known) > MAX_WORDS:
            below //= 2
            known = set(filter(is_counted, known))
    total = unseen = 0
    for text in validation:
        for word, count in Counter(words_of(text)).items():
            if is_counted(word):
                total += count
                unseen += 0 if word in known else count
    return unseen / total if total else 0.0


def label_shift(
    train: Sequence[Label],
    validation: Sequence[Label],
    train_tags: Counter[str] | None = None,
    validation_tags: Counter[str] | None = None,
    seed: int = 0,
    units: Sequence[Hashable] | None = None,
) -> dict[str, Any] | None:
    """Numbers as lengths are compared; classes by total variation and a chi-square test. `units`: as of `token_shift`,
    of each label; tags are taken as independent. None: no labels."""
    if any(isinstance(label, float) for label in train):
        return {"kind": "number", **_kolmogorov_smirnov(np.array(train), np.array(validation), seed, units)}
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
    labels = [*train, *validation]
    by_units = None if kind == "tags" else _probability_of_classes(labels, len(train), names, units, seed)
    return {
        "kind": kind,
        "total_variation": float(np.abs(distances).sum() / 2),
        "p_value": float(tested.pvalue) if by_units is None else by_units,
        "most_different": names[most],
        "share_in_train": float(shares[0, most]),
        "share_in_validation": float(shares[1, most]),
        "missing_in_validation": [name for name in names if of_validation[name] == 0],
        "missing_in_train": [name for name in names if of_train[name] == 0],
    }


def _probability_of_classes(
    labels: Sequence[Label], num_train: int, names: Sequence[str], units: Any, seed: int
) -> float | None:
    """Of the chi-square statistic, with what stays together on one side."""
    number_of = {name: number for number, name in enumerate(names)}
    classes = [[number_of[name] for name in class_counts([label])[1]] for label in labels]
    documents = np.repeat(np.arange(len(labels)), [len(each) for each in classes])
    numbers = np.array([number for each in classes for number in each], dtype=np.int64)
    totals = np.bincount(numbers, minlength=len(names))

    def statistic(is_validation: np.ndarray) -> float:
        of_validation = np.bincount(numbers[is_validation[documents]], minlength=len(names))
        expected = totals * (of_validation.sum() / max(totals.sum(), 1))
        rest = totals - expected
        if not expected.all() or not rest.all():
            return 0.0
        return float(((of_validation - expected) ** 2 * (1 / expected + 1 / rest)).sum())

    return _probability_by_units(statistic, num_train, len(labels) - num_train, units, seed)


def domain_shift(train: Sequence[str], validation: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """How well a linear classifier on TF-IDF features tells validation from training documents it has not seen. One
    document of each unit is to be given, since copies on one side would be recognized, and at most MAX_DOCUMENTS.

    The documents are halved; a classifier of each half ranks the other. Were both sides of one source, the ranks of the
    documents that a classifier has not seen would be in random order, so the Mann-Whitney test gives the probability of
    such ranks by chance. `p_value` is the least of both halves and directions, times four (Bonferroni): it assumes
    nothing about how the halves depend on each other. The area under the curve is the probability that a validation
    document is ranked above a training one: 0.5 is a coin. Its interval is by DeLong's variance.
    """
    sides = [train, validation]
    counts = {"train_documents": len(sides[0]), "validation_documents": len(sides[1]), "confidence": CONFIDENCE}
    nothing = {"auc": None, "interval": None, "p_value": None, **counts}
    if min(map(len, sides)) < MIN_DOCUMENTS:
        return {**nothing, "reason": f"a classifier needs {MIN_DOCUMENTS} different texts or groups on each side"}
    labels = np.repeat([0, 1], [len(sides[0]), len(sides[1])])
    try:
        classifier = SplitClassifier([*sides[0], *sides[1]], labels)
    except (ValueError, MissingExtra) as error:
        return {**nothing, "reason": str(error)}
    # Each half has its share of both sides.
    draw = generator("data-report-folds", seed)
    halves = np.concatenate([draw.permutation(np.arange(len(side)) % 2) for side in sides])
    areas, variances, tails = [], [], []
    for half in (0, 1):
        held_out = halves == half
        scores = classifier.scores(held_out)
        positive, negative = scores[labels[held_out] == 1], scores[labels[held_out] == 0]
        area, variance = area_under_curve(positive, negative)
        areas.append(area)
        variances.append(variance)
        tails.append([_rank_test(positive, negative, side) for side in ("greater", "less")])
    area = float(np.mean(areas))
    reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt(np.mean(variances) / 2))
    of_train, of_validation = classifier.typical_terms(NAMED_TERMS)
    return {
        "auc": area,
        "interval": [max(0.0, area - reach), min(1.0, area + reach)],
        "p_value": min(1.0, 4 * float(np.min(tails, axis=0)[0 if area >= 0.5 else 1])),
        **counts,
        "typical_of_train": of_train,
        "typical_of_validation": of_validation,
        "reason": None,
    }


def _rank_test(positive: np.ndarray, negative: np.ndarray, alternative: Any) -> float:
    if (np.concatenate([positive, negative]) == positive[0]).all():
        return 1.0
    tested: Any = stats.mannwhitneyu(positive, negative, alternative=alternative, method="asymptotic")
    return float(tested.pvalue)


def correct(facts: dict[str, Any]) -> None:
    """Of several tests one is improbable by chance sooner than of one: `p_corrected` is the p-value times the number
    of comparisons (Bonferroni), which are those of lengths, tokens and labels, and the classifier."""
    facts["tests"] = 4 if facts["labels"] else 3
    for tested in (facts["length"], facts["labels"]):
        if tested:
            tested["p_corrected"] = min(1.0, facts["tests"] * tested["p_value"])


def verdict(auc: float | None, p_value: float | None, reason: str | None = None) -> str:
    """In words; the test decides whether there is something to see at all."""
    if auc is None or p_value is None:
        return f"skipped: {reason}"
    if p_value >= P_VALUE:
        return "no shift detected"
    if auc < 0.5:
        return "documents have near copies on the other side"
    return "slight shift" if auc < SLIGHT else "clear shift" if auc < CLEAR else "strong shift"


def one_of_each(units: Sequence[Hashable]) -> list[int]:
    """The first document of each unit."""
    return sorted({unit: index for index, unit in reversed(list(enumerate(units)))}.values())


def longest_within(lengths: Sequence[int], budget: int) -> int | None:
    """The length to cut texts at so that all together are within the budget; None where they are as they are."""
    if sum(lengths) <= budget:
        return None
    left = budget
    for number, length in enumerate(ordered := sorted(lengths)):
        if length * (len(ordered) - number) > left:
            return left // (len(ordered) - number)
        left -= length
    return None


def _numbered(units: Sequence[Hashable]) -> np.ndarray:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)


def area_under_curve(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float]:
    """The probability that a positive scores above a negative, ties counted half, and DeLong's variance of it."""
    ranks = stats.rankdata(np.concatenate([positive, negative]))
    m, n = len(positive), len(negative)
    # Of each document, the share of the other side that it is on the right side of.
    above = (ranks[:m] - stats.rankdata(positive)) / n
    below = 1 - (ranks[m:] - stats.rankdata(negative)) / m
    variance = (above.var(ddof=1) / m if m > 1 else 0.0) + (below.var(ddof=1) / n if n > 1 else 0.0)
    return float(above.mean()), float(variance)


def drawn(count: int, seed: int, side: int) -> list[int]:
    """Which of so many documents the classifier sees."""
    if count <= MAX_DOCUMENTS:
        return list(range(count))
    return np.sort(generator("data-report-domain", seed, side).permutation(count)[:MAX_DOCUMENTS]).tolist()


def counted(documents: Sequence[np.ndarray], vocab_size: int) -> Sparse:
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
