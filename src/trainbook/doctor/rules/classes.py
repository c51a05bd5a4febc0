"""Classifiers: whether they beat a linear model, and whether they predict every class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from trainbook.doctor.finding import Finding
from trainbook.doctor.remedies import change, longer
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View

FEW_TARGETS = 20  # fewer evaluated samples say little about an accuracy


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
            accuracy=accuracy,
            baseline=baseline,
        )


@rule(
    "classes-not-predicted",
    symptom="underfitting",
    looks_at="the mean F1 over classes (f1_macro) against the accuracy",
    thresholds="0.15 below the accuracy, and no higher than if one class were never predicted; at the end of the run",
    source="the definition: a class that is never predicted has an F1 of 0, so the mean over C classes is at most "
    "(C - 1) / C",
    fault="labels of which one is rare",
    causes=("classes-missed",),
    needs=("eval:accuracy", "eval:f1_macro"),
)
def classes_not_predicted(view: View) -> Iterator[Finding]:
    row = best_evaluation(view)
    if row.get("f1_macro") is None or not view.has_ended or float(row.get("targets") or 0) < FEW_TARGETS:
        return
    accuracy, f1 = float(row["accuracy"]), float(row["f1_macro"])
    uniform = view.fact("uniform_loss")
    classes = round(math.exp(uniform)) if view.task == "classify" and uniform else None
    most = (classes - 1) / classes if classes and classes > 1 else 1.0
    if accuracy - f1 < 0.15 or f1 > most:
        return
    evidence = f"the accuracy is {accuracy:.1%}, but the mean F1 over classes is {f1:.1%}"
    is_improving = row["step"] == view.record.rows("eval").having("accuracy")[-1]["step"]
    override = longer(view) if is_improving else change(view, "evaluation.metric_for_best_model", "f1_macro")
    steps = (0, row["step"])
    yield finding(
        "warning",
        "classes-missed",
        0.8,
        evidence,
        steps=steps,
        override=override,
        is_by_exclusion=True,
        accuracy=accuracy,
        f1=f1,
    )
