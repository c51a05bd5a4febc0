"""The data: duplicates, order, repeated batches, and a validation split that overlaps with the training data or differs
from it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainbook.doctor.chance import accuracies_of, below_chance
from trainbook.doctor.curves import FEW, divergence_of, standstill_of, training_since
from trainbook.doctor.remedies import change, chosen_metric, highest_usual_rate
from trainbook.doctor.rule import Lacking, finding, rule
from trainbook.doctor.rules.stability import find_spikes
from trainbook.doctor.statistics import wave_of_epochs
from trainbook.doctor.view import STARTS_BY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import REPEATED_DATA
from trainbook.runs.columns import are_logged

CHANCE = 1e-4  # of a wave in the losses of shuffled data
LEAST_SWING = 1.3  # the highest of the wave over its lowest
LARGE_UPDATE = 0.03  # of the norm of the weights
LASTING = 4  # rows at another level: more than a hard batch or two
PART = 0.7  # of the tokens of the texts
HALF_OF_ERRORS = 0.5
MANY_PAIRS = 30  # of neighbours: fewer may stand in order by chance


@rule(
    "batches-come-again",
    symptom="overfitting",
    looks_at="batches with exactly the rows of an earlier batch of the same epoch",
    thresholds="more than 10 % of the batches",
    source="the definition of an epoch: every row once",
    fault="a data loader that returns the same batches again",
    causes=("batches-repeat",),
    needs=("repeated_batches",),
)
def batches_come_again(view: View) -> Iterator[Finding]:
    steps, shares = view.finite("repeated_batches")
    if _alike_when_truncated(view):
        return
    mean = float(shares.mean()) if len(shares) else 0.0
    if mean > 0.1:
        first = int(steps[int(np.argmax(shares > 0))])
        evidence = f"{mean:.0%} of the batches repeat an earlier batch of the same epoch, first at step {first:,}"
        yield finding("error", "batches-repeat", 0.95, evidence, steps=(first, steps[-1]), share=mean, is_observed=True)


@rule(
    "copies-in-training",
    symptom="overfitting",
    looks_at="rows that repeat within an epoch, and spans of text or documents that occur twice in the training data",
    thresholds="30 % of the rows of an epoch, or of the sampled spans (64 tokens) or documents; more than half is "
    "an error",
    source="reasoning: source code and prose share up to a fifth of such spans (licences, headers, quotations)",
    fault="the training data duplicated several times",
    causes=("data-duplicated",),
    needs=(),
)
def copies_in_training(view: View) -> Iterator[Finding]:
    shares = view.values("repeated_rows")
    late = float(shares[-max(1, len(shares) // 3) :].mean()) if len(shares) else 0.0
    if _alike_when_truncated(view):
        late = 0.0  # of rows as they are read; whole texts are told apart below
    batches = view.values("repeated_batches")
    if len(batches) and batches.mean() > 0.1:
        late = 0.0  # whole batches: that is the loader
    known = float(view.fact("duplicate_share") or 0.0)
    most = max(late, known)
    if most < 0.3:
        return
    where = "sampled spans or documents" if known >= late else "recent training rows"
    evidence = f"{most:.0%} of the {where} are duplicates"
    severity = "error" if most > 0.5 else "warning"
    yield finding(
        severity,
        "data-duplicated",
        0.85 if most > 0.5 else 0.65,
        evidence,
        steps=(0, view.last_step),
        share=most,
        is_observed=True,
    )


@rule(
    "truncated-texts",
    symptom="loss not decreasing",
    looks_at="how much of the texts is read, and how many of them are equal only because the rest is truncated",
    thresholds="a tenth of the texts equal for that reason is a warning, more than 30 % an error; or less than "
    f"{PART:.0%} of the tokens read, and a linear model on whole texts makes less than {HALF_OF_ERRORS:.0%} of the "
    "errors of the best evaluation, after half of the run",
    source="the definition: what is truncated is never seen",
    fault="a sequence length that cuts off what tells texts apart",
    causes=("text-truncated",),
)
def truncated_texts(view: View) -> Iterator[Finding]:
    alike, read = _alike_when_truncated(view), float(view.fact("share_read") or 0.0)
    if not alike:
        yield from _rest_tells(view, read)
        return
    evidence = (
        f"{alike:.0%} of the texts are equal to another one as far as they are read, but not as a whole; {read:.0%} of "
        "their tokens are read"
    )
    length = view.setting("data.max_seq_length")
    override = None if length is None or read <= 0 else change(view, "data.max_seq_length", _longer(length / read))
    severity, sure = ("error", 0.9) if alike > 0.3 else ("warning", 0.7)
    yield finding(
        severity, "text-truncated", sure, evidence, override=override, alike=alike, read=read, is_observed=True
    )


def _rest_tells(view: View, read: float) -> Iterator[Finding]:
    """A linear model on whole texts is right far more often than this one, which reads a part of them."""
    baseline, accuracies = view.values("baseline_accuracy", "eval"), accuracies_of(view)
    if not 0 < read < PART or not len(baseline) or not len(accuracies) or view.last_step < view.total / 2:
        return
    whole, part = float(baseline[-1]), float(accuracies.max())
    if (1 - whole) > HALF_OF_ERRORS * (1 - part):
        return
    evidence = (
        f"{read:.0%} of the tokens of the texts are read, and the accuracy is {part:.1%}; a linear model on the words "
        f"of the whole texts has {whole:.1%}"
    )
    length = view.setting("data.max_seq_length")
    override = None if length is None else change(view, "data.max_seq_length", _longer(length / read))
    yield finding("warning", "text-truncated", 0.75, evidence, override=override, read=read, whole=whole, part=part)


def _alike_when_truncated(view: View) -> float:
    """The share of such texts, or 0 if they are few."""
    share = float(view.fact("alike_when_truncated") or 0.0)
    return share if share > 0.1 else 0.0


def _longer(tokens: float) -> int:
    """The next power of two."""
    return 2 ** math.ceil(math.log2(tokens))


@rule(
    "order-of-the-source",
    symptom="fluctuating validation",
    looks_at="whether the rows of a batch are in the order of the source, and whether data.shuffle is on; of a module "
    "of your own, whether the loss rises and falls with the epoch",
    thresholds="95 % of neighbouring rows in order, between two resumes or rollbacks; in shuffled data half are. Of "
    f"the loss: a wave of one epoch around its trend, by chance in less than 1 of {1 / CHANCE:,.0f} runs; or a loss "
    "below 1 % of the first that then rises above the first, within the first epoch; or, of data that "
    "is known to be read in a fixed order, a loss that jumps for long or diverges while updates and learning rate are "
    "usual",
    source="the definition: in a random order, half of the neighbouring pairs ascend; the F test of a regression on "
    "the sine and cosine of the position in the epoch",
    fault="data that is not shuffled",
    causes=("data-unshuffled",),
)
def order_of_the_source(view: View) -> Iterator[Finding]:
    if not view.record.has("ordered_rows"):
        if view.record.origin != "fit" or not view.record.has("epoch") or not view.record.has("loss"):
            raise Lacking("ordered_rows")
        yield from _loss_follows_the_order(view)
        return
    each_row = max(1, (view.global_batch or 2) // view.world - 1)
    shares, segments = view.record.rows("train").columns("ordered_rows", "segment", need=["ordered_rows"])
    segments = np.where(are_logged(segments), segments, 0)
    # The guard, when it goes back, draws another order.
    by_segment = [shares[segments == segment] for segment in np.unique(segments)]
    means = [float(np.mean(shares)) for shares in by_segment if len(shares) * each_row >= MANY_PAIRS]
    if not means or max(means) < 0.95:
        return
    asked = view.setting("data.shuffle") is False
    evidence = f"{max(means):.0%} of neighbouring rows are in the order of the source"
    evidence += "; data.shuffle is off" if asked else ", although data.shuffle is on"
    override = change(view, "data.shuffle", True) if asked else None
    yield finding(
        "warning" if asked else "error",
        "data-unshuffled",
        0.85,
        evidence,
        steps=(0, view.last_step),
        override=override,
        is_observed=True,
    )


def _loss_follows_the_order(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    at, epochs = view.finite("epoch")
    if len(losses) < FEW or losses.min() < 0 or not len(at):
        return
    epochs = np.interp(steps, at, epochs)
    evidence = _alike_batches(steps[epochs <= 1], losses[epochs <= 1])
    if evidence is None:
        rest = epochs > 0.5  # the first steps change the loss more than the order does
        wave = wave_of_epochs(epochs[rest], losses[rest])
        if wave is not None and wave.by_chance <= CHANCE and wave.swing >= LEAST_SWING:
            evidence = f"the loss rises and falls with each epoch, by a factor of {wave.swing:.2g}"
        elif view.fact("in_order") and (jump := _jump_at_small_updates(view)):
            evidence = f"the data is read in a fixed order, and the loss {jump}, although updates are not large"
        else:
            return
    yield finding(
        "warning",
        "data-unshuffled",
        0.75 if view.fact("in_order") else 0.7,
        f"{evidence}, as it does where samples come in the same order in every epoch",
        steps=(0, view.last_step),
        remedy="Shuffle it, such as with DataLoader(…, shuffle=True).",
    )


def _jump_at_small_updates(view: View) -> str | None:
    """Of a run whose learning rate and updates are usual, so that a loss that rises for long is not their fault."""
    steps, losses = view.losses()
    ratios, usual = view.update_ratios()[1], highest_usual_rate(view)
    if not len(ratios) or np.median(ratios) > LARGE_UPDATE or usual is None or (view.peak_rate or 0.0) > 10 * usual:
        return None
    lasting = [spike for spike in find_spikes(view) if _lasts(view, spike[0])]
    if lasting:
        at, highest, _ = max(lasting, key=lambda spike: spike[1])
        before = float(losses[steps < at][-1])
        return f"jumps from {before:.3g} to {highest:.3g} at step {at:,}"
    found = divergence_of(view)
    return None if found is None else f"rose from {found.lowest:.3g} at step {found.at:,} to {found.last:.3g}"


def _lasts(view: View, step: int) -> bool:
    """Whether the rows after a jump stay up: one hard batch is followed by usual ones. A loss that rises to no more
    than the first loss may still be on its way down from it."""
    steps, losses = view.losses()
    before = float(np.median(losses[steps < step][-LASTING:]))
    after = losses[steps >= step][:LASTING]
    least = max(float(np.median(losses[:LASTING])), (before + float(losses[steps == step][0])) / 2)
    return len(after) == LASTING and float(after.min()) > least


def _alike_batches(steps: np.ndarray, losses: np.ndarray) -> str | None:
    """Within the first epoch a loss near 0, and then for several rows one above the first: the first batches had one
    class only. A learning rate that is too high makes the loss rise before it ever falls so far."""
    if len(losses) < 8 or steps[0] > STARTS_BY:
        return None
    low = int(np.argmax(losses < 0.01 * losses[0]))
    is_above = losses > 1.5 * losses[0]
    if low == 0 or is_above[:low].any() or not (is_above[low:-2] & is_above[low + 1 : -1] & is_above[low + 2 :]).any():
        return None
    highest = float(losses[low:].max())
    return f"within the first epoch the loss fell from {losses[0]:.3g} to {losses[low]:.2g} and rose to {highest:.3g}"


@rule(
    "order-after-resume",
    symptom="loss spikes",
    looks_at="whether the epoch counter goes back when the run is resumed",
    thresholds="any decrease",
    source="the definition: a resumed run continues with the next sample",
    fault="a resume without the state of the data loader",
    causes=("data-order-restarted",),
    needs=("epoch",),
)
def order_after_resume(view: View) -> Iterator[Finding]:
    steps, epochs = view.finite("epoch")
    falls = np.flatnonzero(np.diff(epochs) < -1e-9)
    if len(falls):
        at = int(falls[0])
        evidence = f"after step {int(steps[at]):,} the epoch went from {epochs[at]:.4g} back to {epochs[at + 1]:.4g}"
        yield finding(
            "error", "data-order-restarted", 0.93, evidence, steps=(steps[at], steps[at + 1]), is_observed=True
        )


@rule(
    "sides-not-apart",
    symptom="overfitting",
    looks_at="spans or documents of the validation split that are also in the training data",
    thresholds="40 % is a warning, more than half an error",
    source="the definition; headers and quotations account for up to a fifth",
    fault="validation on the training data",
    causes=("evaluation-on-train",),
    needs=("start:validation_overlap",),
)
def sides_not_apart(view: View) -> Iterator[Finding]:
    share = float(view.fact("validation_overlap"))
    if share < 0.4:
        return
    evidence = f"{share:.0%} of the sampled validation data is also in the training data"
    held_out = view.setting("data.validation") is not None
    override = change(view, "data.validation", None) if held_out else None
    sure = 0.95 if share > 0.8 else 0.9 if share > 0.5 else 0.75
    severity = "error" if share > 0.5 else "warning"
    yield finding(severity, "evaluation-on-train", sure, evidence, override=override, share=share, is_observed=True)


@rule(
    "sides-not-alike",
    symptom="overfitting",
    looks_at="the distributions of tokens and labels in training and validation, and the gap between the losses at the "
    "first evaluation",
    thresholds="a token divergence of 0.03 bits and 2.5 times the divergence between parts of the training data; a "
    "quarter of "
    "the labels distributed differently; an error if the loss gap is 10 % from the first evaluation on",
    source="reasoning; `trainbook data` measures it with an interval",
    fault="validation from another source",
    causes=("validation-drift",),
    needs=("start:token_shift",),
)
def sides_not_alike(view: View) -> Iterator[Finding]:
    shift, within = float(view.fact("token_shift")), float(view.fact("token_shift_within") or 0.0)
    labels = float(view.fact("label_shift") or 0.0)
    gap = first_gap(view)
    if shift > max(0.03, 2.5 * within) or (shift > max(0.015, 6 * within) and (_last_gap(view) or 0.0) > 0.2):
        evidence = (
            f"the token distributions of training and validation differ by {shift:.2g} bits; parts of the training "
            "data "
            f"differ by {within:.2g}"
        )
    elif labels > 0.25 + _by_chance(view):
        evidence = f"the label distributions of training and validation differ by {labels:.0%}"
    else:
        return
    has_gap = gap is not None and gap > 0.1 and _epoch_of_first_evaluation(view) <= 1.0
    last = _last_gap(view)
    if has_gap:
        evidence += f"; the first evaluation is {gap:.0%} above the training loss"
    elif last is not None and last > 0.2:
        has_gap = True
        evidence += f"; the last evaluation is {last:.0%} above the training loss, within the first epoch"
    yield finding(
        "error" if has_gap else "warning",
        "validation-drift",
        0.9 if has_gap else 0.6,
        evidence,
        override=change(view, "data.validation", None) if view.setting("data.validation") is not None else None,
        shift=shift,
        within=within,
    )


def _by_chance(view: View) -> float:
    """How far the shares of classes in a random split are from those of all data: the expected total variation distance
    is at most half of this (each class has a standard error of sqrt(p (1 - p) / n))."""
    samples, uniform = view.fact("validation_samples"), view.fact("uniform_loss")
    if not samples or uniform is None:
        return 0.0
    return math.sqrt(max(0.0, math.exp(uniform) - 1) / samples)


def _epoch_of_first_evaluation(view: View) -> float:
    """After the first epoch, a gap may be overfitting. Where epochs are not known, it is taken to be early."""
    at, _ = view.finite("loss", "eval")
    steps, epochs = view.finite("epoch")
    return float(np.interp(at[0], steps, epochs)) if len(at) and len(steps) else 0.0


def _last_gap(view: View) -> float | None:
    """Of the last evaluation to the training loss, as a share, in a run that saw no row twice."""
    epochs, evaluations, losses = view.values("epoch"), view.values("loss", "eval"), view.losses()[1]
    if not len(evaluations) or len(losses) < 5 or (len(epochs) and epochs[-1] > 1.0):
        return None
    return float(evaluations[-1] / np.median(losses[-5:]) - 1)


def first_gap(view: View) -> float | None:
    """Of the first evaluation to the training loss around it, as a share: too early for overfitting."""
    at, evaluations = view.finite("loss", "eval")
    steps, losses = view.losses()
    if not len(at) or len(losses) < 3:
        return None
    near = np.argsort(np.abs(steps - at[0]))[:5]
    return float(evaluations[0] / np.median(losses[near]) - 1)


@rule(
    "many-epochs",
    symptom="overfitting",
    looks_at="the number of epochs",
    thresholds="20 epochs from scratch or 10 in fine-tuning; a warning if validation was best two or more evaluations "
    "ago and is worse by more than noise while the training loss has not risen, and then from 4 epochs on",
    source="the usual range of training.num_train_epochs; up to 4 epochs are about as good as new data "
    f"({REPEATED_DATA})",
    fault="a training set of a few hundred rows",
    causes=("dataset-tiny",),
    needs=("epoch",),
)
def many_epochs(view: View) -> Iterator[Finding]:
    epochs = view.values("epoch")
    limit = 10.0 if view.is_fine_tuning else 20.0
    if divergence_of(view) is not None or (view.record.origin == "fit" and standstill_of(view) is not None):
        return  # not for want of data
    chosen = chosen_metric(view)
    rises = chosen is not None and len(chosen.values) >= 3 and chosen.has_worsened and not below_chance(view)
    if chosen is not None and rises:
        then, now = training_since(view, chosen.best_step)
        rises = not now > then  # training got worse as well: that is not for want of data
    if not len(epochs) or epochs.max() < (4.0 if rises else limit):
        return
    evidence = f"{epochs.max():.0f} epochs over the training data"
    if rises and chosen is not None:
        evidence += f"; {chosen.told()}"
    yield finding(
        "warning" if rises else "info",
        "dataset-tiny",
        (0.75 if epochs.max() >= limit else 0.45) if rises else 0.4,
        evidence,
        steps=(0, view.last_step),
        override=change(view, "evaluation.early_stopping_patience", 3) if rises else None,
        remedy=None if rises else "Get more data, or start from a pretrained model.",
    )
