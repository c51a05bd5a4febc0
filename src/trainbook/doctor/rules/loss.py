"""The loss curve: where it starts, whether it falls, and whether it is too good to be true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.causes import PAIRS
from trainbook.doctor.chance import (
    ABOUT_A_GUESS,
    AS_GOOD_AS_GUESSING,
    BEATEN_BY_CHANCE,
    FEW_ERRORS,
    above_chance,
    accuracies_of,
    is_never_above_chance,
    known_guessing,
    knows_its_task,
    late_accuracies,
    predicts_one_class,
    starts_by_guessing,
)
from trainbook.doctor.curves import (
    CLEARLY,
    FALLS_ON,
    FAR_BELOW,
    divergence_of,
    falls_below_zero,
    falls_throughout,
    fell_for_certain,
    is_flat_at_guessing,
    loss_falls_on,
    may_have_fallen,
    never_below_start,
    shot_up_at_first,
    standstill_of,
    unscaled_targets,
    validation_falls_on,
    validation_fell,
    validation_fell_a_little,
    validation_has_stopped,
)
from trainbook.doctor.curves import FEW as ROWS_OF_DIVERGENCE
from trainbook.doctor.remedies import (
    NOT_THE_RATE,
    change,
    is_high_enough,
    longer,
    lower_rate,
    raise_rate,
    rates_in_use,
    usual_of_unknown_optimizer,
    usual_rates,
)
from trainbook.doctor.rule import Lacking, finding, rule
from trainbook.doctor.scale import unusual_scale
from trainbook.doctor.statistics import median_and_spread, quantile_over_steps, robust_line, running_median
from trainbook.doctor.view import STARTS_BY, View
from trainbook.finding import Finding, Severity
from trainbook.knobs.bibliography import CS231N, RECIPE

FEW = 8  # rows: with fewer a curve says nothing
AS_GOOD_AS_CONSTANT = 0.98  # of the validation loss of a constant prediction
BETTER_THAN_GUESSING = 0.9  # of the validation loss of guessing: something was learned
MUCH_BETTER_SCORE = 1.5  # times the macro F1 of a constant prediction
FAR_OFF = 4.0  # times the highest usual learning rate, or the lowest over this
LOW_FOR_ADAM = 2e-4  # a learning rate below it is low for any small model that is trained from scratch
USUAL_SGD = 5e-3  # a learning rate below it is low for SGD
AS_MIRRORED = 0.2  # of a validation loss, that a training loss with the opposite sign is off by
HUGE_UPDATE = 0.5  # of the norm of the weights, in a single update
PROVEN = (
    "the linear baseline, late evaluations, or the best of all are right more often than the most frequent class "
    f"occurs, with a chance of less than 1 in {1 / BEATEN_BY_CHANCE:.0f} (of the best, times how many there are)"
)
KNOWS = (
    f"; nothing where the accuracy shows at most {FEW_ERRORS:.0%} of the errors of always predicting the most frequent "
    "class, from the first evaluation to the last"
)
LEARNABLE = "the labels can be learned. Train longer, or search for a better learning rate."
SHAPES = "; and that predictions and targets have the same shape: (N, 1) against (N,) is silently broadcast to (N, N)."
FLOOR = (
    " A model that was trained before may be as good as it gets, and of targets that the inputs say little of, such as "
    "clicks or returns, little can be learned: then nothing is wrong."
)


@rule(
    "loss-at-start",
    symptom="loss not decreasing",
    looks_at="the first loss against the loss of a uniform guess",
    thresholds="trained from scratch: 15 % and 0.2 nats above or below it (T5 with tied embeddings: above the loss of "
    "a model that predicts the token it reads with a logit of the root of the width, whatever the vocabulary); nothing "
    "is above it if the cross entropy of rows of the first batch is not; inputs far from a variance of 1 are blamed "
    "before the weights; a factor equal to the number of gradient accumulation steps names the accumulation; "
    f"fine-tuned on tokens: less than {1 - AS_GOOD_AS_GUESSING:.0%} below it",
    source=f"a softmax should start at ln V ({RECIPE}); the tolerances are ours",
    fault="initial weights 10 times too large; the loss multiplied by the accumulation steps",
    causes=("init-large", "inputs-unscaled", "accumulation-wrong", "targets-not-shifted", "base-untrained"),
    needs=("loss", "start:uniform_loss"),
)
def loss_at_start(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    expected = float(view.fact("uniform_loss"))
    if not len(steps) or steps[0] > STARTS_BY:
        return
    first = float(losses[0])
    said = f"the loss starts at {first:.3g}; a uniform guess has a loss of {expected:.3g}"
    if view.is_fine_tuning:
        if starts_by_guessing(view):
            said = f"before fine-tuning, {said}"
            yield finding("info", "base-untrained", 0.5, said, steps=(0, steps[0]), first=first, expected=expected)
        return
    numbers: dict[str, Any] = {"first": first, "expected": expected}
    count = view.accumulation
    if count > 1:
        for factor in (count, 1 / count):
            if abs(first / (expected * factor) - 1) < 0.1:
                evidence = f"{said}: a factor of {first / expected:.3g}, with {count} gradient accumulation steps"
                yield finding("error", "accumulation-wrong", 0.85, evidence, steps=(1, steps[0]), **numbers)
                return
    highest = expected + 0.15 * expected + 0.2
    if view.setting("model.type") == "t5" and view.setting("model.tie_embeddings") is not False:
        # T5's embeddings begin with a deviation of 1. Tied to the output, they make it answer with the token that it
        # reads: with a logit of up to the root of the width, where all others are about 0.
        highest = float(np.logaddexp(highest, (view.setting("model.hidden_size") or 768) ** 0.5))
    probed_at, probed = view.finite("probe_loss")
    if first > highest and len(probed) and probed_at[0] == steps[0] and probed[0] <= highest:
        return  # the model guesses as it should: a task of the user's own may weigh its losses, or add to them
    if first > highest and (scale := unusual_scale(view)) is not None and scale.is_large:
        said = f"{said}; {scale.told}"
        yield finding("error", "inputs-unscaled", 0.85, said, steps=(1, steps[0]), remedy=scale.remedy, **numbers)
    elif first > highest:
        override = change(view, "model.initializer_range", _usual_spread(view))
        sure = 0.85 if first > 1.4 * expected else 0.6
        yield finding(
            "error" if sure > 0.8 else "warning",
            "init-large",
            sure,
            said,
            steps=(1, steps[0]),
            override=override,
            **numbers,
        )
    elif first < 0.85 * expected - 0.2 and view.fact("has_embedding") is not False and not view.predicts_labels:
        # Without tokens as targets, nothing is shifted.
        evidence = f"{said}: the model seems to know its targets before any training"
        yield finding("warning", "targets-not-shifted", 0.5, evidence, steps=(1, steps[0]), **numbers)


def _usual_spread(view: View) -> float:
    width = view.setting("model.hidden_size") or 768
    return 0.02 if width <= 1024 else float(f"{0.02 * (1024 / width) ** 0.5:.2g}")


@rule(
    "not-decreasing",
    symptom="loss not decreasing",
    looks_at="how far the loss has fallen, and how large the updates are",
    thresholds="less than 3 % below the start, where a fall by a third could not hide in the noise of batches, and the "
    "validation loss has not fallen either; or never 3 % below the first row, in training and in validation, however "
    "high the loss was in between; updates above 1 % of the weights or below 0.01 % name the learning rate "
    "(the latter gradients that vanish, if a module of your own has the highest usual one, and is an info if it has a "
    "usual one and validation has not become worse: its loss may be as low as it gets), others the targets, after "
    "half of the run or 1,000 steps; where updates were not logged, a learning rate that is far from the usual ones "
    f"(by a factor of {FAR_OFF:g}; of a log that does not name its optimizer, at or above that of SGD) is named, and "
    "otherwise the targets; in fine-tuning, a final loss above 95 % of the loss of guessing, but an info where "
    f"the accuracy shows at most {FEW_ERRORS:.0%} of the errors of a guess from the first evaluation to the last; of a "
    "module of your own, also a validation loss that ends less than 3 % below the first "
    "training loss, however high the loss was in between; there the targets are a warning, and none if the validation "
    f"loss fell by {CLEARLY:g} times what it jumps by between evaluations; never the targets where {PROVEN}; nothing "
    "where the loss depends on parameters that something else trains, such as an opponent",
    source=f"reasoning; a rough heuristic is an update of 0.001 of the weights ({CS231N})",
    fault="the learning rate a thousand times too low, or 30 times too high",
    causes=(
        "learning-rate-low",
        "learning-rate-high",
        "gradients-vanish",
        "labels-random",
        "inputs-unscaled",
        "learning-slow",
        "base-untrained",
    ),
    needs=("loss",),
)
def not_decreasing(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if view.loss_changed or len(losses) < FEW or steps[-1] < 50:
        return  # of another loss function, all that can be learned may be known by then
    if view.is_shared:
        return
    first, last = float(np.median(losses[:3])), float(np.median(losses[-max(3, len(losses) // 4) :]))
    prior = view.fact("prior_loss")
    still = standstill_of(view) if view.record.origin == "fit" else None  # nothing is known there of guessing
    is_unknown = view.record.origin == "fit" and fell_for_certain(view)  # how low such a loss can get
    # A loss that shot up right after the first row falls from there, and has learned nothing by that.
    is_flat = view.record.origin not in ("fit", "trainbook") and is_flat_at_guessing(view)
    is_stuck = still is not None or is_flat or (view.record.origin != "fit" and never_below_start(view))
    if view.is_early or ((falls_throughout(view) or is_unknown) and not is_stuck) or unscaled_targets(view):
        return
    has_fallen = not view.has_floor or last < 0.97 * first or (prior is not None and last < 0.97 * prior)
    if not is_stuck and has_fallen:
        return
    is_told_by_guessing = prior is not None  # where it is known, the start has not to be read from noisy batches
    if not (is_stuck or is_told_by_guessing or shot_up_at_first(view)) and (
        may_have_fallen(view) or validation_fell(view)
    ):
        return
    if (lowest := _lost_again(view, first)) is not None:
        said = (
            f"the loss started at {first:.3g}, fell to {lowest:.3g}, and has a median of {last:.3g} in the last quarter"
        )
        yield finding("error", "learning-rate-high", 0.5, said, steps=(0, steps[-1]), override=lower_rate(view))
        return
    norms = view.curve("grad_norm")[1]
    if len(norms) and not np.isfinite(norms).mean() > 0.5:  # what was never applied says nothing about the rate
        return
    ratio_steps, ratios = view.update_ratios()
    ratio = quantile_over_steps(ratio_steps, ratios, 0.5) if len(ratios) else None
    evidence = f"over the last quarter of {int(steps[-1]):,} steps the median loss is {last:.3g}; it started at "
    evidence += f"{float(losses[0]):.3g}"
    if is_flat:
        accuracy = float(np.median(accuracies_of(view)[-3:]))
        evidence = f"the loss has stayed at {last:.3g} for nearly all of {int(steps[-1]):,} steps, with an accuracy of "
        evidence += f"{accuracy:.0%}, no better than guessing"
    if still is not None:
        evidence = f"nothing was learned in {int(steps[-1]):,} steps: the {still.name} is {still.last:.3g}, and the "
        evidence += f"training loss started at {still.first:.3g}"
    if view.is_fine_tuning or (knows_its_task(view) and (ratio is None or ratio <= 1e-2)):
        yield from _fine_tuning_learns_nothing(view, evidence, last, ratio, (0, steps[-1]))
    elif ratio is None:
        if divergence_of(view) is None:
            yield _stands_still(view, evidence, (0, steps[-1]))
    elif still is not None and ratio >= 1e-4 and ratios.max() > HUGE_UPDATE:
        said = f"{evidence}; the largest update was {ratios.max():.2g} times as large as the weights"
        span = (0, steps[-1])
        yield finding("error", "learning-rate-high", 0.75, said, steps=span, override=lower_rate(view))
    elif ratio > 1e-2:
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield finding(
            "error",
            "learning-rate-high",
            0.75,
            said,
            steps=(0, steps[-1]),
            override=lower_rate(view),
            update_ratio=ratio,
        )
    elif (ratios == 0).all() and _is_no_tiny_rate(view):
        return  # nothing is updated at all: other rules know why, and no learning rate changes that
    elif ratio < 1e-4 and is_high_enough(view):
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield _gradients_to_blame(view, "error", said, (0, steps[-1]), update_ratio=ratio)
    elif ratio < 1e-4 and _may_be_at_its_floor(view):
        said = (
            f"the loss stays at {last:.3g} over {int(steps[-1]):,} steps, and an update changes the weights by "
            f"{ratio:.2g} (usual: 0.001): either the loss is already at its floor, as in fine-tuning a good model, or "
            f"the learning rate of {view.peak_rate:.2g} is too low"
        )
        remedy = "Raise the learning rate if a lower loss is possible; otherwise nothing is wrong."
        override, span = raise_rate(view), (0, steps[-1])
        yield finding(
            "info", "learning-rate-low", 0.4, said, steps=span, override=override, remedy=remedy, update_ratio=ratio
        )
    elif ratio < 1e-4:
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield finding(
            "error", "learning-rate-low", 0.8, said, steps=(0, steps[-1]), override=raise_rate(view), update_ratio=ratio
        )
    elif view.record.origin == "fit" and (validation_falls_on(view) or validation_fell_a_little(view)):
        return
    elif steps[-1] >= min(1000, view.total / 2):  # many begin with a stretch of this kind
        said = f"{evidence}, although updates have the usual size ({ratio:.2g} of the weights)"
        yield _targets_to_blame(
            view,
            "warning" if view.record.origin == "fit" else "error",  # how low its loss can get is not known there
            0.5,
            said,
            (0, steps[-1]),
            remedy=PAIRS + SHAPES + FLOOR if view.record.origin == "fit" else None,
            update_ratio=ratio,
        )


def _is_no_tiny_rate(view: View) -> bool:
    """One whose updates do not get lost in the rounding of the weights."""
    return view.record.origin != "trainbook" and (view.peak_rate or 0.0) >= rates_in_use(view)[0] / FAR_OFF


def _lost_again(view: View, first: float) -> float | None:
    """The lowest level of a log with too few rows for `divergence`, if it was far below the first one, in training and
    in validation: something was learned and is lost."""
    losses, evaluations = view.losses()[1], view.values("loss", "eval")
    if view.record.origin in ("trainbook", "fit") or len(losses) >= ROWS_OF_DIVERGENCE or len(evaluations) < 3:
        return None
    lowest = float(running_median(losses, 3).min())
    is_lost = evaluations[-1] > 1.2 * evaluations.min() and evaluations.min() < 0.8 * first
    return lowest if lowest < 0.8 * first and is_lost else None


def _targets_to_blame(
    view: View,
    severity: Severity,
    sure: float,
    evidence: str,
    span: tuple[float, float],
    remedy: str | None = None,
    **numbers: Any,
) -> Finding:
    """Nothing else is left to suspect, unless no network learns from inputs of such a scale, or an accuracy proves that
    the inputs say something about the targets."""
    if (scale := unusual_scale(view)) is not None and scale.is_plain:
        said, remedy = f"{evidence}; {scale.told}", scale.remedy
        return finding("error", "inputs-unscaled", 0.85, said, steps=span, remedy=remedy, **numbers)
    if proof := above_chance(view):
        said, override = f"{evidence}; but {proof}, so the inputs do say something about the targets", longer(view)
        return finding(
            "warning", "learning-slow", 0.7, said, steps=span, override=override, is_by_exclusion=True, **numbers
        )
    return finding(
        severity, "labels-random", sure, evidence, steps=span, remedy=remedy, is_by_exclusion=True, **numbers
    )


def _gradients_to_blame(
    view: View, severity: Severity, evidence: str, span: tuple[float, float], **numbers: Any
) -> Finding:
    """Of small updates where the learning rate is as high as is usual. Those of SGD are as small as its gradients, and
    these are small at a minimum too."""
    severity, sure = ("warning", 0.4) if view.setting("optimizer.type") == "sgd" else (severity, 0.6)
    return finding(severity, "gradients-vanish", sure, evidence, steps=span, remedy=NOT_THE_RATE, **numbers)


def _may_be_at_its_floor(view: View) -> bool:
    """Of a module of the user's own, whose lowest loss nobody knows: its learning rate is a usual one, and validation
    is no worse for it."""
    evaluations, rate = view.values("loss", "eval"), view.peak_rate
    if view.record.origin != "fit" or rate is None or not rates_in_use(view)[0] <= rate <= rates_in_use(view)[1]:
        return False
    return not len(evaluations) or float(np.median(evaluations[-3:])) <= 1.01 * float(evaluations[0])


def _stands_still(view: View, evidence: str, span: tuple[float, float]) -> Finding:
    """Of a log that does not tell how large the updates are: by the learning rate, if that is known."""
    rate, (low, high) = view.peak_rate, rates_in_use(view)
    if rate is None or rate < low / FAR_OFF:
        return finding("error", "learning-rate-low", 0.35, evidence, steps=span, override=raise_rate(view))
    low, high = usual_rates(view) or (low, high)
    usual = f"{low:.2g} to {high:.2g} is usual" if low < high else f"{high:.2g} is usual"
    adaptive = usual_of_unknown_optimizer(view)
    if adaptive is not None and rate >= high:  # the highest of all optimizers is too high for most of them
        usual = f"usual: up to {adaptive:.2g} with Adam, {high:.2g} with SGD and momentum"
        override = change(view, "optimizer.learning_rate", adaptive)
        said = f"{evidence}; the learning rate is {rate:.2g} ({usual})"
        sure = 0.6 if rate > high else 0.5
        return finding("error", "learning-rate-high", sure, said, steps=span, override=override)
    if rate > FAR_OFF * high:
        said = f"{evidence}; the learning rate is {rate:.2g} ({usual})"
        return finding("error", "learning-rate-high", 0.5, said, steps=span, override=lower_rate(view))
    if adaptive is not None and rate < USUAL_SGD and loss_falls_on(view):
        said = (
            f"{evidence}, and still falls, slowly; the learning rate is {rate:.2g}, which is usual with Adam (up to "
            f"{adaptive:.2g}), but too low for SGD ({high:.2g} is usual), and the log does not name the optimizer"
        )
        remedy = f"With SGD, raise the learning rate. Otherwise: {PAIRS}."
        return finding("error", "learning-rate-low", 0.45, said, steps=span, remedy=remedy)
    if view.record.origin != "huggingface" and rate < LOW_FOR_ADAM and not view.is_fine_tuning and loss_falls_on(view):
        said = f"{evidence}, and still falls, slowly; the learning rate is {rate:.2g}, low for training from scratch"
        return finding("error", "learning-rate-low", 0.55, said, steps=span, override=raise_rate(view))
    said = f"{evidence}, although the learning rate is not low ({rate:.2g}; {usual})"
    return _targets_to_blame(view, "error", 0.5, said, span)


def _fine_tuning_learns_nothing(
    view: View, evidence: str, last: float, ratio: float | None, span: tuple[float, float]
) -> Iterator[Finding]:
    """A good model may have little to learn. One that is no better than guessing, before and after, has learned
    nothing; where its updates are of the usual size, there was nothing to build on."""
    uniform, prior = view.fact("uniform_loss"), view.fact("prior_loss")
    guessing = min(value for value in (uniform, prior, np.inf) if value is not None)
    is_slow = ratio is None or ratio < 1e-4
    if last < AS_GOOD_AS_GUESSING * guessing or knows_its_task(view):
        said = f"{evidence}: {'fine-tuning' if view.is_fine_tuning else 'training'} has hardly changed the model"
        how = "with a higher learning rate" if validation_has_stopped(view) else "longer or with a higher learning rate"
        remedy = None if is_slow else f"Train {how}, if the task is not yet learned."
        override = raise_rate(view) if is_slow else None
        yield finding("info", "learning-rate-low", 0.35, said, steps=span, override=override, remedy=remedy)
        return
    said = f"{evidence}; guessing without the input has a loss of {guessing:.3g}"
    if is_slow:
        yield finding("warning", "learning-rate-low", 0.6, said, steps=span, override=raise_rate(view))
    elif ratio is not None and ratio > 1e-2 and view.setting("model.lora_rank") is None:
        said = f"{said}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield finding("warning", "learning-rate-high", 0.6, said, steps=span, override=lower_rate(view))
    else:
        yield finding("warning", "base-untrained", 0.6, said, steps=span, is_by_exclusion=True)


@rule(
    "loss-below-zero",
    symptom="exploding gradients",
    looks_at="a loss that falls below zero and does not settle, or is the validation loss with the opposite sign",
    thresholds=f"{FAR_BELOW:g} times the size of the first loss (at least 1) below zero, and a fall in the second half "
    f"of {FALLS_ON:.0%} of that in the first (halves by the sum of the learning rates); the opposite sign within "
    f"{AS_MIRRORED:.0%}, at three evaluations or more",
    source="reasoning: a cross entropy or a squared error is never negative; other losses have a minimum that they "
    "settle at",
    fault="a loss with the wrong sign",
    causes=("loss-unbounded",),
    needs=("loss",),
)
def loss_below_zero(view: View) -> Iterator[Finding]:
    found = falls_below_zero(view)
    if found is not None:
        first, last = found
        evidence = f"the loss went from {first:.3g} to {last:.3g}, and did not settle"
        yield finding("error", "loss-unbounded", 0.9, evidence, steps=(0, view.last_step), first=first, last=last)
    elif (evidence := _mirrored(view)) is not None:
        yield finding("error", "loss-unbounded", 0.95, evidence, steps=(0, view.last_step))


def _mirrored(view: View) -> str | None:
    """In words, that each evaluation is about the training loss of its time, with the opposite sign."""
    (at, evaluations), (steps, losses) = view.finite("loss", "eval"), view.losses()
    if len(evaluations) < 3 or len(losses) < FEW or evaluations.min() <= 0:
        return None
    trained = np.array([np.median(losses[np.argsort(np.abs(steps - step), kind="stable")[:3]]) for step in at])
    if trained.max() >= 0 or np.median(np.abs(trained + evaluations) / evaluations) > AS_MIRRORED:
        return None
    return (
        f"the training loss is {trained[-1]:.3g} where the validation loss is {evaluations[-1]:.3g}: the opposite sign"
    )


@rule(
    "stuck-at-prior",
    symptom="loss not decreasing",
    looks_at="whether the loss is stuck at that of guessing by class frequency, as if the input carried no information",
    thresholds="the last third within 4 % or 0.05 nats of it, no longer falling, after 100 steps; updates above 2 "
    "% or below "
    "0.02 % of the weights name the learning rate (the latter gradients that vanish, if a module of your own has the "
    "highest usual one), others the targets, unless a validation loss is below "
    f"{BETTER_THAN_GUESSING:.0%} of that of guessing ({AS_GOOD_AS_CONSTANT:.0%} at the newest evaluation of a run that "
    f"goes on), or macro F1 above {MUCH_BETTER_SCORE:g} times that of a constant "
    f"prediction; never the targets where {PROVEN}{KNOWS}",
    source=f"the input-independent baseline ({RECIPE}); the tolerances are ours",
    fault="labels shuffled among the samples",
    causes=(
        "labels-random",
        "inputs-unscaled",
        "learning-slow",
        "learning-rate-high",
        "learning-rate-low",
        "gradients-vanish",
    ),
    needs=("loss", "start:prior_loss"),
)
def stuck_at_prior(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    prior = float(view.fact("prior_loss"))
    if len(losses) < 12 or steps[-1] < 100 or prior <= 0 or knows_its_task(view):
        return  # a few wrong labels cost a good model as much as a guess has to pay
    late = losses[-len(losses) // 3 :]
    last, spread = median_and_spread(late)
    noise, nearly = 2 * 1.25 * spread / len(late) ** 0.5, max(0.04 * prior, 0.05)
    if abs(last - prior) > max(nearly, noise):
        return
    half = slice(len(losses) // 2, None)
    line = robust_line(steps[half], losses[half])
    if line.high < 0 and line.slope * (steps[-1] - steps[half][0]) < -0.03 * prior:
        return  # it is still on its way
    ratio_steps, ratios = view.update_ratios()
    ratio = quantile_over_steps(ratio_steps, ratios, 0.5) if len(ratios) else 1e-3
    guess = "predicting the mean" if view.task == "regress" else "guessing by frequency"
    within = "" if abs(last - prior) <= nearly else f" ± {noise:.2g} (the noise of batches)"
    evidence = f"the loss is stuck at {last:.3g}{within}; {guess}, without the input, has a loss of {prior:.3g}"
    numbers: dict[str, Any] = {"last": last, "prior": prior, "update_ratio": ratio}
    span = (steps[half][0], steps[-1])
    if ratio > 2e-2:
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield finding("error", "learning-rate-high", 0.75, said, steps=span, override=lower_rate(view), **numbers)
    elif ratio < 2e-4 and is_high_enough(view):
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield _gradients_to_blame(view, "warning", said, span, **numbers)
    elif ratio < 2e-4:
        said = f"{evidence}; an update changes the weights by {ratio:.2g} (usual: 0.001)"
        yield finding("warning", "learning-rate-low", 0.6, said, steps=span, override=raise_rate(view), **numbers)
    elif view.task in ("classify", "tag", "regress"):
        if _validation_beats_guessing(view, prior):
            return
        said = f"{evidence}, although updates have the usual size ({ratio:.2g} of the weights)"
        yield _targets_to_blame(view, "warning", 0.65, said, span, **numbers)
    else:
        said = f"{evidence}: many short runs end on this plateau"
        yield finding("info", "training-short", 0.4, said, steps=span, override=longer(view), **numbers)


def _validation_beats_guessing(view: View, prior: float) -> bool:
    """Where one class is rare, guessing by frequency costs so little that the training loss hardly tells."""
    guessing = float(view.fact("validation_prior_loss") or prior)
    evaluations, scores = view.values("loss", "eval"), view.values("f1_macro", "eval")
    if len(evaluations) and evaluations.min() < BETTER_THAN_GUESSING * guessing:
        return True
    is_under_way = len(evaluations) > 0 and evaluations[-1] == evaluations.min() < AS_GOOD_AS_CONSTANT * guessing
    if is_under_way and not view.has_ended:
        return True
    uniform = view.fact("uniform_loss")  # the score of a constant prediction is at most one over the number of classes
    return uniform is not None and len(scores) > 0 and float(scores.max()) > MUCH_BETTER_SCORE * np.exp(-uniform)


@rule(
    "constant-prediction",
    symptom="underfitting",
    looks_at="the best validation loss of a label task against that of the best constant prediction: the mean of the "
    "training targets, or the frequencies of their classes",
    thresholds=f"above {AS_GOOD_AS_CONSTANT:.0%} of it at the end of the run; twice as high is an error{KNOWS}",
    source=f"the input-independent baseline ({RECIPE}); the tolerances are ours",
    fault="a regression that does not learn",
    causes=("constant-missed",),
    needs=("eval:loss", "start:validation_prior_loss"),
)
def constant_prediction(view: View) -> Iterator[Finding]:
    at, evaluations = view.finite("loss", "eval")
    constant = float(view.fact("validation_prior_loss"))
    if (
        not len(evaluations)
        or not view.has_ended
        or constant <= 0
        or evaluations.min() < AS_GOOD_AS_CONSTANT * constant
        or knows_its_task(view)  # it is sure of its few errors
    ):
        return
    best = float(evaluations.min())
    what = "the mean of the training targets" if view.task == "regress" else "the frequencies of the classes"
    evidence = f"the best validation loss is {best:.4g}; always predicting {what} has {constant:.4g}"
    pearson = view.curve("pearson", "eval")[1]
    if view.task == "regress" and len(pearson) and not np.isfinite(pearson[-1]):
        evidence += ", and the model predicts a constant too"
    proof = above_chance(view)
    yield finding(
        "error" if best > 2 * constant else "warning",
        "constant-missed",
        0.9,
        evidence,
        steps=(0, at[-1]),
        remedy=f"{proof[0].upper()}{proof[1:]}: {LEARNABLE}" if proof else None,
        is_by_exclusion=True,
        best=best,
        constant=constant,
    )


@rule(
    "no-better-than-guessing",
    symptom="underfitting",
    looks_at="the best validation loss and the late accuracies of a classifier that is not ours, against those of a "
    "guess",
    thresholds=f"above {AS_GOOD_AS_CONSTANT:.0%} of the loss of guessing by the frequencies of the training data, or "
    "among all classes alike, at the end of the run; and no late accuracy above "
    f"{ABOUT_A_GUESS:g} times that of a guess, or a model that predicts one class only{KNOWS}",
    source=f"the input-independent baseline ({RECIPE}); the tolerances are ours",
    fault="labels shuffled among the training samples; a learning rate that is far too high",
    causes=("constant-missed",),
    needs=("eval:loss", "eval:accuracy"),
    elsewhere=True,
)
def no_better_than_guessing(view: View) -> Iterator[Finding]:
    (at, evaluations), guessing, late = view.finite("loss", "eval"), known_guessing(view), late_accuracies(view)
    if guessing is None:
        raise Lacking("number of classes is known")
    if not len(evaluations) or not view.has_ended or view.fact("validation_prior_loss") is not None:
        return
    # A validation loss may be of another kind than the one of training: the accuracy has to say the same.
    is_a_guess = is_never_above_chance(view, late) or (predicts_one_class(view) and not knows_its_task(view))
    best = float(evaluations.min())
    if not is_a_guess or best < AS_GOOD_AS_CONSTANT * guessing.prior_loss:
        return
    what = "all classes alike" if view.fact("prior_loss") is None else "the frequencies of the classes"
    evidence = (
        f"the best validation loss is {best:.4g}; always predicting {what} has {guessing.prior_loss:.4g}; late "
        f"accuracies are at most {late.max():.1%}, and a uniform guess has {guessing.accuracy:.1%}"
    )
    span = (0, at[-1])
    yield finding("warning", "constant-missed", 0.8, evidence, steps=span, is_by_exclusion=True, best=best)


@rule(
    "too-good",
    symptom="overfitting",
    looks_at="a loss so low so early that the targets must be visible to the model",
    thresholds="below 12 % of the loss of guessing by frequency, within 1.5 epochs",
    source="reasoning: good models of natural text still have about a quarter of the entropy of a byte by frequency",
    fault="no causal mask; targets not shifted",
    causes=("future-leaks",),
    needs=("loss", "start:prior_loss"),
)
def too_good(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    prior = float(view.fact("prior_loss"))
    if len(losses) < FEW or view.task not in ("causal", "masked") or prior < 1.0:
        return
    last = float(np.median(losses[-max(3, len(losses) // 5) :]))
    epochs = view.values("epoch")
    if last < 0.12 * prior and (not len(epochs) or epochs[-1] < 1.5):
        evidence = (
            f"the loss is {last:.3g} after {int(steps[-1]):,} steps; guessing by frequency has a loss of {prior:.3g}"
        )
        yield finding("warning", "future-leaks", 0.5, evidence, steps=(0, steps[-1]), last=last, prior=prior)
