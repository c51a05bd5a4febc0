"""Validation: overfitting, noise, and wrong metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainbook.doctor.chance import (
    ABOUT_A_GUESS,
    BY_CHANCE,
    FEWEST_SAMPLES,
    LEARNED,
    TIMES_A_GUESS,
    accuracies_of,
    below_chance,
    guessing_of,
    has_learned,
    is_never_above_chance,
    late_accuracies,
    predicts_one_class,
)
from trainbook.doctor.curves import (
    FAR_ABOVE_START,
    LEFT,
    NO_BETTER,
    SHORT_CURVE,
    loss_falls_on,
    never_generalized,
    sees_each_row_once,
    standstill_of,
    training_since,
    validation_has_stopped,
)
from trainbook.doctor.remedies import (
    Chosen,
    change,
    chosen_metric,
    keeps_the_best,
    loss_curve,
    lower_rate,
    more_evaluated,
    until,
)
from trainbook.doctor.rule import Lacking, finding, rule
from trainbook.doctor.statistics import noise_of, non_rising, robust_line
from trainbook.doctor.view import STARTS_BY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import TUNING_PLAYBOOK
from trainbook.runs.columns import are_true
from trainbook.runs.run_record import counted

SAME_EVALUATIONS, NOTICEABLE = 3, 0.1
SAME_WAY = (
    "Check that the inputs and labels of the validation split are encoded and preprocessed exactly as those of the "
    "training data."
)


@rule(
    "validation-rises",
    symptom="overfitting",
    looks_at="whether validation has become worse since its best while the training loss falls, by the metric that "
    "chooses the best model (evaluation.metric_for_best_model)",
    thresholds="2 % and 0.02 nats (for a share, 2 standard errors) worse, at least two evaluations after the best, and "
    "by more than the evaluation's own noise, as evaluations lie off the line through their neighbours: about 4 of "
    "its deviations (2 if four evaluations or more since the best are each worse than the one before, except for a "
    "module of your own, which may draw at random), and of 6 evaluations or more the last fifth by half of that; 10 % "
    "is an error if the best checkpoint is not kept; within the first epoch it names a different distribution, if the "
    "rise exceeds the noise of the evaluation and the training loss fell significantly, or if an evaluation within the "
    "first epoch is 20 % worse than the untrained model, none before it 20 % better, and the training loss is; random "
    f"labels, where no evaluation is below {NO_BETTER:.0%} of the loss of the untrained model or of guessing, nor "
    f"late accuracies above {ABOUT_A_GUESS:g} times that of a guess; not where the accuracy is far below that of a "
    "uniform guess",
    source=f"problematic overfitting is a validation error that rises during training ({TUNING_PLAYBOOK}); smaller "
    "rises are noise: a mean over n targets has an error of about 2/sqrt(n) nats",
    fault="a small training set and many epochs",
    causes=("overfitting", "validation-drift", "labels-random"),
    needs=("loss", "eval:loss"),
)
def validation_rises(view: View) -> Iterator[Finding]:
    chosen = chosen_metric(view)
    steps, losses = view.losses()
    if chosen is None or len(chosen.values) < 3 or len(losses) < 6 or below_chance(view):
        return
    if not chosen.has_worsened:
        yield from _overconfident(view, chosen)
        return
    at, best = chosen.steps, chosen.best_step
    then, now = training_since(view, best)
    if now > then or (view.record.origin == "fit" and standstill_of(view) is not None):
        return  # training got worse as well, or is where it began: that is not overfitting
    rise = chosen.share_since
    how = " (a median of rows)" if len(losses) >= SHORT_CURVE else ""
    evidence = f"{chosen.told()}, while the training loss{how} went from {then:.3g} to {now:.3g}"
    span = (best, at[-1])
    epochs = view.values("epoch")
    if said := _worse_from_the_start(view):
        yield finding("error", "validation-drift", 0.85, said, steps=span, remedy=SAME_WAY, rise=rise)
        return
    if len(epochs) and epochs[-1] < 1.0 and not view.is_fine_tuning:
        noise = 2.0 / chosen.targets**0.5 if chosen.targets and chosen.metric == "loss" else 0.0
        since = steps >= min(best, steps[-8:][0])
        if chosen.loss_since < noise or robust_line(steps[since], losses[since]).high >= 0:
            return
        said = f"{evidence}; this is still the first epoch, so it is not overfitting"
        yield finding("error" if rise > 0.1 else "warning", "validation-drift", 0.6, said, steps=span, rise=rise)
        return
    if (said := never_generalized(view)) and (worse := _far_above_from_the_start(view)):
        yield finding("error", "validation-drift", 0.6, f"{evidence}; {worse}", steps=span, remedy=SAME_WAY, rise=rise)
        return
    if said:
        yield from _nothing_general(view, f"{evidence}; {said}", span, rise)
        return
    is_kept = keeps_the_best(view)
    evidence += f"; the checkpoint of step {best:,} is kept as the best" if is_kept else ""
    severity = "error" if rise > 0.1 and not is_kept else "warning"
    override = _against_overfitting(view, best)
    yield finding(severity, "overfitting", 0.75, evidence, steps=span, override=override, rise=rise)


def _worse_from_the_start(view: View) -> str | None:
    """An evaluation within the first epoch that is worse than an untrained model, while training goes well: there was
    nothing to overfit yet. Of an accuracy that is never above chance, `accuracy-against-chance` says more."""
    (at, evaluations), losses = view.finite("loss", "eval"), view.losses()[1]
    epoch_steps, epochs = view.finite("epoch")
    if view.is_fine_tuning or not len(epochs) or is_never_above_chance(view):
        return None
    if not view.starts_by(STARTS_BY) or not view.has_floor:
        return None
    first = float(losses[:3].max())
    # Some logs count whole epochs, from 0 or from 1.
    early = np.interp(at, epoch_steps, epochs) <= (epochs[0] if (epochs % 1 == 0).all() else 1.0)
    for step, loss in zip(at[early], evaluations[early], strict=True):
        then = training_since(view, int(step))[0]
        if loss < 0.8 * first:
            return None  # it was better than an untrained model before it became worse
        if loss >= 1.2 * first and then <= 0.8 * first:
            return (
                f"at step {int(step):,}, within the first epoch, the validation loss was {loss:.3g}, above "
                f"the {first:.3g} of the untrained model, and the training loss {then:.3g}: that is too early for "
                f"overfitting; the validation loss is now {evaluations[-1]:.3g}"
            )
    return None


def _far_above_from_the_start(view: View) -> str | None:
    """Where no epochs were logged: the first evaluation is far worse than the untrained model already, while training
    goes well. Not where next to nothing of the training loss was left by then: data that is memorized, since there is
    little of it or it was seen often, makes validation as bad."""
    (at, evaluations), (steps, losses) = view.finite("loss", "eval"), view.losses()
    first = float(losses[:3].max())
    then = float(np.median(losses[np.argsort(np.abs(steps - at[0]))[:5]]))
    if len(view.values("epoch")) or is_never_above_chance(view) or evaluations[0] < FAR_ABOVE_START * first:
        return None
    if then > 0.8 * first or then <= LEFT * first:
        return None
    return f"the first evaluation, at step {int(at[0]):,}, is far worse already: {evaluations[0]:.3g}"


def _nothing_general(view: View, evidence: str, span: tuple[float, float], rise: float) -> Iterator[Finding]:
    """What was learned holds for the training data alone: its labels are random, or there is far too little of it. An
    accuracy above chance shows that something else is learned as well."""
    accuracies = late_accuracies(view)
    if len(accuracies) and not is_never_above_chance(view, accuracies):
        yield finding("error", "overfitting", 0.5, evidence, steps=span, override=None, rise=rise)
        return
    sure = 0.6 if len(accuracies) else 0.45
    yield finding("error", "labels-random", sure, evidence, steps=span, rise=rise)
    yield finding("warning", "overfitting", 0.35, evidence, steps=span, rise=rise)


def _overconfident(view: View, chosen: Chosen) -> Iterator[Finding]:
    """The loss has risen, but not the metric that the user chose: worth knowing where probabilities are used."""
    loss = loss_curve(view)
    if chosen.metric == "loss" or loss is None or len(loss.values) < 3 or not loss.has_worsened:
        return
    evidence = (
        f"{loss.told()}, but {chosen.name}, which chooses the best model, has not become worse: the predicted "
        "probabilities are overconfident, but the predictions are as good"
    )
    yield finding(
        "info",
        "overfitting",
        0.3,
        evidence,
        steps=(loss.best_step, loss.steps[-1]),
        remedy="Use label smoothing if you need calibrated probabilities; otherwise nothing is wrong.",
        override=change(view, "training.label_smoothing", 0.1),
        rise=loss.share_since,
    )


def _against_overfitting(view: View, best: int) -> str | None:
    dropout = view.setting("model.dropout")
    if dropout is not None and dropout < 0.1 and (changed := change(view, "model.dropout", 0.1)):
        return changed
    shorter = until(view, best) if best else None
    return shorter or change(view, "evaluation.early_stopping_patience", 3)


ONE_TARGET_A_ROW = ("classify", "classify_many", "regress")


@rule(
    "gap",
    symptom="overfitting",
    looks_at="the final validation loss against the loss on training rows: evaluated without dropout where that was "
    "logged and each row has many targets, otherwise the training loss",
    thresholds="25 %, 0.1 nats and 3 standard errors above it; not where the accuracy is far below that of a uniform "
    f"guess; random labels, if at the end no evaluation was below {NO_BETTER:.0%} of the loss of guessing and no late "
    f"accuracy above {ABOUT_A_GUESS:g} times that of a guess, while the training loss is",
    source="reasoning: smaller gaps are usual and harmless; what holds for the training data alone was memorized",
    fault="a small training set; labels shuffled among the training samples",
    causes=("overfitting", "validation-drift", "labels-random"),
    needs=("loss", "eval:loss"),
)
def gap(view: View) -> Iterator[Finding]:
    evaluations = view.values("loss", "eval")
    judged, name = view.values("probe_loss"), "loss on training rows"
    if len(judged) < 6 or view.task in ONE_TARGET_A_ROW:  # a probe has few rows
        judged, name = view.losses()[1], "training loss"
    if len(evaluations) < 2 or len(judged) < 6 or below_chance(view) or _worse_from_the_start(view):
        return
    # Means, as an evaluation is one: a few samples, such as those of a rare class, may cost much more than the median.
    last = judged[-max(5, len(judged) // 5) :]
    late, error = float(last.mean()), float(last.std(ddof=1)) / len(last) ** 0.5
    above = float(evaluations[-1]) - late
    chosen = chosen_metric(view)
    has_risen = chosen is not None and chosen.has_worsened  # of which `validation-rises` speaks
    said, span = None if has_risen else never_generalized(view), (0, view.last_step)
    evidence = f"the validation loss is {evaluations[-1]:.3g}, and the {name} {late:.3g}; {said}"
    if said and (worse := _far_above_from_the_start(view)):
        yield finding("error", "validation-drift", 0.6, f"{evidence}; {worse}", steps=span, remedy=SAME_WAY, gap=above)
        return
    is_no_better = said is not None and view.has_ended and is_never_above_chance(view, late_accuracies(view))
    if is_no_better and not sees_each_row_once(view):
        yield from _nothing_general(view, evidence, span, above)
        return
    early = float(evaluations[0]) - float(judged[: max(5, len(judged) // 3)].mean())
    if above > max(0.25 * view.unit(late), 0.1, 3 * error) and above > early + 0.05:
        evidence = f"the validation loss is {evaluations[-1]:.3g}; the {name} is {late:.3g}"
        yield finding(
            "info",
            "overfitting",
            0.5,
            evidence,
            steps=(0, view.last_step),
            override=_regularized(view),
            remedy="Regularize more, or get more data." if validation_has_stopped(view) else "Get more data.",
            gap=above,
        )


def _regularized(view: View) -> str | None:
    """While validation still gets better, dropout would only slow it down."""
    if view.setting("model.dropout") or not validation_has_stopped(view):
        return None
    return change(view, "model.dropout", 0.1)


LARGE_JUMP = 0.15  # of the loss


@rule(
    "validation-fluctuates",
    symptom="fluctuating validation",
    looks_at="how much the validation loss jumps around the nearest curve that never rises",
    thresholds="jumps above 2 % of the loss over 6 evaluations or more. Where a mean over so many targets is as "
    f"uncertain, it names the evaluation: a warning above {LARGE_JUMP:.0%}, otherwise an info. Where jumps are larger "
    f"than that, it names the learning rate: a warning, or an info below {LARGE_JUMP:.0%} if the last evaluation is "
    "the best. Where the number of targets is not known, the two cannot be told apart: an info, and nothing if the "
    "last evaluation is the best or the validation loss still falls",
    source=f"high variance from step to step late in training hides differences ({TUNING_PLAYBOOK}); a mean over n "
    "targets has an error of about 2/sqrt(n) nats",
    fault="evaluation on a handful of samples; a learning rate that stays high to the end",
    causes=("evaluation-noisy", "learning-rate-high"),
    needs=("eval:loss",),
)
def validation_fluctuates(view: View) -> Iterator[Finding]:
    at, evaluations = view.finite("loss", "eval")
    if len(evaluations) < 6:
        return
    late = evaluations[len(evaluations) // 3 :]
    around = late - non_rising(late)  # a smooth fall, however steep, leaves nothing
    jumps = np.abs(np.diff(around))
    turns = int((np.diff(np.sign(np.diff(around))) != 0).sum())
    level = float(np.median(late))
    jump = float(np.median(jumps))
    unit = view.unit(level)
    if turns < 0.5 * (len(late) - 2) or jump < 0.02 * unit:
        return
    targets = view.values("targets", "eval")
    few = float(np.median(targets)) if len(targets) else None
    # Losses of samples differ by about 2 nats; those of a loss of unknown scale, by about twice their unit.
    spread = 2.0 * max(1.0, unit) if view.record.origin == "fit" else 2.0
    evidence = f"the validation loss changes by {jump:.2g} from one evaluation to the next, around {level:.3g}"
    span = (at[0], at[-1])
    is_large, is_best = jump > LARGE_JUMP * unit, bool(evaluations[-1] == evaluations.min())
    if few is None:
        if not (is_best or loss_falls_on(view)):
            evidence += "; over how many samples was not logged, so this may be the noise of a small validation split"
            yield finding("info", "evaluation-noisy", 0.4, evidence, steps=span, jump=jump)
        return
    expected = spread / few**0.5
    if jump < 4 * expected:
        if evaluations[-1] - evaluations.min() > 4 * expected:
            return  # whatever made it so much worse, it is not noise
        noun = counted(view.record.facts) if view.record.origin == "fit" else "targets"
        evidence += f"; this is within the noise of a mean over {few:,.0f} {noun}"
        override = more_evaluated(view, 10)
        severity = "warning" if is_large else "info"
        yield finding(severity, "evaluation-noisy", 0.65, evidence, steps=span, override=override, jump=jump)
    else:
        severity = "warning" if is_large or not is_best else "info"
        yield finding(severity, "learning-rate-high", 0.5, evidence, steps=span, override=lower_rate(view), jump=jump)


@rule(
    "metric-flat",
    symptom="fluctuating validation",
    looks_at="an accuracy that does not change while the losses fall",
    thresholds="after half of the run, the loss has fallen by a fifth and the accuracy changed by less than 0.01; not "
    "where the model predicts one class only, by its macro F1 or by a loss no lower than that of guessing by frequency",
    source="reasoning: a loss that falls by a fifth improves any metric of the same predictions",
    fault="an accuracy of other predictions than the model's",
    causes=("metric-flat",),
    needs=("eval:accuracy", "eval:loss", "loss"),
)
def metric_flat(view: View) -> Iterator[Finding]:
    at, accuracies = view.finite("accuracy", "eval")
    evaluations, losses = view.values("loss", "eval"), view.losses()[1]
    if len(accuracies) < 4 or len(evaluations) < 4 or len(losses) < 8 or view.last_step < view.total / 2:
        return
    span = (at[0], at[-1])
    unit = view.unit(float(evaluations[0]))
    fall = float(evaluations[0] - evaluations.min()) / unit if unit else 0.0
    moved = float(accuracies.max() - accuracies.min())
    # Of tokens, the commonest one is guessed for a long while before anything else.
    is_of_labels = view.task in ("classify", "tag", "classify_many", None)
    if is_of_labels and fall > 0.2 and moved < 0.01 and accuracies.max() < 0.95:
        if predicts_one_class(view):
            return  # what makes the loss fall are the frequencies of the classes
        evidence = f"the validation loss fell by {fall:.0%}, but the accuracy stays at {accuracies[-1]:.1%}"
        yield finding("warning", "metric-flat", 0.6, evidence, steps=span, moved=moved)


@rule(
    "accuracy-against-chance",
    symptom="fluctuating validation",
    looks_at="the accuracy of a classifier that has learned its training data, and that of the linear baseline, "
    "against the accuracy of a uniform guess; where a log does not tell the number of classes, it follows from the "
    "first loss",
    thresholds=f"less than half of it, with a chance of 1 in {1 / BY_CHANCE:,.0f} by sampling (of {FEWEST_SAMPLES} "
    "samples, where their number is not known), and of the model in the last third, with a validation loss above that "
    f"of a uniform guess and a training loss below {LEARNED:.0%} of that of guessing by frequency; or such losses "
    f"within three epochs, after half of the run, and an accuracy never above {ABOUT_A_GUESS:g} times that of a guess",
    source="the definition: a prediction without any knowledge of the classes is right as often as a guess; to be "
    "right less often takes knowledge, of other labels (Chernoff's bound)",
    fault="validation labels mapped to other numbers",
    causes=("labels-mapped", "metric-flat"),
    needs=("eval:accuracy", "eval:loss", "loss"),
)
def accuracy_against_chance(view: View) -> Iterator[Finding]:
    guessing = guessing_of(view)
    if guessing is None and view.record.origin != "trainbook":
        raise Lacking("number of classes is known")
    at, accuracies = view.finite("accuracy", "eval")[0], accuracies_of(view)
    evaluations, losses, epochs = view.values("loss", "eval"), view.losses()[1], view.values("epoch")
    if guessing is None or not len(at):
        return
    span = (at[0], at[-1])
    if said := below_chance(view):
        evidence = f"{said}: a model that is right less often than by chance knows the classes, but by other labels"
        yield finding("error", "labels-mapped", 0.9, evidence, steps=span)
        return
    if len(accuracies) < 4 or len(losses) < 8 or view.last_step < view.total / 2 or not has_learned(view, guessing):
        return
    is_early = len(epochs) > 0 and epochs[-1] < 3
    if evaluations[-1] > guessing.uniform_loss and is_never_above_chance(view) and is_early:
        evidence = (
            f"the training loss (median of the last rows) is {np.median(losses[-5:]):.3g}, below the "
            f"{guessing.prior_loss:.3g} of guessing by frequency, but the validation loss is {evaluations[-1]:.3g}, "
            f"above the {guessing.uniform_loss:.3g} of a uniform guess: its labels may be mapped differently"
        )
        yield finding("error", "metric-flat", 0.75, evidence, steps=span)


OF_CHOICES = ("classify", "tag", "causal", "chat", "masked", "span", "seq2seq")  # one class of several, by its loss


@rule(
    "accuracy-against-loss",
    symptom="fluctuating validation",
    looks_at="the accuracy against the lowest accuracy that is possible with this validation loss",
    thresholds="less than half of exp(-loss), and 4 standard errors below it, in the median of the last third; "
    "where exp(-loss) "
    f"is below {TIMES_A_GUESS} times that of a uniform guess, less than half of 1 - loss / ln 2",
    source="the accuracy of a calibrated model is at least its mean probability for the right class, which is "
    "exp(-loss) or "
    "more (Jensen); that of any model is at least 1 - loss / ln 2 (Markov)",
    fault="accuracy computed with another class mapping than training uses",
    causes=("metric-flat",),
    needs=("eval:accuracy", "eval:loss"),
)
def accuracy_against_loss(view: View) -> Iterator[Finding]:
    names = ("step", "accuracy", "loss", "targets")
    rows = np.stack(view.record.rows("eval").columns(*names, need=names[:3]), axis=1)
    rows = rows[np.isfinite(rows[:, 2])]
    guessing = guessing_of(view)
    if view.task is None and (guessing is None or not has_learned(view, guessing)):
        raise Lacking("word on what is predicted was logged")
    if len(rows) < 3 or view.task not in (*OF_CHOICES, None):
        return
    late = rows[-max(3, len(rows) // 3) :]
    loss = float(np.median(late[:, 2]))
    uniform = view.fact("uniform_loss") or (guessing.uniform_loss if view.task is None and guessing else None)
    # What a model that has learned nothing holds for likeliest is arbitrary: it may be right less often than by chance.
    knows_more = uniform is not None and loss < uniform - math.log(TIMES_A_GUESS)
    least = math.exp(-loss) if knows_more else 1 - loss / math.log(2)
    if least <= 0:
        return
    accuracy = float(np.median(late[:, 1]))
    targets = float(np.median(np.where(are_true(late[:, 3]), late[:, 3], 100)))
    error = math.sqrt(least * (1 - least) / targets)
    if accuracy < 0.5 * least and accuracy < least - 4 * error:
        evidence = f"the accuracy is {accuracy:.1%}, but a validation loss of {loss:.3g} implies {least:.0%}"
        span = (late[0, 0], late[-1, 0])
        yield finding("error", "metric-flat", 0.9, f"{evidence} or more", steps=span, accuracy=accuracy, least=least)


FEW_SAMPLES = 16  # their mean is uncertain by a quarter of what samples differ by


@rule(
    "few-judged",
    symptom="fluctuating validation",
    looks_at="the number of samples in an evaluation",
    thresholds=f"fewer than {FEW_SAMPLES}, however little the result changes between evaluations",
    source="the standard error of a mean is the standard deviation over sqrt(n); the usual range of "
    "evaluation.eval_max_samples starts at 100",
    fault="evaluation on a handful of samples",
    causes=("evaluation-noisy",),
    needs=("setting:evaluation.eval_max_samples", "eval:loss"),
)
def few_judged(view: View) -> Iterator[Finding]:
    limit, known = view.setting("evaluation.eval_max_samples"), view.fact("validation_samples")
    samples = min((count for count in (limit, known) if count), default=None)
    if samples is None or samples >= FEW_SAMPLES:
        return
    evidence = f"an evaluation uses only {samples} sample{'s' if samples > 1 else ''}"
    is_the_limit = limit is not None and (known is None or known > limit)
    override = change(view, "evaluation.eval_max_samples", 100) if is_the_limit else None
    yield finding("warning", "evaluation-noisy", 0.65, evidence, override=override, samples=samples)


@rule(
    "same-evaluations",
    symptom="fluctuating validation",
    looks_at="evaluations that give the very same loss each time, while the model learns",
    thresholds=f"{SAME_EVALUATIONS} or more, equal to the last digit; the training loss falls by {NOTICEABLE:.0%} or "
    "more",
    source="the definition: another model has another loss",
    fault="a copy of the untrained model is evaluated",
    causes=("evaluation-other-model",),
    needs=("eval:loss", "loss"),
)
def same_evaluations(view: View) -> Iterator[Finding]:
    at, found = view.finite("loss", "eval")
    losses = view.losses()[1]
    if len(found) < SAME_EVALUATIONS or len(np.unique(found)) > 1 or len(losses) < SAME_EVALUATIONS or found[0] == 0:
        return
    first, last = float(np.median(losses[:2])), float(np.median(losses[-2:]))
    if last < first - max(3 * noise_of(losses), NOTICEABLE * view.unit(first)):
        evidence = (
            f"all {len(found)} evaluations give a loss of {found[0]:.6g}, while the training loss goes from "
            f"{first:.3g} to {last:.3g}"
        )
        yield finding("error", "evaluation-other-model", 0.9, evidence, steps=(at[0], at[-1]))
