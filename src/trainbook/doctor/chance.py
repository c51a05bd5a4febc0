"""Accuracies against guessing: a uniform guess, and always predicting the most frequent class.

An accuracy far below that of a uniform guess takes knowledge to reach: the labels of the two splits are mapped
differently. One clearly above that of the most frequent class proves that the inputs say something about the targets.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from trainbook.doctor.statistics import OF_A_MEDIAN, noise_of
from trainbook.doctor.view import STARTS_BY, View

FEWEST_SAMPLES = 100  # assumed of an evaluation whose size is not known
FAR_BELOW = 0.5  # of the accuracy of a uniform guess: one without any skill is off by more than sampling noise
BY_CHANCE = 1e-3  # how probable an accuracy that is called below chance may be
BEATEN_BY_CHANCE = 1e-2  # the same of one that is called above that of the most frequent class
FEW_ERRORS = 0.5  # of the errors of always predicting the most frequent class
ABOUT_A_GUESS = 1.3  # times the accuracy of a uniform guess
TIMES_A_GUESS = 1.5  # the same where classes may be of different size, so that a constant is right more often
AT_THE_START = 0.1  # of the run: a first row this early has about the loss of the untrained model
LEAST_LOSS = 0.9 * math.log(2)  # of an untrained classifier: a lower first loss is that of a model that was trained
MOST_CLASSES = 1_000_000  # a higher first loss is that of no untrained classifier
LEARNED = 0.7  # of the loss of guessing by frequency: a training loss below it is that of a model that learned
AS_GUESSING = 0.95  # of the loss of guessing by frequency: one above it has learned no more than the frequencies
AS_GOOD_AS_GUESSING = 0.95  # of the loss of any guessing: what ends above has learned nothing
LATE_ROWS = 5  # of a log, at its end
MOST_GIVEN = 100_000  # samples whose labels are counted one by one
ERRORS = 2.33  # of a level, that it is lower by with a probability of 1 %
ALIKE = 0.1  # deviation of the logarithms of rows: where it is less, each tells the loss of an untrained model
SAME = 1e-3  # two shares that differ by less are one


class Guessing(NamedTuple):
    accuracy: float  # of a uniform guess
    uniform_loss: float
    prior_loss: float  # of guessing by frequency
    is_known: bool  # False: from the first loss of a log that does not tell the number of classes


class Majority(NamedTuple):
    share: float  # of the most frequent class of the validation split
    is_exact: bool  # False: it is at most that …
    is_of_training: bool = False  # … if the validation split has classes as often as the training data


def guessing_of(view: View) -> Guessing | None:
    """None: not a classifier, or nobody knows how many classes it has."""
    uniform, prior = view.fact("uniform_loss"), view.fact("prior_loss")
    if view.task == "classify" and uniform:
        return Guessing(math.exp(-uniform), float(uniform), float(uniform if prior is None else prior), True)
    if view.record.origin == "trainbook" or view.task is not None:
        return None
    steps, losses = view.losses()
    if not len(losses) or steps[0] > max(3, AT_THE_START * view.total) or not view.has_floor:
        return None
    first = float(losses[:3].max())  # high rather than low: a chance that is too small accuses nobody
    if not LEAST_LOSS <= first <= math.log(MOST_CLASSES):
        return None
    return Guessing(min(0.5, math.exp(-first)), first, first, False)


def known_guessing(view: View) -> Guessing | None:
    """The same, only where it was counted what there is to guess: a log of another tool may tell the number of classes
    without the loss of guessing."""
    guessing, classes = guessing_of(view), view.fact("num_classes")
    if guessing is not None and guessing.is_known:
        return guessing
    if view.record.origin == "trainbook" or not isinstance(classes, int) or classes < 2:
        return None
    return Guessing(1 / classes, math.log(classes), math.log(classes), True)


def loss_of_guessing(view: View) -> float:
    """By the frequencies of the classes, or by their number alone; infinite where nobody knows."""
    prior, guessing = view.fact("prior_loss"), known_guessing(view)
    return float(prior or (guessing.prior_loss if guessing else math.inf))


def is_far_below_chance(accuracy: float, of_guessing: float, samples: float) -> bool:
    return accuracy < FAR_BELOW * of_guessing and _by_chance(accuracy, of_guessing, samples) < BY_CHANCE


def below_chance(view: View) -> str | None:
    """In words, that the baseline or a model that has learned its training data is right far less often than a uniform
    guess: neither overfitting nor a shift of the inputs does that."""
    guessing = guessing_of(view)
    if guessing is None:
        return None
    guess = f"a uniform guess has {'' if guessing.is_known else 'about '}{guessing.accuracy:.0%}"
    baseline = view.values("baseline_accuracy", "eval")
    if len(baseline) and is_far_below_chance(float(baseline[-1]), guessing.accuracy, _samples(view)):
        return f"a linear model on the words of the same texts has an accuracy of {baseline[-1]:.1%}; {guess}"
    late, evaluations = late_accuracies(view), view.values("loss", "eval")
    if len(late) < 2 or not len(evaluations) or not has_learned(view, guessing):
        return None
    if evaluations[-1] < guessing.uniform_loss or not is_far_below_chance(
        late.max(), guessing.accuracy, _samples(view)
    ):
        return None
    return (
        f"the training loss is {_late_loss(view):.3g}, but the accuracy on the validation split is {late[-1]:.1%} "
        f"(loss {evaluations[-1]:.3g}); {guess} (loss {guessing.uniform_loss:.3g})"
    )


def is_never_above_chance(view: View, accuracies: np.ndarray | None = None) -> bool:
    """No evaluation, or none of these, is more accurate than about a uniform guess."""
    guessing = known_guessing(view) or guessing_of(view)
    accuracies = accuracies_of(view) if accuracies is None else accuracies
    return guessing is not None and len(accuracies) > 0 and accuracies.max() < ABOUT_A_GUESS * guessing.accuracy


def has_learned(view: View, guessing: Guessing) -> bool:
    """Its training data, by the training loss."""
    return _late_loss(view) < LEARNED * guessing.prior_loss


def above_chance(view: View) -> str | None:
    """In words, that the inputs say something about the targets: the baseline, the model of late evaluations, or that
    of the best one is right more often than the most frequent class occurs, by more than chance."""
    majority, samples = _majority_of(view), _samples(view)
    if majority is None:
        return None
    baseline, late, found = view.values("baseline_accuracy", "eval"), late_accuracies(view), accuracies_of(view)
    tried = [
        ("a linear model on the words of the same texts has", float(baseline[-1]), 1) if len(baseline) else None,
        ("evaluations show", float(np.median(late)), 1) if len(late) else None,
        # Of many evaluations one is good by chance: any of them may be it.
        (f"the best of {len(found)} evaluations shows", float(found.max()), len(found)) if len(found) > 1 else None,
    ]
    for told, accuracy, chances in filter(None, tried):
        if accuracy > majority.share and chances * _beaten_by_chance(accuracy, majority, samples) < BEATEN_BY_CHANCE:
            most = "" if majority.is_exact else "at most "
            where = ", by the frequencies of the training data" if majority.is_of_training else ""
            return (
                f"{told} an accuracy of {accuracy:.1%}, and always predicting the most frequent class "
                f"{most}{majority.share:.1%}{where}"
            )
    return None


def knows_its_task(view: View) -> bool:
    """From the first evaluation to the last, a classifier makes at most half of the errors of a guess: by the
    frequencies of the validation split where they are known, or else by those of the training data. Whatever its loss
    is, and however little it learns, it is neither a guess nor stuck. Of a constant prediction the share of a class may
    be as high in a split of other frequencies, but the losses of its batches hardly differ."""
    accuracies, guessing, known = accuracies_of(view), known_guessing(view), view.fact("validation_majority")
    if guessing is None or not len(accuracies):
        return False
    losses = view.losses()[1]
    is_even = not len(losses) or losses.min() <= 0 or noise_of(np.log(losses)) <= ALIKE
    if predicts_one_class(view) and (is_even or len(view.values("f1_macro", "eval"))):
        return False
    share = _largest_share(guessing.prior_loss, 1 / guessing.accuracy) if known is None else float(known)
    majority, samples = Majority(share, False), _samples(view)
    return all(
        1 - accuracy <= FEW_ERRORS * (1 - share)
        and accuracy > share
        and _beaten_by_chance(accuracy, majority, samples) < BEATEN_BY_CHANCE
        for accuracy in (float(accuracies[0]), float(np.median(late_accuracies(view))))
    )


def predicts_one_class(view: View) -> bool:
    """Every evaluation is that of a constant prediction: by its macro F1, or where that is not known, by a validation
    loss no lower than that of guessing by frequency."""
    accuracies, evaluations, guessing = accuracies_of(view), view.values("loss", "eval"), guessing_of(view)
    if not len(accuracies) or not len(evaluations) or guessing is None:
        return False
    accuracy, scores = float(accuracies[-1]), view.values("f1_macro", "eval")
    if np.ptp(accuracies) > SAME or accuracy < (1 - SAME) * guessing.accuracy:
        return False
    if len(scores):
        return bool(np.abs(scores - _f1_of_constant(accuracy, guessing)).max() < SAME)
    known = view.fact("validation_prior_loss") or (guessing.prior_loss if guessing.is_known else None)
    # A constant prediction cannot have a lower loss than the entropy of "this class or another".
    return bool(evaluations.min() >= (_entropy(accuracy) if known is None else AS_GUESSING * float(known)))


def _majority_of(view: View) -> Majority | None:
    if (known := view.fact("validation_majority")) is not None:
        return Majority(float(known), _samples(view) >= (view.fact("validation_samples") or 0))
    guessing = guessing_of(view)
    if guessing is None:
        return None
    accuracies, scores = accuracies_of(view), view.values("f1_macro", "eval")
    if len(scores) == len(accuracies) > 0:
        expected = np.array([_f1_of_constant(each, guessing) for each in accuracies])
        constant = accuracies[(np.abs(scores - expected) < SAME) & (accuracies > 0.5)]
        if len(constant):
            return Majority(float(constant[0]), True)
    # A model that learns nothing else learns the frequencies: its loss is then their entropy.
    known = view.fact("validation_prior_loss") or (guessing.prior_loss if guessing.is_known else None)
    entropy = _lowest_late_loss(view) if known is None else float(known)
    share, constant = _largest_share(entropy, 1 / guessing.accuracy), _accuracy_of_constant(view)
    if constant > 0.5:
        return Majority(constant, True)
    return Majority(max(share, constant), False, not view.fact("validation_prior_loss"))


def _accuracy_of_constant(view: View) -> float:
    """Of late evaluations that agree to the last sample with a loss that a constant prediction may have: it is the
    share of a class of the validation split, which the most frequent one has at least. 0: they are of no constant."""
    late, evaluations = late_accuracies(view), view.values("loss", "eval")
    if len(late) < 2 or np.ptp(late) > SAME or not len(evaluations):
        return 0.0
    accuracy = float(late[-1])
    return accuracy if evaluations[-len(late) :].min() >= _entropy(accuracy) else 0.0


def _largest_share(entropy: float, classes: float) -> float:
    """Of the most frequent of so many classes, where their frequencies have this entropy: the others are all alike."""
    low, high = 1 / classes, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if _entropy(middle) + (1 - middle) * math.log(max(1.0, classes - 1)) > entropy:
            low = middle
        else:
            high = middle
    return high


def _f1_of_constant(accuracy: float, guessing: Guessing) -> float:
    return 2 * accuracy / (1 + accuracy) * guessing.accuracy


def _by_chance(accuracy: float, share: float, samples: float) -> float:
    """At most how probable an accuracy is that is as far from the share of right guesses (Chernoff's bound)."""
    if not 0 < share < 1:
        return 1.0
    parts = ((accuracy, share), (1 - accuracy, 1 - share))
    return math.exp(-samples * sum(found * math.log(found / expected) for found, expected in parts if found > 0))


def _beaten_by_chance(accuracy: float, majority: Majority, samples: float) -> float:
    """At most how probable such an accuracy is if the inputs say nothing."""
    probability = _by_chance(accuracy, majority.share, samples)
    return min(probability, among_given_labels(accuracy, majority.share, samples)) if majority.is_exact else probability


def among_given_labels(accuracy: float, share: float, samples: float) -> float:
    """At most how probable such an accuracy is where the labels are given, and predictions are dealt out to them at
    random, however many of these name another class than the most frequent one.

    So many predictions of another class that miss the most frequent one are distributed hypergeometrically, and no more
    predictions are right than are right about "the most frequent class or another". Along that distribution's tail each
    probability is to the one before at most as the second is to the first: a geometric series bounds their sum."""
    if samples > MOST_GIVEN:
        return 1.0  # of so many, the plain bound is as good
    count = round(samples)
    frequent = round(share * count)
    others = count - frequent
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])  # of factorials

    def ways(of: int, chosen: np.ndarray) -> np.ndarray:
        return logs[of] - logs[chosen] - logs[of - chosen]

    predicted = np.arange(count + 1)  # of another class
    least = np.ceil((round(accuracy * count) - frequent + predicted) / 2).astype(int)  # of these that have to be right
    lowest, highest = np.maximum(0, predicted - frequent), np.minimum(predicted, others)
    if (least <= lowest).any():
        return 1.0
    kept = least <= highest
    if not kept.any():
        return 0.0
    right, drawn = least[kept], predicted[kept]
    first = np.exp(ways(others, right) + ways(frequent, drawn - right) - ways(count, drawn))
    ratio = (others - right) * (drawn - right) / ((right + 1) * (frequent - drawn + right + 1))
    bound = np.where(ratio < 1, first / np.maximum(1 - ratio, 1e-12), 1.0)
    return float(min(1.0, bound.max()))


