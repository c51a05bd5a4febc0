"""The data: copies, order, batches that come again, and sides that are not apart or not alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainbook.doctor.chosen import WORSE, chosen_metric
from trainbook.doctor.finding import Finding
from trainbook.doctor.remedies import change
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.view import View

MANY_PAIRS = 30  # of neighbours: fewer may stand in order by chance


@rule(
    "batches-come-again",
    symptom="overfitting",
    looks_at="batches that hold the very rows of one before, within an epoch",
    thresholds="a tenth of them",
    source="the definition of an epoch: each row once",
    fault="a loader that gives the same batches again",
    causes=("batches-repeat",),
    needs=("repeated_batches",),
)
def batches_come_again(view: View) -> Iterator[Finding]:
    steps, shares = view.finite("repeated_batches")
    mean = float(shares.mean()) if len(shares) else 0.0
    if mean > 0.1:
        first = int(steps[int(np.argmax(shares > 0))])
        evidence = f"from step {first:,} on, batches come again within an epoch: {mean:.0%} of all so far"
        yield finding("error", "batches-repeat", 0.95, evidence, steps=(first, steps[-1]), share=mean)


@rule(
    "copies-in-training",
    symptom="overfitting",
    looks_at="rows that come again within an epoch, and spans of text or documents that the training data has twice",
    thresholds="30 % of the rows of an epoch, or of the sampled spans (64 tokens) or documents; half of them is "
    "an error",
    source="reasoning: source code and prose share up to a fifth of such spans (licences, headers, quotations)",
    fault="the training data duplicated several times",
    causes=("data-duplicated",),
    needs=(),
)
def copies_in_training(view: View) -> Iterator[Finding]:
    shares = view.values("repeated_rows")
    late = float(shares[-max(1, len(shares) // 3) :].mean()) if len(shares) else 0.0
    batches = view.values("repeated_batches")
    if len(batches) and batches.mean() > 0.1:
        late = 0.0  # whole batches: that is the loader
    known = float(view.fact("duplicate_share") or 0.0)
    most = max(late, known)
    if most < 0.3:
        return
    where = "spans or documents that were looked at" if known >= late else "rows trained on lately"
    evidence = f"{most:.0%} of the {where} are copies of others"
    severity = "error" if most > 0.5 else "warning"
    yield finding(
        severity, "data-duplicated", 0.85 if most > 0.5 else 0.65, evidence, steps=(0, view.last_step), share=most
    )


@rule(
    "order-of-the-source",
    symptom="fluctuating validation",
    looks_at="whether the rows of a batch stand in the order of the source, and what the configuration says of it",
    thresholds="95 % of neighbours in order, between two resumes or returns; shuffled, a half are",
    source="the definition: of a random order half of the neighbours rise",
    fault="data that is not shuffled",
    causes=("data-unshuffled",),
    needs=("ordered_rows",),
)
def order_of_the_source(view: View) -> Iterator[Finding]:
    each_row = max(1, (view.global_batch or 2) // view.world - 1)
    by_segment: dict[int, list[float]] = {}  # the guard, when it goes back, draws another order
    for row in view.record.train:
        if row.get("ordered_rows") is not None:
            by_segment.setdefault(row.get("segment", 0), []).append(row["ordered_rows"])
    means = [float(np.mean(shares)) for shares in by_segment.values() if len(shares) * each_row >= MANY_PAIRS]
    if not means or max(means) < 0.95:
        return
    asked = view.setting("data.shuffle") is False
    evidence = f"{max(means):.0%} of neighbouring rows stand in the order of the source"
    evidence += "; data.shuffle is off" if asked else ", although data.shuffle is on"
    override = change(view, "data.shuffle", True) if asked else None
    yield finding(
        "warning" if asked else "error", "data-unshuffled", 0.85, evidence, steps=(0, view.last_step), override=override
    )


@rule(
    "order-after-resume",
    symptom="loss spikes",
    looks_at="whether the epoch goes back where the run was resumed",
    thresholds="by more than one row's share",
    source="the definition: a resumed run goes on with the next sample",
    fault="a resume without the loader's state",
    causes=("data-order-restarted",),
    needs=("epoch",),
)
def order_after_resume(view: View) -> Iterator[Finding]:
    steps, epochs = view.finite("epoch")
    falls = np.flatnonzero(np.diff(epochs) < -1e-9)
    if len(falls):
        at = int(falls[0])
        evidence = f"after step {int(steps[at]):,} the epoch went from {epochs[at]:.4g} back to {epochs[at + 1]:.4g}"
        yield finding("error", "data-order-restarted", 0.93, evidence, steps=(steps[at], steps[at + 1]))


@rule(
    "sides-not-apart",
    symptom="overfitting",
    looks_at="spans or documents of validation that the training data has too",
    thresholds="80 % is an error, 40 % worth a look",
    source="the definition; headers and quotations make up to a fifth",
    fault="validation on the training data",
    causes=("evaluation-on-train",),
    needs=("start:validation_overlap",),
)
def sides_not_apart(view: View) -> Iterator[Finding]:
    share = float(view.fact("validation_overlap"))
    if share < 0.4:
        return
    evidence = f"{share:.0%} of what was looked at of validation is in the training data too"
    held_out = view.setting("data.validation") is not None
    override = change(view, "data.validation", None) if held_out else None
    severity = "error" if share > 0.8 else "warning"
    yield finding(
        severity, "evaluation-on-train", 0.95 if share > 0.8 else 0.65, evidence, override=override, share=share
    )


@rule(
    "sides-not-alike",
    symptom="overfitting",
    looks_at="the distributions of tokens and labels in training and validation, and the gap of the losses at "
    "the first evaluation",
    thresholds="tokens 0.03 bits and 2.5 times as unlike as parts of the training data are; labels a quarter "
    "moved; with "
    "a gap of 10 % from the first evaluation on, an error",
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
            f"tokens of validation are {shift:.2g} bits from those of training, whose parts differ by {within:.2g}"
        )
    elif labels > 0.25:
        evidence = f"labels of validation are distributed unlike those of training: {labels:.0%} would have to change"
    else:
        return
    has_gap = gap is not None and gap > 0.1
    last = _last_gap(view)
    if has_gap:
        evidence += f"; the first evaluation is {gap:.0%} above the training loss"
    elif last is not None and last > 0.2:
        has_gap = True
        evidence += f"; the last evaluation is {last:.0%} above the training loss, and no row was seen twice"
    yield finding(
        "error" if has_gap else "warning",
        "validation-drift",
        0.9 if has_gap else 0.6,
        evidence,
        override=change(view, "data.validation", None) if view.setting("data.validation") is not None else None,
        shift=shift,
        within=within,
    )


def _last_gap(view: View) -> float | None:
    """Of the last evaluation to the training loss, as a share, in a run that saw no row twice."""
    epochs, evaluations, losses = view.values("epoch"), view.values("loss", "eval"), view.losses()[1]
    if not len(evaluations) or len(losses) < 5 or (len(epochs) and epochs[-1] > 1.0):
        return None
    return float(evaluations[-1] / np.median(losses[-5:]) - 1)


def first_gap(view: View) -> float | None:
    """Of the first evaluation to the training loss around it, as a share: not yet a matter of learning by heart."""
    at, evaluations = view.finite("loss", "eval")
    steps, losses = view.losses()
    if not len(at) or len(losses) < 3:
        return None
    near = np.argsort(np.abs(steps - at[0]))[:5]
    return float(evaluations[0] / np.median(losses[near]) - 1)


@rule(
    "many-epochs",
    symptom="overfitting",
    looks_at="how often the data was gone through",
    thresholds="20 epochs from scratch or 10 in fine-tuning; worth a look where validation rises, and then from 4 on",
    source="the usual range of training.num_train_epochs; Muennighoff et al. 2023: up to 4 epochs are about as good as "
    "new data",
    fault="a training set of a few hundred rows",
    causes=("dataset-tiny",),
    needs=("epoch",),
)
def many_epochs(view: View) -> Iterator[Finding]:
    epochs = view.values("epoch")
    limit = 10.0 if view.is_fine_tuning else 20.0
    chosen = chosen_metric(view)
    rises = chosen is not None and len(chosen.values) >= 3 and chosen.share_since > WORSE
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
