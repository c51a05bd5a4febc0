"""Checks of the labels: classes that are balanced, that follow from the texts, and that are mostly right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from trainbook.check.answers import label_in_input
from trainbook.check.result import NO_LABELS, Check, CheckOutcome, failed, passed, remark, skipped
from trainbook.check.shares import by_share, worst
from trainbook.check.subject import CheckSubject
from trainbook.data.far_numbers import REMEDY, far_numbers
from trainbook.data.linear import LabelBaseline
from trainbook.data.prepare.hashes import generator
from trainbook.data.report import shift
from trainbook.data.report.findings import label_balance, label_shift, label_spellings, spelled_alike
from trainbook.data.report.gather import SplitReport
from trainbook.data.report.labels import class_counts, describe_labels
from trainbook.data.sources.records import Document
from trainbook.errors import MissingExtra
from trainbook.loop.build import request_of

FOLDS = 5
FEWEST = 60  # texts, for a baseline to be asked
FEWEST_PER_CLASS = 4  # texts on average
FEWEST_VALIDATION = 30
DRAWS = 999  # random orders of the labels that a baseline is compared with
SURE, VERY_SURE = 0.01, 0.001  # that labels follow from texts: the share of random orders that do as well
FEWEST_SUREST = 30  # texts on which the baseline is surest
DIFFERENT = 4.0  # standard deviations between two scores


def class_balance(subject: CheckSubject) -> CheckOutcome:
    """As `trainbook data` sees it, and by shares: of the largest class, and of classes that one split lacks."""
    sides = subject.sample.sides
    described = {name: describe_labels(side.labels, side.tags) for name, side in sides.items()}
    if described["train"] is None:
        return skipped(NO_LABELS)
    if described["train"]["kind"] == "number":
        if described["train"]["standard_deviation"] > 0:
            return _far_targets(sides["train"]) or skipped("labels are numbers, not classes")
        told = f"all training texts have the same number, {described['train']['mean']:g}"
        return failed(told, "there is nothing to learn", "Set data.label_field to another field.")
    facts = _facts(subject, described)
    outcomes = []
    for found in (*label_balance(facts), *label_spellings(facts), *label_shift(facts)):
        if found["rule"] in ("label_missing", "label_unjudged"):  # by share, below
            continue
        if found["rule"] == "label_spelling":
            outcomes.append(by_share("spelling", _misspelled(described), found["text"], *ADVICE[found["rule"]]))
            continue
        made = {"error": failed, "warning": remark}.get(found["severity"])
        outcomes.append(made(found["text"], *ADVICE[found["rule"]]) if made else passed(found["text"]))
    train = described["train"]
    majority = train["majority_share"] if train["kind"] == "class" else 0.0
    outcomes.append(
        by_share(
            "majority",
            majority,
            f"{majority:.1%} of the training texts are of the class '{train['majority']}'",
            "a model that always gives this answer scores as well as a good one",
            "Judge by macro F1, and collect more of the other classes.",
            "evaluation.metric_for_best_model=f1_macro",
        )
    )
    outcomes += _lacking(sides)
    numbers = {name: each["counts"] for name, each in described.items() if each}
    found = worst(*outcomes)
    return _with_numbers(found, classes=train["classes"], majority_share=train["majority_share"], counts=numbers)


def _far_targets(side: SplitReport) -> CheckOutcome | None:
    found = far_numbers(np.array([label for label in side.labels if isinstance(label, float)]))
    if found is None:
        return None
    outcome = failed if len(found.places) == 1 else remark
    cause = "a squared error is about these records alone, and the model learns nothing of the others"
    return outcome(found.told(lambda _: side.place_of(found.farthest)), cause, REMEDY, share=found.share)


ADVICE = {
    "label_balance": ("classes are far from equally frequent", "Collect more of the rare classes, where you can."),
    "too_many_classes": ("the label is an id or a free text, not a class", "Set data.label_field to another field."),
    "one_class": ("there is nothing to learn", "Set data.label_field to another field."),
    "label_unknown": ("a missing label is taken for a class", "Leave these records out."),
    "label_spelling": ("classes that mean the same are written differently", "Write them the same way."),
    "label_shift": ("the splits were not drawn from the same data", "Give a stratified file as data.validation."),
    "label_shares": ("chance", ""),
}


def _facts(subject: CheckSubject, described: dict[str, Any]) -> dict[str, Any]:
    """What the rules of the data report read."""
    sides = subject.sample.sides
    between = None
    if "validation" in sides:
        train, validation = sides["train"], sides["validation"]
        between = {
            "length": None,
            "labels": shift.label_shift(
                train.labels,
                validation.labels,
                train.tags,
                validation.tags,
                units=[*train.label_units, *validation.label_units],
            ),
        }
        shift.correct(between)
    return {
        "sides": {name: {"labels": described[name], "documents": side.num_documents} for name, side in sides.items()},
        "fields": subject.data.summary.get("fields", {}),
        "shift": between,
    }


def _misspelled(described: dict[str, Any]) -> float:
    """The share of labels that are not written as most of the same meaning are."""
    spellings: dict[str, Counter[str]] = {}
    for name, count in described["train"]["counts"].items():
        spellings.setdefault(spelled_alike(name), Counter())[name] += count
    total = sum(each.total() for each in spellings.values())
    return 1 - sum(max(each.values()) for each in spellings.values()) / total


def _lacking(sides: dict[str, SplitReport]) -> list[CheckOutcome]:
    """Classes that one split has and the other has not."""
    if "validation" not in sides:
        return []
    counts = {name: class_counts(side.labels, side.tags)[1] for name, side in sides.items()}
    outcomes = []
    for limit, one, other, cause, advice in (
        (
            "not_judged",
            "train",
            "validation",
            "no score will tell how well these classes are predicted",
            "hold out more",
        ),
        (
            "not_taught",
            "validation",
            "train",
            "the model never sees an example of these classes",
            "add some to training",
        ),
    ):
        missing = [name for name in counts[one] if name not in counts[other]]
        share = sum(counts[one][name] for name in missing) / max(1, sum(counts[one].values()))
        names = ", ".join(f"'{name}'" for name in missing[:3]) + (" and others" if len(missing) > 3 else "")
        outcomes.append(
            by_share(
                limit,
                share,
                f"{len(missing)} classes of {one} are not in {other}: {names} ({share:.1%} of {one})",
                cause,
                f"Draw both splits from the same data, or {advice}.",
            )
        )
    return outcomes


def _with_numbers(outcome: CheckOutcome, **numbers: Any) -> CheckOutcome:
    return type(outcome)(**{**vars(outcome), "numbers": {**outcome.numbers, **numbers}})


# A linear baseline, cross-validated: what can be said of labels before anything is trained.


@dataclass(frozen=True)
class Baseline:
    """Of texts with one class each: what a model of the other texts says of each."""

    labels: np.ndarray  # (N,) numbers of classes
    scores: np.ndarray  # (N, classes)
    p_value: float  # that labels in random order would be predicted as well

    @property
    def predicted(self) -> np.ndarray:
        return self.scores.argmax(1)

    @property
    def accuracy(self) -> float:
        return float((self.predicted == self.labels).mean())

    @property
    def guess(self) -> float:
        return float(np.bincount(self.labels).max() / len(self.labels))


def cross_validated(texts: Sequence[str], labels: np.ndarray, seed: int, *, characters: bool = False) -> Baseline:
    """Equal texts are in one fold, so that none is known from another fold."""
    numbers: dict[str, int] = {}
    units = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
    folds = generator("check-folds", seed).permutation(len(numbers))[units] % FOLDS
    scores = LabelBaseline(texts, characters=characters).cross_validated(labels, folds)
    return Baseline(labels, scores, chance_of(scores.argmax(1), labels, seed))


def chance_of(predicted: np.ndarray, labels: np.ndarray, seed: int) -> float:
    """The share of random orders of the labels that agree as well with what is predicted, by the mean recall of the
    classes: a class that is always guessed is worth nothing."""
    weights = 1.0 / np.bincount(labels)[labels]
    reached = weights[predicted == labels].sum()
    draw = generator("check-orders", seed)
    orders = (draw.permutation(len(labels)) for _ in range(DRAWS))
    as_good = sum(weights[order][predicted == labels[order]].sum() >= reached - 1e-9 for order in orders)
    return (1 + as_good) / (1 + DRAWS)


def _classified(documents: Sequence[Document]) -> tuple[list[str], list[str]]:
    """Texts and labels of those that have one class."""
    pairs = [(document.text, document.label) for document in documents if isinstance(document.label, str)]
    return [text for text, _ in pairs], [label for _, label in pairs]


def _baseline(subject: CheckSubject) -> Baseline | CheckOutcome:
    """Of the training texts, made once; or why there is none."""
    if (known := subject.notes.get("baseline")) is not None:
        return known
    texts, labels = _classified(list(subject.sample.sides["train"].documents))
    if not labels:
        has_labels = request_of(subject.asked).records in ("labelled", "tagged")
        return skipped("texts do not have one class each" if has_labels else NO_LABELS)
    names, numbers = np.unique(labels, return_inverse=True)
    if len(texts) < FEWEST or len(names) < 2:
        return skipped(f"a baseline needs {FEWEST} texts of two classes, but there are {len(texts)} of {len(names)}")
    if len(texts) < FEWEST_PER_CLASS * len(names):
        return skipped(f"{len(names)} classes for {len(texts)} texts are too many for a baseline")
    seed = subject.config.training.seed
    try:
        found = cross_validated(texts, numbers, seed)
        if found.p_value > SURE:  # words may not be what matters, or not be written apart
            found = min(found, cross_validated(texts, numbers, seed, characters=True), key=lambda each: each.p_value)
    except MissingExtra as error:
        return skipped(str(error))
    subject.notes["baseline"] = found
    return found


def label_signal(subject: CheckSubject) -> CheckOutcome:
    """Whether labels follow from texts at all, in their order, and in validation as in training."""
    found = _baseline(subject)
    if isinstance(found, CheckOutcome):
        return found
    told = (
        f"a linear baseline predicts {found.accuracy:.1%} of {len(found.labels):,} labels by cross-validation, the "
        f"largest class is {found.guess:.1%}"
    )
    numbers = {"accuracy": found.accuracy, "guess": found.guess, "p_value": found.p_value, "texts": len(found.labels)}
    if found.p_value > SURE:
        return _of_neighbours(subject, told, numbers) or remark(
            f"{told}: no better than for labels in random order (p = {found.p_value:.2g})",
            "the labels may be shuffled or from another column; or words alone do not decide them, as in sums or logic",
            "Read ten texts with their labels. If they do not fit, no model can learn them.",
            **numbers,
        )
    return _in_validation(subject, found, told, numbers) or passed(told, **numbers)


def _of_neighbours(subject: CheckSubject, told: str, numbers: dict[str, Any]) -> CheckOutcome | None:
    """Labels that fit the text of the row before or after."""
    texts, labels = _classified(subject.sample.neighbours)
    _, classes = np.unique(labels, return_inverse=True)
    for by, where in ((1, "after"), (-1, "before")):
        moved = cross_validated(texts, np.roll(classes, -by), subject.config.training.seed)
        if moved.p_value <= VERY_SURE:
            return failed(
                f"{told}, but {moved.accuracy:.1%} with the label of the row {where} each text",
                f"the labels are moved: each text has that of the row {'before' if by > 0 else 'after'} it",
                "Look for a header that was skipped in one column, or for a column that was sorted or shifted alone.",
                **numbers,
                moved_by=by,
                moved_accuracy=moved.accuracy,
            )
    return None


def _in_validation(subject: CheckSubject, found: Baseline, told: str, numbers: dict[str, Any]) -> CheckOutcome | None:
    """Labels that mean something else there: what predicts those of training fails."""
    sides = subject.sample.sides
    if "validation" not in sides:
        return None
    train, its_labels = _classified(list(sides["train"].documents))
    texts, labels = _classified(list(sides["validation"].documents))
    known = set(its_labels)
    pairs = [(text, label) for text, label in zip(texts, labels, strict=True) if label in known]
    if len(pairs) < FEWEST_VALIDATION:
        return None
    names, classes = np.unique([*its_labels, *(label for _, label in pairs)], return_inverse=True)
    held_out = np.arange(len(classes)) >= len(train)
    scores = LabelBaseline([*train, *(text for text, _ in pairs)]).scores(classes, held_out)
    accuracy = float((scores.argmax(1) == classes[held_out]).mean())
    guess = float(np.bincount(classes[held_out]).max() / len(pairs))
    spread = np.sqrt(found.accuracy * (1 - found.accuracy) * (1 / len(pairs) + 1 / len(train)))
    numbers = {**numbers, "validation_accuracy": accuracy, "classes": len(names)}
    if found.accuracy - accuracy < DIFFERENT * spread or accuracy >= (found.accuracy + guess) / 2:
        return passed(f"{told}; {accuracy:.1%} in validation", **numbers)
    is_guess = chance_of(scores.argmax(1), classes[held_out], subject.config.training.seed) > SURE
    made = failed if is_guess else remark
    return made(
        f"{told}, but {accuracy:.1%} in validation",
        "validation labels mean something else: other names or numbers for the same classes, or rows out of order"
        if is_guess
        else "validation texts are of another kind than training texts, or many of their labels are wrong",
        "Compare texts of one label in both splits.",
        **numbers,
    )


def label_noise(subject: CheckSubject) -> CheckOutcome:
    """Equal texts with different labels; and how often labels differ where a cross-validated baseline is surest."""
    found, contradictory = _baseline(subject), subject.sample.contradictions
    if contradictory is not None and contradictory.texts:
        share = contradictory.documents / max(1, contradictory.of)
        example = contradictory.examples[0] if contradictory.examples else None
        such = f", such as {example['one']} ('{example['label']}') and {example['other']}" if example else ""
        outcome = by_share(
            "contradictions",
            share,
            f"{contradictory.documents:,} of {contradictory.of:,} texts ({share:.1%}) have an equal text with another "
            f"label{such}",
            "at least one label of each pair is wrong, or the text alone does not decide it",
            "Check the labels of equal texts.",
            contradictory_share=share,
        )
        if outcome.status != "passed":
            return outcome
    if isinstance(found, CheckOutcome):
        return found
    if found.p_value > SURE:
        return skipped("the baseline predicts no better than chance, so it cannot tell wrong labels from right ones")
    share, count, interval = noise_estimate(found)
    return by_share(
        "label_noise",
        share,
        f"of the {count:,} texts on which a cross-validated baseline is surest, {share:.1%} have another label (95 % "
        f"interval {interval[0]:.0%} to {interval[1]:.0%})",
        f"about {share:.0%} of all labels are wrong; or texts that are typical of one class rightly have another",
        "Read the texts on which a baseline is sure and the label is another one, and correct them.",
        noise=share,
        texts=count,
        interval=list(interval),
    )


def noise_estimate(found: Baseline) -> tuple[float, int, tuple[float, float]]:
    """The share of other labels among the texts on which the baseline is surest, of how many texts, and its interval.

    The surer a baseline, the rarer are its own mistakes; labels that are wrong by chance stay. So the number of texts,
    at least a twentieth of all, is the one with the lowest share."""
    ordered = np.sort(found.scores, axis=1)
    with np.errstate(invalid="ignore"):
        margin = np.nan_to_num(ordered[:, -1] - ordered[:, -2], posinf=0.0)
    wrong = (found.predicted != found.labels)[np.argsort(-margin, kind="stable")]
    total = len(wrong)
    counts = np.arange(min(total, max(FEWEST_SUREST, total // 20)), max(FEWEST_SUREST, total // 2) + 1)
    counts = counts[counts <= total]
    shares = np.cumsum(wrong)[counts - 1] / counts
    best = len(shares) - 1 - int(shares[::-1].argmin())  # of equal shares, that of the most texts
    count = int(counts[best])
    interval: Any = stats.binomtest(int(wrong[:count].sum()), count).proportion_ci(0.95)
    return float(shares[best]), count, (float(interval.low), float(interval.high))


CHECKS = (
    Check("class_balance", "no class dominates, and both splits have all classes", class_balance, computes=False),
    Check("label_in_input", "no single token of the input gives the answer away", label_in_input, computes=False),
    Check("label_signal", "labels follow from the texts, in both splits", label_signal, computes=False),
    Check("label_noise", "few labels are wrong", label_noise, computes=False),
)
