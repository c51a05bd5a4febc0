"""Classifiers: whether they beat a linear model, and whether they predict every class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.curves import validation_gain, validation_has_stopped
from trainbook.doctor.remedies import change, longer
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View
from trainbook.finding import Finding

FEW_TARGETS = 20  # fewer evaluated samples say little about an accuracy
AROUND = 10  # rows that a level is read from
FALLS = 0.1  # of the validation loss, over the last half of a run: enough to expect more of the same from more steps
HARDLY_FALLS = 0.02
LOOK_AT_LABELS = (
    "Look at the validation records that are predicted wrongly (`trainbook predict`): labels that are wrong cannot be "
    "learned, and rare classes need more samples."
)


def best_evaluation(view: View) -> dict[str, Any]:
    """The evaluation that chooses the model which is kept; the last one if none is marked."""
    rows = view.record.rows("eval").having("accuracy")
    return (rows.with_true("best") or rows)[-1]


@rule(
    "below-baseline",
    symptom="underfitting",
    looks_at="the accuracy of the best evaluation against that of the linear baseline (evaluation.baseline)",
    thresholds="below it by 1 percentage point and by 2 standard errors of the difference, at the end of the run",
    source="reasoning: TF-IDF with a linear classifier costs seconds; what is below it was not worth training",
    fault="a classifier that is trained too briefly",
    causes=("baseline-missed",),
    needs=("eval:accuracy", "eval:baseline_accuracy"),
)
def below_baseline(view: View) -> Iterator[Finding]:
    row = best_evaluation(view)
    accuracy, baseline = float(row["accuracy"]), row.get("baseline_accuracy")
    targets = float(row.get("targets") or 0)
    if baseline is None or not view.has_ended or targets < FEW_TARGETS:
        return
    baseline = float(baseline)
    error = math.sqrt((accuracy * (1 - accuracy) + baseline * (1 - baseline)) / targets)
    if baseline - accuracy > max(0.01, 2 * error):
        evidence = (
            f"the accuracy is {accuracy:.1%} at step {row['step']:,}; a linear model on the words of the same texts "
            f"reaches {baseline:.1%}"
        )
        yield finding(
            "warning",
            "baseline-missed",
            0.9,
            evidence,
            steps=(0, row["step"]),
            is_by_exclusion=True,
            remedy=NOT_LONGER if validation_has_stopped(view) else None,
            accuracy=accuracy,
            baseline=baseline,
            is_observed=True,
        )


NOT_LONGER = (
    "Validation has stopped improving: search for a better learning rate, or start from a pretrained model; a linear "
    "model may be all that this data needs."
)


@rule(
    "classes-not-predicted",
    symptom="underfitting",
    looks_at="the mean F1 over classes (f1_macro) against the accuracy, or the micro F1 where samples have several "
    "labels, and whether the validation loss still falls",
    thresholds="0.15 below it, and no higher than if one class were never predicted; at the end of the run. "
    f"More steps are advised only if the validation loss fell by {FALLS:.0%} over the last half of the run",
    source="the definition: a class that is never predicted has an F1 of 0, so the mean over C classes is at most "
    "(C - 1) / C; what more steps gain was measured on small classifiers with clean and with wrong labels",
    fault="labels of which one is rare",
    causes=("classes-missed",),
    needs=("eval:accuracy", "eval:f1_macro"),
)
def classes_not_predicted(view: View) -> Iterator[Finding]:
    row = best_evaluation(view)
    if row.get("f1_macro") is None or not view.has_ended or float(row.get("targets") or 0) < FEW_TARGETS:
        return
    # Where samples have several labels, an accuracy is of all labels of a sample at once; otherwise both are one.
    micro = row.get("f1_micro") if view.task == "classify_many" else None
    name, accuracy = ("accuracy", float(row["accuracy"])) if micro is None else ("micro F1", float(micro))
    f1 = float(row["f1_macro"])
    uniform = view.fact("uniform_loss")
    classes = round(math.exp(uniform)) if view.task == "classify" and uniform else None
    most = (classes - 1) / classes if classes and classes > 1 else 1.0
    if accuracy - f1 < 0.15 or f1 > most:
        return
    evidence = f"the {name} is {accuracy:.1%}, but the mean F1 over classes is {f1:.1%}"
    gain = validation_gain(view)
    override, remedy = _for_missed_classes(view, row, gain)
    if gain is not None:
        went = "hardly changed" if abs(gain) < 5e-4 else f"{'fell' if gain > 0 else 'rose'} by {abs(gain):.1%}"
        evidence += f"; the validation loss {went} over the last half of the run"
    steps = (0, row["step"])
    yield finding(
        "warning",
        "classes-missed",
        0.8,
        evidence,
        steps=steps,
        override=override,
        remedy=remedy,
        is_by_exclusion=True,
        accuracy=accuracy,
        f1=f1,
    )


def _for_missed_classes(view: View, row: dict[str, Any], gain: float | None) -> tuple[str | None, str | None]:
    """The change to try, and what to do in words. Where the loss hardly falls, wrong labels may be why, and more steps
    would only fit them: of small classifiers those above `FALLS` gained from twice the steps in 6 of 6 runs."""
    rows = view.record.rows("eval").having("f1_macro")
    is_last = row["step"] == rows[-1]["step"]
    if is_last and (gain is None or gain >= FALLS):
        return longer(view), "Train longer: the validation loss is still falling."
    best = max(rows, key=lambda each: float(each["f1_macro"]))
    here, there = float(row["f1_macro"]), float(best["f1_macro"])
    if there - here > 2 * math.sqrt(max(0.0, there * (1 - there)) / float(row["targets"])):
        said = f"Choose the best model by f1_macro: it was {there:.1%} at step {best['step']:,}."
        return change(view, "evaluation.metric_for_best_model", "f1_macro"), said
    has_stopped = gain is not None and gain < HARDLY_FALLS
    return None, LOOK_AT_LABELS if has_stopped else f"{LOOK_AT_LABELS} Train longer only if neither is the case."


MOST_CLASSES = 0.5  # of those of the training data: a validation split without so many is no sample of the same data


@rule(
    "classes-not-judged",
    symptom="fluctuating validation",
    looks_at="classes of the training data that the validation split has no sample of",
    thresholds=f"any; an error if they are {MOST_CLASSES:.0%} of the classes or more",
    source="the definition: the mean F1 is one over the classes that occur in the validation split or are predicted",
    fault="a rare class that is only in the training data; a validation split of one class",
    causes=("classes-unjudged",),
    needs=("start:unjudged_classes",),
)
def classes_not_judged(view: View) -> Iterator[Finding]:
    names, uniform = list(view.fact("unjudged_classes")), view.fact("uniform_loss")
    if not names:
        return
    told = ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    evidence = f"{told} {'is' if len(names) == 1 else 'are'} in the training data, but not in the validation split"
    if uniform and len(names) >= MOST_CLASSES * math.exp(uniform):
        evidence += f": {len(names)} of {round(math.exp(uniform))} classes"
        yield finding("error", "classes-unjudged", 0.9, evidence, classes=names)
    else:
        yield finding("warning", "classes-unjudged", 0.5, evidence, classes=names)  # after what kept it from learning


LEARNED, NEVER_GOOD = 0.95, 0.4  # of the loss of guessing by frequency: between them validation was at its best
AS_LOW = 0.85  # of the validation loss at its best, for a training loss that is about the same


@rule(
    "labels-memorized",
    symptom="overfitting",
    looks_at="whether training and validation loss came down together to a level far above zero, and only the training "
    "loss fell from there",
    thresholds=f"validation at its best between {NEVER_GOOD:.0%} and {LEARNED:.0%} of the loss of guessing by "
    f"frequency, with a training loss of at least {AS_LOW:.0%} of it; later the training loss falls by "
    "30 %, and the validation loss rises by 10 %",
    source="reasoning: what texts tell of their labels helps on both sides; what is left then are labels that only "
    "memorizing explains. Texts that do not say enough look the same, so this is only a possibility",
    fault="a third of the labels wrong",
    causes=("labels-noisy",),
    needs=("loss", "eval:loss", "start:prior_loss"),
)
def labels_memorized(view: View) -> Iterator[Finding]:
    at, evaluations = view.finite("loss", "eval")
    steps, losses = view.losses()
    if view.task not in ("classify", "classify_many", "tag") or len(evaluations) < 4 or len(losses) < 2 * AROUND:
        return
    place = int(evaluations.argmin())
    best, prior = float(evaluations[place]), float(view.fact("prior_loss"))
    then = float(np.median(losses[np.argsort(np.abs(steps - at[place]), kind="stable")[: 2 * AROUND]]))
    now, last = float(np.median(losses[-AROUND:])), float(evaluations[-1])
    if not NEVER_GOOD * prior < best < LEARNED * prior or then < AS_LOW * best:
        return
    if now > 0.7 * then or last < 1.1 * best:
        return
    evidence = (
        f"at step {int(at[place]):,} the validation loss was lowest ({best:.3g}), and the training loss about the same "
        f"({then:.3g}); since then the training loss fell to {now:.3g}, and the validation loss rose to {last:.3g}: "
        "only single records were left to learn"
    )
    yield finding("info", "labels-noisy", 0.3, evidence, steps=(at[place], at[-1]), best=best, then=then, now=now)
