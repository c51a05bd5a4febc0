"""Updates: their size, their effect on the weights, and whether the optimizer state survived a resume."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainbook.doctor.curves import divergence_of, ends_in_nan, falls_throughout, standstill_of
from trainbook.doctor.remedies import NOT_THE_RATE, change, is_high_enough, lower_rate, raise_rate, usual_rates
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.statistics import detrended, median_and_spread, quantile_over_steps
from trainbook.doctor.view import EARLY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import ADAMW, CS231N, ML_ENGINEERING
from trainbook.runs.columns import are_logged, are_true

USUAL_DECAY = 0.1
HIGH_EPSILON = 1e-3


@rule(
    "update-size",
    symptom="instability",
    looks_at="the relative size of updates (norm of the update over norm of the weights), at the 75th percentile",
    thresholds="above 0.03 or below 0.00001; about 0.001 is usual; above 0.1 in the first "
    f"{EARLY} steps of a run that goes on; for models other than transformers only if the loss does not fall",
    source=f"a rough heuristic is 0.001 ({CS231N}); thirty times that is our threshold, because small models and "
    "first steps are well above it",
    fault="the learning rate 30 times too high or 1,000 times too low",
    causes=("learning-rate-high", "learning-rate-low", "gradients-vanish"),
    needs=("update_ratio",),
)
def update_size(view: View) -> Iterator[Finding]:
    steps, ratios = view.update_ratios()
    kept = ratios > 0  # 0: no update was applied
    steps, ratios = steps[kept], ratios[kept]
    if len(ratios) < 6:
        return
    ratio = quantile_over_steps(steps, ratios, 0.75)
    evidence = f"an update changes the weights by {ratio:.2g} of their norm; about 0.001 is usual"
    span = (steps[0], steps[-1])
    if ratio > (0.1 if view.is_early else 0.03):
        # Where weights start small, as in many small networks, large updates do no harm: the loss tells.
        if not view.is_transformer and falls_throughout(view) and divergence_of(view) is None and not ends_in_nan(view):
            return
        yield finding(
            "error" if ratio > 0.1 else "warning",
            "learning-rate-high",
            0.5 if view.updates_follow_gradients else 0.85 if ratio > 0.1 else 0.6,
            evidence,
            steps=span,
            override=lower_rate(view),
            update_ratio=ratio,
        )
    elif ratio < 1e-5 and is_high_enough(view):
        said = f"{evidence}; the learning rate is {view.peak_rate:.2g}"
        yield finding("warning", "gradients-vanish", 0.6, said, steps=span, remedy=NOT_THE_RATE, update_ratio=ratio)
    elif ratio < 1e-5:
        yield finding(
            "warning", "learning-rate-low", 0.75, evidence, steps=span, override=raise_rate(view), update_ratio=ratio
        )


@rule(
    "weights-shrink",
    symptom="underfitting",
    looks_at="the norm of the weight matrices, and how far weight decay alone shrinks them: the sum of learning "
    "rate times "
    "weight decay over the run",
    thresholds="weight decay alone halves the weights (a sum of 0.7), or the norm has fallen by a quarter and "
    "weight decay "
    "explains it; for models other than transformers only if the run learned nothing or diverged, and a weight decay "
    f"of {USUAL_DECAY:g} or less then names the learning rate",
    source="the definition: decoupled weight decay multiplies the weights by 1 - learning rate x weight decay at each "
    f"update ({ADAMW})",
    fault="weight decay of 10",
    causes=("decay-high", "learning-rate-high"),
    needs=("learning_rate", "setting:optimizer.weight_decay"),
)
def weights_shrink(view: View) -> Iterator[Finding]:
    decay = view.setting("optimizer.weight_decay") or 0.0
    steps, rates = view.finite("learning_rate")
    if decay <= 0 or len(rates) < 4 or view.setting("optimizer.type") in ("sgd",) or view.fact("num_decayed") == 0:
        return
    if view.setting("optimizer.weight_decay_mode") == "independent":
        peak = view.peak_rate or 1.0
        rates = rates / peak
    taken = float(np.trapezoid(rates * decay, steps))
    norm_steps, norms = view.finite("weight_norm")
    fall = 1 - float(np.median(norms[-3:]) / norms.max()) if len(norms) >= 6 else 0.0
    per_thousand = taken / max(1.0, steps[-1] - steps[0]) * 1000
    known = usual_rates(view)
    if known is not None and float(rates.max()) > 10 * known[1] and decay <= USUAL_DECAY:
        return  # the learning rate is what makes a usual weight decay strong
    if not view.is_transformer:
        # Weights that start large may shrink and be none the worse: the loss tells.
        if standstill_of(view) is None and divergence_of(view) is None and not ends_in_nan(view):
            return
        if decay <= USUAL_DECAY and (taken > 0.7 or (fall > 0.25 and taken > 0.2)):
            peak = float(view.finite("learning_rate")[1].max())
            evidence = (
                f"at a learning rate of {peak:.2g}, a usual weight decay of {decay:g} alone shrinks the weights to "
                f"{math.exp(-taken):.2g} of their size in {int(steps[-1]):,} steps"
            )
            span = (steps[0], steps[-1])
            yield finding("error", "learning-rate-high", 0.8, evidence, steps=span, override=lower_rate(view))
            return
    if taken > 0.7 and per_thousand > 0.5:
        left = math.exp(-taken)
        evidence = (
            f"weight decay of {decay:g} alone shrinks the weights to {left:.2g} of their size in "
            f"{int(steps[-1]):,} steps"
        )
        evidence += f"; their norm has fallen by {fall:.0%}" if fall > 0.1 else ""
        sure = 0.85 if fall > 0.2 or taken > 2 else 0.6
        yield finding(
            "error" if sure > 0.8 else "warning",
            "decay-high",
            sure,
            evidence,
            steps=(steps[0], steps[-1]),
            override=_weaker_decay(view, decay, taken),
            taken=taken,
            fall=fall,
        )
    elif fall > 0.25 and taken > 0.2:
        evidence = f"the norm of the weights has fallen by {fall:.0%}; weight decay of {decay:g} explains it"
        yield finding(
            "warning",
            "decay-high",
            0.6,
            evidence,
            steps=(norm_steps[0], norm_steps[-1]),
            override=_weaker_decay(view, decay, taken),
            taken=taken,
            fall=fall,
        )


def _weaker_decay(view: View, decay: float, taken: float) -> str | None:
    """The usual one; where that is no less, one that takes a quarter of the weights over such a run."""
    weaker = USUAL_DECAY if decay > 1.5 * USUAL_DECAY else float(f"{decay * 0.3 / taken:.1g}")
    return change(view, "optimizer.weight_decay", weaker)


@rule(
    "averages-lost",
    symptom="loss spikes",
    looks_at="the optimizer's own count of updates against the number of applied updates",
    thresholds="more than 2 updates and 2 % missing, in a run that was resumed",
    source="the definition: both count the same updates",
    fault="a resume without the optimizer state",
    causes=("optimizer-state-lost",),
    needs=("optimizer_updates", "applied_updates"),
)
def averages_lost(view: View) -> Iterator[Finding]:
    if not view.events("resume"):
        return
    for step, seen, applied in _counted_updates(view):
        lost = np.flatnonzero(_are_missing(seen, applied))
        if len(lost):
            at, covered, of = (int(column[lost[0]]) for column in (step, seen, applied))
            evidence = f"at step {at:,} the optimizer state covers {covered:,} of {of:,} updates"
            yield finding("error", "optimizer-state-lost", 0.97, evidence, steps=(at, view.last_step), is_observed=True)
            return


def _counted_updates(view: View) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of the rows that have both, a block at a time: steps, the optimizer's own count, and the updates applied."""
    for steps, seen, applied in view.record.rows("train").blocks("step", "optimizer_updates", "applied_updates"):
        both = are_logged(seen) & are_logged(applied)
        yield steps[both], seen[both], applied[both]


