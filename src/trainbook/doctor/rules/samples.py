"""What the first samples of a loader and the loss function tell, in a module or loop of the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.rule import finding, rule
from trainbook.doctor.scale import FAR, OFF_CENTRE, VERY_FAR, unusual_scale
from trainbook.doctor.view import View
from trainbook.finding import Finding

SORTED, ENOUGH = 0.5, 128  # how alike neighbours are, and samples to tell that from
FEW_VALUES, OUTLYING = 0.01, 100.0  # as the outliers of inputs are measured
EXTREME = 100.0  # ranges between the first and the last tenth, of targets
ONE_CLASS, MOST_OF_ONE_CLASS = 0.95, 0.9  # of the samples
REPEATED = 0.1  # of the batches
LARGE_BATCH, FEW_UPDATES = 256, 50
HARDLY_EVER = 1e-4  # the probability of what does not come about by chance
IN_A_ROW, ONE_BATCH = 0.3, 0.95  # of the batches: equal to the one before
TINY = 64  # samples: no training set is meant to be smaller
FEW = 5  # rows
ONE_ITERATOR = (
    "Make one iterator of the loader an epoch: next(iter(loader)) in each step begins with the first batch again. "
    "If this batch is all the data, nothing is wrong with the loader."
)
SEED_OF_WORKERS = (
    "Give each worker of the loader its own random numbers: seed them from torch.initial_seed() in worker_init_fn, and "
    "split an IterableDataset by get_worker_info(). If several updates on each batch are meant, nothing is wrong."
)
NO_DROPOUT = "no dropout was applied, so the model, the loss or the data draws other random numbers"
NOTHING_TO_DRAW = "the model has neither dropout nor batch norm, so the loss or the data draws random numbers"
FIXED_SEED = (
    "Where they are meant, draw them from a generator with the same seed at each evaluation: then evaluations differ "
    "by what was learned alone."
)
SAME_LOSS = 1e-3  # of the loss: by which two evaluations of one batch may differ


@rule(
    "loss-function",
    symptom="loss not decreasing",
    looks_at="the loss function as the first batch went through it: what the outputs passed before it, their shape "
    "against that of the targets, and whether the targets are classes",
    thresholds="a softmax or sigmoid before a cross entropy that applies its own; a ReLU before one; shapes that are "
    "broadcast; a squared error of whole numbers with 3 to 50 different values, as classes are",
    source="the definitions of these functions",
    fault="softmax or ReLU before cross entropy; (N, 1) against (N,); a squared error of class numbers",
    causes=("softmax-twice", "output-activation", "targets-broadcast", "loss-mismatched"),
    elsewhere=True,
)
def loss_function(view: View) -> Iterator[Finding]:
    passed, objective = view.fact("outputs_passed_through"), view.fact("objective")
    span = (0, view.last_step)
    if passed in ("softmax", "sigmoid"):
        evidence = f"the outputs go through a {passed}, and then into a {objective}, which applies its own"
        yield finding("error", "softmax-twice", 0.9, evidence, steps=span, is_observed=True)
    if passed == "ReLU":
        evidence = (
            f"the outputs go through a ReLU before the {objective}: none is ever below 0, and those that would be get "
            "no gradient"
        )
        remedy = "Remove the activation behind the last layer: a cross entropy needs logits of both signs."
        yield finding("warning", "output-activation", 0.85, evidence, steps=span, remedy=remedy)
    if view.fact("targets_broadcast"):
        evidence = "in the first batch, each prediction was compared with the targets of all samples"
        yield finding("error", "targets-broadcast", 0.95, evidence, steps=span, is_observed=True)
    classes = view.fact("target_classes")
    if objective == "squared error" and classes is not None and 3 <= classes <= 50:
        evidence = f"the loss is a squared error, and the targets are whole numbers with {classes} different values"
        yield finding("warning", "loss-mismatched", 0.7, evidence, steps=span)


@rule(
    "answers-in-inputs",
    symptom="overfitting",
    looks_at="columns of the inputs that the targets explain completely",
    thresholds="99.95 % of the variance of a column",
    source="reasoning: nothing that is measured is so exact",
    fault="the label as a column of the inputs",
    causes=("label-in-input",),
    needs=("start:target_in_column",),
    elsewhere=True,
)
def answers_in_inputs(view: View) -> Iterator[Finding]:
    column = view.fact("target_in_column")
    if column is None:
        return
    evidence = f"in {view.fact('samples_seen'):,} samples, column {column} of the inputs follows from the target"
    yield finding("error", "label-in-input", 0.85, evidence, steps=(0, view.last_step), column=column, is_observed=True)


@rule(
    "scale-of-inputs",
    symptom="loss not decreasing",
    looks_at="mean and spread of each column of the first inputs",
    thresholds=f"a mean or a standard deviation above {FAR:g}, or all of them below {1 / FAR:g}, in a model without "
    f"batch norm (an info up to {VERY_FAR:g} and down to {1 / VERY_FAR:g}, unless a large mean is {OFF_CENTRE:g} times "
    "the largest standard deviation); all columns constant is an error",
    source="networks are initialized for inputs with a variance of 1; the tolerance is ours",
    fault="inputs in thousands; inputs that are all zero",
    causes=("inputs-unscaled", "inputs-constant"),
    needs=("start:constant_columns",),
    elsewhere=True,
)
def scale_of_inputs(view: View) -> Iterator[Finding]:
    span = (0, view.last_step)
    if float(view.fact("constant_columns")) == 1.0:
        evidence = f"all of the first {view.fact('samples_seen'):,} inputs are equal"
        yield finding("error", "inputs-constant", 0.95, evidence, steps=span, is_observed=True)
        return
    if (scale := unusual_scale(view)) is not None:
        severity = "warning" if scale.is_plain else "info"
        yield finding(
            severity,
            "inputs-unscaled",
            0.6,
            scale.told,
            steps=span,
            remedy=scale.remedy,
            spread=scale.spread,
            offset=scale.offset,
        )


@rule(
    "outliers-of-inputs",
    symptom="loss not decreasing",
    looks_at="values of the first inputs that are far from all others of their column",
    thresholds=f"at most {FEW_VALUES:.0%} of the values of a column, {OUTLYING:g} times as far from its median as the "
    "others",
    source="reasoning: of a normal distribution, none is 3 times as far; the tolerance is ours",
    fault="one sample multiplied by a million; a placeholder such as 99999 for a missing value",
    causes=("inputs-outlying",),
    needs=("start:input_outliers", "start:samples_seen"),
    elsewhere=True,
)
def outliers_of_inputs(view: View) -> Iterator[Finding]:
    count, seen = int(view.fact("input_outliers")), int(view.fact("samples_seen"))
    if not count:
        return
    value, (low, high) = float(view.fact("input_outlier_value")), view.fact("input_usual_values")
    place, column = view.fact("input_outlier_sample"), view.fact("input_outlier_column")
    name = "one" if place is None else f"number {place:,}, counted from 0 in the order in which they were read,"
    evidence = (
        f"of the first {seen:,} samples, {name} has {value:.6g} in column {column} of the inputs, where usual values "
        f"lie between {low:.3g} and {high:.3g}"
    )
    evidence += f"; {count:,} samples have such outliers" if count > 1 else ""
    yield finding(
        "warning",
        "inputs-outlying",
        0.9,
        evidence,
        steps=(0, view.last_step),
        outliers=count,
        value=value,
        is_observed=True,
    )


@rule(
    "order-of-targets",
    symptom="fluctuating validation",
    looks_at="whether the targets of samples that follow each other are alike",
    thresholds=f"{SORTED:g} on a scale from 0 (a random order) to 1 (sorted), in {ENOUGH} samples or more: of classes, "
    "how often neighbours are equal beyond chance; of numbers, the correlation of their ranks",
    source="the definition: in a random order neighbours are not more alike than others",
    fault="data sorted by class",
    causes=("data-unshuffled",),
    needs=("start:target_order", "start:samples_seen"),
    elsewhere=True,
)
def order_of_targets(view: View) -> Iterator[Finding]:
    order, seen = float(view.fact("target_order")), int(view.fact("samples_seen"))
    if order > SORTED and seen >= ENOUGH:
        evidence = (
            f"the first {seen:,} samples come in an order in which neighbours have like targets ({order:.2f} on a "
            "scale from 0, random, to 1, sorted)"
        )
        remedy = "Shuffle the samples, for example with DataLoader(..., shuffle=True)."
        yield finding(
            "error",
            "data-unshuffled",
            0.85,
            evidence,
            steps=(0, view.last_step),
            remedy=remedy,
            order=order,
            is_observed=True,
        )


@rule(
    "extreme-targets",
    symptom="loss spikes",
    looks_at="how far the farthest of the first targets is from their median, where they are numbers",
    thresholds=f"{EXTREME:g} times the range between the first and the last tenth of them",
    source="reasoning: even heavy tails hardly reach so far in some thousand samples",
    fault="typing errors that are thousands of times too large",
    causes=("bad-samples",),
    needs=("start:target_extreme",),
    elsewhere=True,
)
def extreme_targets(view: View) -> Iterator[Finding]:
    extreme = float(view.fact("target_extreme"))
    if extreme > EXTREME:
        evidence = f"a target is {extreme:,.0f} times as far from the median as nine tenths of them are spread"
        yield finding("warning", "bad-samples", 0.75, evidence, steps=(0, view.last_step), extreme=extreme)


@rule(
    "classes-of-validation",
    symptom="overfitting",
    looks_at="classes of the validation samples that training has not shown, and how many there are",
    thresholds=f"half of the validation samples are of such a class; or all of at least {ENOUGH} are of one class, of "
    "three or more classes, or where training samples of two would hardly ever all be of the more frequent one",
    source="the definition: a split at random has the classes of the whole",
    fault="a split of sorted data",
    causes=("validation-drift",),
    needs=("start:validation_classes", "start:validation_unseen", "start:validation_samples_seen"),
    elsewhere=True,
)
def classes_of_validation(view: View) -> Iterator[Finding]:
    unseen, classes = float(view.fact("validation_unseen")), int(view.fact("validation_classes"))
    seen, majority = int(view.fact("validation_samples_seen")), float(view.fact("majority_share", 1.0))
    is_single = classes == 1 and (int(view.fact("target_classes", 0)) >= 3 or majority**seen < HARDLY_EVER)
    if seen < ENOUGH or not (unseen > 0.5 or is_single):
        return
    said = f"{unseen:.0%} of the validation samples are of classes that training has not shown"
    evidence = said if unseen > 0.5 else "all validation samples are of one class"
    remedy = "Shuffle the data before it is split, or split each class in the same proportion."
    yield finding(
        "error", "validation-drift", 0.85, evidence, steps=(0, view.last_step), remedy=remedy, is_observed=True
    )


@rule(
    "few-large-batches",
    symptom="loss not decreasing",
    looks_at="how many samples a batch has, by the first ones, and how many updates the run makes",
    thresholds=f"{LARGE_BATCH} samples or more, and fewer than {FEW_UPDATES} updates, in at least two epochs",
    source="reasoning: what a few updates cannot do, more samples in each do not make up for",
    fault="the whole training set as one batch",
    causes=("batch-large",),
    needs=("start:samples_seen", "start:batches_seen", "epoch"),
    elsewhere=True,
)
def few_large_batches(view: View) -> Iterator[Finding]:
    size = int(view.fact("samples_seen")) / max(1, int(view.fact("batches_seen")))
    epochs = float(view.values("epoch")[-1])
    if size >= LARGE_BATCH and 0 < view.total < FEW_UPDATES and epochs >= 2:
        evidence = f"the run makes {view.total:,} updates in {epochs:.3g} epochs, each on about {size:,.0f} samples"
        yield finding("warning", "batch-large", 0.7, evidence, steps=(0, view.last_step), updates=view.total)


@rule(
    "copies-of-batches",
    symptom="overfitting",
    looks_at="batches with exactly the rows of an earlier one, among the first",
    thresholds=f"more than {REPEATED:.0%} of the batches",
    source="the definition of an epoch: every row once",
    fault="a loader that returns the same batches again",
    causes=("batches-repeat",),
    needs=("start:repeated_batch_share", "start:batches_seen"),
    elsewhere=True,
)
def copies_of_batches(view: View) -> Iterator[Finding]:
    share, seen = float(view.fact("repeated_batch_share")), int(view.fact("batches_seen"))
    # Later passes over the data bring the same batches where they are not shuffled.
    an_epoch = view.fact("steps_per_epoch")
    if share > REPEATED and an_epoch is not None and seen <= math.ceil(float(an_epoch) * view.accumulation):
        evidence = f"{share:.0%} of the first {seen:,} batches are equal to an earlier one of the same epoch"
        yield finding(
            "error", "batches-repeat", 0.85, evidence, steps=(0, view.last_step), share=share, is_observed=True
        )


@rule(
    "batches-in-a-row",
    symptom="overfitting",
    looks_at="batches that are equal to the one before them",
    thresholds=f"more than {IN_A_ROW:.0%} of the batches; if nearly all of them ({ONE_BATCH:.0%}), an info, since the "
    f"batch may be the whole training set, unless it has {TINY} samples or fewer",
    source="the definition of an epoch: every row once; k loader workers with one seed draw each batch k times, so "
    "that 1 - 1/k of the batches equal the one before",
    fault="four loader workers with the same seed; next(iter(loader)) in each step, unshuffled",
    causes=("batches-repeat",),
    needs=("same_batches",),
    elsewhere=True,
)
def batches_in_a_row(view: View) -> Iterator[Finding]:
    shares, span = view.values("same_batches"), (0, view.last_step)
    share = float(shares.mean()) if len(shares) >= FEW else 0.0
    if share > ONE_BATCH:
        samples = view.values("tokens")[-1:].sum() / max(1, view.last_step)
        is_tiny = 0 < samples <= TINY and view.fact("counted") == "samples"
        size = f" of {samples:.0f} samples" if is_tiny else ""
        evidence = f"{share:.0%} of the batches are equal to the one before: the model learns from one batch{size}"
        severity, sure = ("warning", 0.75) if is_tiny else ("info", 0.4)
        yield finding(
            severity, "batches-repeat", sure, evidence, steps=span, remedy=ONE_ITERATOR, share=share, is_observed=True
        )
    elif share > IN_A_ROW:
        copies = 1 / (1 - share)
        evidence = f"{share:.0%} of the batches are equal to the one before: each comes {copies:.2g} times on average"
        yield finding(
            "warning",
            "batches-repeat",
            0.75,
            evidence,
            steps=span,
            remedy=SEED_OF_WORKERS,
            share=share,
            is_observed=True,
        )


@rule(
    "one-class",
    symptom="loss not decreasing",
    looks_at="the share of the most frequent class among the first targets",
    thresholds=f"{ONE_CLASS:.0%} of {ENOUGH} or more is a warning, {MOST_OF_ONE_CLASS:.0%} an info; a single class in "
    "all of them is an error",
    source="reasoning: predicting that class alone is nearly always right",
    fault="labels that are all the same",
    causes=("classes-imbalanced",),
    needs=("start:majority_share", "start:targets_seen"),
    elsewhere=True,
)
def one_class(view: View) -> Iterator[Finding]:
    share, seen = float(view.fact("majority_share")), int(view.fact("targets_seen"))
    if share < MOST_OF_ONE_CLASS or seen < ENOUGH or view.task not in (None, "classify"):
        return
    evidence = f"{share:.1%} of the first {seen:,} targets are of the same class"
    severity = "error" if share == 1.0 else "warning" if share >= ONE_CLASS else "info"
    yield finding(
        severity, "classes-imbalanced", 0.8, evidence, steps=(0, view.last_step), share=share, is_observed=True
    )


@rule(
    "evaluated-twice",
    symptom="fluctuating validation",
    looks_at="whether the model is in training mode while it is evaluated, and the loss of one batch evaluated twice",
    thresholds=f"a difference of {SAME_LOSS:.1%}; where dropout is not applied meanwhile, the model, the loss or the "
    "data draws at random, as some do on purpose; an info if that is not known and the model has no dropout",
    source="the definition: an evaluated model is a function of its inputs",
    fault="model.train() in the loss function; functional dropout that is always on",
    causes=("dropout-in-evaluation", "evaluation-noisy"),
    needs=("start:evaluated_twice",),
    elsewhere=True,
)
def evaluated_twice(view: View) -> Iterator[Finding]:
    first, second = view.fact("evaluated_twice")
    span = (0, view.last_step)
    if view.fact("training_mode_in_evaluation"):
        has = view.fact("has_dropout") or view.fact("has_batch_norm")
        evidence = "parts of the model are in training mode while it is evaluated"
        severity, sure = ("error", 0.9) if has else ("info", 0.3)
        yield finding(severity, "dropout-in-evaluation", sure, evidence, steps=span, is_observed=bool(has))
    elif abs(first - second) > SAME_LOSS * max(abs(first), abs(second)):
        evidence = f"the same batch has a validation loss of {first:.5g} and, evaluated again, of {second:.5g}"
        yield _not_repeatable(view, evidence, span, first=first, second=second)


def _not_repeatable(view: View, evidence: str, span: tuple[float, float], **numbers: Any) -> Finding:
    """Of two evaluations of the same weights that differ, although nobody saw the model in training mode."""
    has_dropped, has_dropout = view.fact("dropout_in_evaluation"), view.fact("has_dropout")
    if has_dropped:
        said = f"{evidence}; dropout was applied"
        return finding("error", "dropout-in-evaluation", 0.9, said, steps=span, is_observed=True, **numbers)
    if has_dropped is False or (has_dropout is False and view.fact("has_batch_norm") is False):
        said = f"{evidence}; {NOTHING_TO_DRAW if has_dropped is None else NO_DROPOUT}"
        return finding("info", "evaluation-noisy", 0.3, said, steps=span, remedy=FIXED_SEED, **numbers)
    severity, sure = ("info", 0.3) if has_dropout is False else ("warning", 0.6)
    return finding(severity, "dropout-in-evaluation", sure, evidence, steps=span, **numbers)


SYMPTOMS = {
    "no-update": ("updates-missing", 0.95),
    "gradients-not-zeroed": ("gradients-not-zeroed", 0.95),
    "eval-mode-in-training": ("training-in-eval-mode", 0.9),
    "train-mode-in-evaluation": ("dropout-in-evaluation", 0.9),
}


@rule(
    "watched-loop",
    symptom="loss not decreasing",
    looks_at="what `trainbook.watch` saw a loop do: updates that are never made, gradients that are never reset, modes "
    "of the model, evaluations that cannot be repeated",
    thresholds="none: these are events; an evaluation that cannot be repeated is judged by whether dropout is applied "
    "meanwhile",
    source="the definitions of PyTorch's optimizers and modes",
    fault="zero_grad() forgotten; model.eval() forgotten",
    causes=(
        "updates-missing",
        "gradients-not-zeroed",
        "training-in-eval-mode",
        "dropout-in-evaluation",
        "evaluation-noisy",
    ),
    elsewhere=True,
)
def watched_loop(view: View) -> Iterator[Finding]:
    for event in view.events("symptom"):
        symptom, reason, span = str(event.get("symptom")), str(event["reason"]), (event["step"], view.last_step)
        cause, sure = SYMPTOMS.get(symptom, (None, 0.0))
        if symptom == "evaluation-not-repeatable":
            yield _not_repeatable(view, reason, span)
        elif cause is not None:
            severity = "warning" if cause == "training-in-eval-mode" else "error"
            yield finding(severity, cause, sure, reason, steps=span, is_observed=True)


@rule(
    "parameters-left-out",
    symptom="underfitting",
    looks_at="trainable parameters that the optimizer does not hold",
    thresholds="any",
    source="the definition: what an optimizer does not hold, it does not train",
    fault="an optimizer that got the head's parameters alone",
    causes=("layers-frozen",),
    needs=("start:unheld_parameters",),
    elsewhere=True,
)
def parameters_left_out(view: View) -> Iterator[Finding]:
    left_out = list(view.fact("unheld_parameters"))
    if left_out:
        such_as = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3} more" if len(left_out) > 3 else "")
        evidence = f"these parameters need a gradient, and the optimizer does not hold them: {such_as}"
        remedy = "Pass all parameters that should learn to the optimizer; set requires_grad=False for the others."
        yield finding(
            "warning", "layers-frozen", 0.85, evidence, steps=(0, view.last_step), remedy=remedy, is_observed=True
        )


@rule(
    "gradients-gone",
    symptom="loss not decreasing",
    looks_at="the gradients that the optimizer is given",
    thresholds="all of them are zero, in every row with a finite loss",
    source="the definition: such an update changes nothing but by weight decay",
    fault="zero_grad() between backward() and step()",
    causes=("updates-missing",),
    needs=("zero_gradients",),
    elsewhere=True,
)
def gradients_gone(view: View) -> Iterator[Finding]:
    steps, shares, losses = view.record.rows("train").columns("step", "zero_gradients", "loss")
    judged = np.isfinite(shares) & np.isfinite(losses)  # of a loss that is not finite, gradients say nothing
    steps, shares = steps[judged], shares[judged]
    if len(shares) >= FEW and (shares == 1.0).all():
        evidence = f"in all {len(shares)} rows, every gradient is zero when the optimizer makes its step"
        remedy = "Call optimizer.zero_grad() after optimizer.step(), or before the backward pass, but not between them."
        yield finding(
            "error", "updates-missing", 0.9, evidence, steps=(steps[0], steps[-1]), remedy=remedy, is_observed=True
        )