def _entropy(share: float) -> float:
    return -sum(each * math.log(each) for each in (share, 1 - share) if each > 0)


def accuracies_of(view: View) -> np.ndarray:
    found = view.values("accuracy", "eval")
    return found / 100 if len(found) and found.max() > 1 else found  # some log per cent


def late_accuracies(view: View) -> np.ndarray:
    found = accuracies_of(view)
    return found[-max(2, len(found) // 3) :]


def _late_loss(view: View) -> float:
    return float(np.median(view.losses()[1][-LATE_ROWS:]))


def _lowest_late_loss(view: View) -> float:
    """The same less its error, as far as the noise of single rows tells: a loss of batches is no exact one."""
    losses = view.losses()[1]
    error = OF_A_MEDIAN * noise_of(losses) / min(LATE_ROWS, len(losses)) ** 0.5
    return max(0.0, _late_loss(view) - ERRORS * error)


def _samples(view: View) -> float:
    """That an accuracy is a mean over."""
    counted, known = view.values("targets", "eval"), view.fact("validation_samples")
    if len(counted):
        return float(np.median(counted))
    limit = view.setting("evaluation.eval_max_samples")
    return float(min(known, limit or known)) if known else FEWEST_SAMPLES


def starts_by_guessing(view: View) -> bool:
    """A pretrained model that predicts tokens no better than a uniform guess before it is fine-tuned. The loss of a new
    head for labels starts there too, and tells nothing of the model below it."""
    uniform, losses = view.fact("uniform_loss"), view.losses()[1]
    if uniform is None or not view.is_fine_tuning or view.predicts_labels or not view.starts_by(STARTS_BY):
        return False
    return bool(losses[0] >= AS_GOOD_AS_GUESSING * uniform)