@rule(
    "resume-spike",
    symptom="loss spikes",
    looks_at="loss and size of updates right after a resume, against right before",
    thresholds="the loss jumps by 4 robust deviations and 5 %; updates are 2.5 times as large relative to the "
    "learning rate; "
    "skipped if the optimizer's own count of updates continues",
    source=f"a resume that does not restore everything shows in the loss ({ML_ENGINEERING}); the tolerances are ours",
    fault="a resume without the optimizer state",
    causes=("optimizer-state-lost",),
    needs=("loss", "segment"),
)
def resume_spike(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 10:
        return
    noise = median_and_spread(detrended(losses))[1]
    for event in view.events("resume"):
        at = event["step"]
        before, after = losses[steps <= at][-5:], losses[steps > at][:5]
        if len(before) < 3 or len(after) < 2 or _has_its_state(view, at):
            continue
        jump = float(after.max() - np.median(before))
        larger = _larger_updates(view, at)
        if jump < max(4 * noise, 0.05 * view.unit(float(np.median(before)))) and not (larger and larger > 2.5):
            continue
        evidence = f"after the resume at step {at:,} the loss reached {after.max():.3g}; it was {np.median(before):.3g}"
        if larger and larger > 2.5:
            evidence += f", and updates are {larger:.1f} times as large relative to the learning rate"
        sure = 0.85 if larger and larger > 2.5 else 0.5
        yield finding("warning", "optimizer-state-lost", sure, evidence, steps=(at, steps[steps > at][len(after) - 1]))


def _has_its_state(view: View, at: int) -> bool:
    """The optimizer's own count goes on after the resume: whatever the loss does there, the state was not lost."""
    for steps, seen, applied in _counted_updates(view):
        later = steps > at
        if later.any():
            return not _are_missing(seen[later][:1], applied[later][:1])[0]
    return False


def _are_missing(seen: np.ndarray, applied: np.ndarray) -> np.ndarray:
    """More than rounding: updates that were applied, and that the optimizer's averages have not seen."""
    return applied - seen > np.maximum(2, 0.02 * applied)


def _larger_updates(view: View, at: int) -> float | None:
    before, after = np.zeros(0), np.zeros(0)
    for steps, ratios, rates in view.record.rows("train").blocks("step", "update_ratio", "learning_rate"):
        known = are_true(ratios) & are_true(rates)
        sizes, is_before = ratios[known] / rates[known], steps[known] <= at
        before = np.concatenate([before, sizes[is_before]])[-5:]
        after = np.concatenate([after, sizes[~is_before]])[:2]
    return float(max(after) / np.median(before)) if len(before) >= 3 and len(after) else None


@rule(
    "loss-of-the-batch",
    symptom="underfitting",
    looks_at="the training loss against the loss of rows of the same batches evaluated without dropout",
    thresholds="10 % and 0.1 nats above it names dropout, if the model may have any; a factor equal to the "
    "number of gradient accumulation steps, or its inverse, names the accumulation",
    source="reasoning: dropout of 0.1 costs about 3 %",
    fault="dropout of 0.6; a loss that depends on the accumulation",
    causes=("dropout-high", "accumulation-wrong", "targets-not-shifted"),
    needs=("loss", "probe_loss"),
)
def loss_of_the_batch(view: View) -> Iterator[Finding]:
    names = ("step", "probe_loss", "loss", "cross_entropy")
    steps, judged, trained, plain = view.record.rows("train").columns(*names, need=names[:3])
    trained = np.where(are_logged(plain), plain, trained)
    kept = np.isfinite(trained) & np.isfinite(judged) & (judged > 1e-3)
    steps, trained, judged = steps[kept], trained[kept], judged[kept]
    if len(steps) < 8:
        return
    first = sum(trained[:3].tolist()) / sum(judged[:3].tolist())
    late = slice(len(steps) // 4, None)
    steps, trained, judged = steps[late], trained[late], judged[late]
    # Means: the losses of a few rows are skewed, and their median lies below.
    ratio = float(trained.mean() / judged.mean())
    differences = trained - judged
    middle, error = float(differences.mean()), float(differences.std()) / len(steps) ** 0.5
    span = (steps[0], steps[-1])
    said = (
        f"the training loss is {trained.mean():.3g}; rows of the same batches, evaluated without dropout, have a "
        "loss of "
        f"{judged.mean():.3g}"
    )
    count = view.accumulation
    for factor in (count, 1 / count) if count > 1 else ():
        # Dropout makes the two differ as well, but hardly in the first rows.
        if abs(ratio / factor - 1) < 0.12 and abs(first / factor - 1) < 0.12:
            evidence = f"{said}: a factor of {ratio:.2g}, with {count} gradient accumulation steps"
            yield finding("error", "accumulation-wrong", 0.9, evidence, steps=span, ratio=ratio)
            return
    dropout = view.setting("model.dropout") or 0.0
    if middle - 3 * error > max(0.1 * float(judged.mean()), 0.1):
        if view.has_no_dropout:
            return  # a task of the user's own may weigh its losses: they are not those of these rows then
        sure = 0.85 if dropout > 0.3 else 0.6 if dropout > 0 else 0.4
        override = change(view, "model.dropout", 0.1) if dropout > 0.15 else None
        evidence = f"{said}; model.dropout is {dropout:g}"
        yield finding("warning", "dropout-high", sure, evidence, steps=span, override=override, ratio=ratio)
    elif ratio < 0.67 and middle + 3 * error < -0.1 and not view.predicts_labels:  # whose own loss may be any number
        evidence = f"{said}: the training loss does not use these targets"
        yield finding("warning", "targets-not-shifted", 0.45, evidence, steps=span, ratio=ratio)


@rule(
    "epsilon-for-the-case",
    symptom="loss not decreasing",
    looks_at="the epsilon of Adam and its kin",
    thresholds=f"{HIGH_EPSILON:g} or more",
    source="Adam divides by the root of the mean squared gradient plus epsilon: an epsilon above typical gradients of "
    "single weights shrinks every update",
    fault="an epsilon of 1",
    causes=("epsilon-high",),
    needs=("setting:optimizer.epsilon",),
)
def epsilon_for_the_case(view: View) -> Iterator[Finding]:
    epsilon = view.setting("optimizer.epsilon")
    if view.setting("optimizer.type") in ("sgd", "muon", "lion") or not isinstance(epsilon, (int, float)):
        return
    if epsilon >= HIGH_EPSILON:
        usual_one = change(view, "optimizer.epsilon", 1e-8)
        evidence = f"optimizer.epsilon is {epsilon:g} (usual: 1e-8)"
        yield finding("warning", "epsilon-high", 0.7, evidence, override=usual_one, epsilon=float(epsilon))
