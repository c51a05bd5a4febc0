"""Instability: a loss that diverges or spikes, and logits that keep growing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainbook.doctor.curves import (
    EXPLODED,
    FEW,
    REPLACED,
    divergence_of,
    fades_to_zero,
    has_exploded,
    loss_falls_on,
    thrown_at_first,
)
from trainbook.doctor.remedies import FAR, SHOT_UP, change, highest_usual_rate, lower_rate, without_bad_samples
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.rules.breaks import sudden_break
from trainbook.doctor.statistics import detrended, median_and_spread, rank_correlation, robust_line, running_median
from trainbook.doctor.view import EARLY, STARTS_BY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import ML_ENGINEERING, PALM, SMALL_SCALE_PROXIES, VIT_22B

OF_START = 12  # rows, that the noise of the start can be read from


@rule(
    "divergence",
    symptom="instability",
    looks_at="the loss late in the run, against its lowest and first values",
    thresholds="the median of the last fifth has given back half of the improvement, by 6 standard errors of the "
    "difference of two medians (and by 4 deviations of single rows, if the validation loss falls meanwhile); or is "
    "10 % and 4 deviations of single rows above the first loss (in the first "
    f"{EARLY} steps of a run that goes on only this, and 50 % and 8 deviations); of a module of your own, also "
    f"{SHOT_UP:g} times the first loss right after it, at a learning rate {FAR:g} times the highest usual one, or by "
    f"an update {REPLACED:g} times as large as the weights (an error if the run ends no better than it began, or than "
    "guessing); a "
    "warning if the loss is below 0 at times, or depends on parameters that something else trains, unless it ends "
    f"{EXPLODED:g} times as far from 0 as it was at first or at its best; nothing where a loss below 0 goes to 0 "
    "together with its gradients, as that of a policy",
    source="reasoning: noise does not undo half of the improvement; deviations are those of neighbouring rows",
    fault="the learning rate 30 times too high",
    causes=("learning-rate-high",),
    needs=("loss",),
)
def divergence(view: View) -> Iterator[Finding]:
    found = divergence_of(view)
    if found is None:
        yield from _shot_up(view)
        return
    sure = 0.35 if sudden_break(view) else 0.7
    evidence = f"the loss started at {found.first:.3g}, fell to {found.lowest:.3g} around step {found.at:,}, and has a "
    evidence += f"median of {found.last:.3g} in the last fifth"
    if found.is_above_start:
        evidence = f"the median loss of the last fifth is {found.last:.3g}, above its start of {found.first:.3g}"
    yield finding(
        "error" if _has_level(view) else "warning",
        "learning-rate-high",
        sure,
        evidence,
        steps=(found.at, view.last_step),
        override=lower_rate(view),
        first=found.first,
        lowest=found.lowest,
        last=found.last,
    )


def _has_level(view: View) -> bool:
    """A loss without a floor, as of a policy, need not fall at all, and neither need that of an opponent; but none is
    meant to explode."""
    return (view.has_floor and not view.is_shared) or has_exploded(view)


def _shot_up(view: View) -> Iterator[Finding]:
    """Right after the start, by updates as large as the weights or at a learning rate far above the usual one; whatever
    the loss did later."""
    thrown, (steps, losses) = thrown_at_first(view), view.losses()
    rate, usual = view.peak_rate, highest_usual_rate(view)
    factor = rate / usual if rate is not None and usual is not None else 0.0
    if thrown is None and (factor < FAR or len(losses) < FEW or steps[0] > STARTS_BY or not view.has_floor):
        return
    early = losses[steps <= view.first_steps]
    first, highest = float(losses[0]), float(early.max())
    if highest < SHOT_UP * first:
        return
    span = (steps[0], steps[len(early) - 1])
    rose = f"the loss rose from {first:.3g} to {highest:.3g} within the first {int(span[1])} steps"
    updates = f"an update was {thrown.update:.2g} times as large as the weights" if thrown else ""
    evidence = f"{updates}, and {rose}"
    if factor >= FAR:
        evidence = (
            f"a learning rate of {rate:.3g} is {factor:,.0f} times the highest usual one of this optimizer "
            f"({usual:g}), {f'{updates}, ' if updates else ''}and {rose}"
        )
    is_lost = thrown is not None and not thrown.has_learned and view.has_ended
    if is_lost:
        evidence += "; it ends no lower than it began, or than guessing"
    severity, sure = ("error", 0.85) if is_lost else ("warning", 0.7)
    yield finding(severity, "learning-rate-high", sure, evidence, steps=span, override=lower_rate(view))


@rule(
    "spikes",
    symptom="loss spikes",
    looks_at="losses far above their neighbours, and whether the loss recovers quickly, slowly or not",
    thresholds="6 robust deviations and 15 % above the preceding median; quickly: recovered within 3 logged rows; 3 "
    "such spikes, the highest 50 % above the median, are a warning, but nothing is said of them where the loss goes "
    "below zero (a log-likelihood jumps by nature) and does not diverge; nothing is said at all where the loss depends "
    "on parameters that something else trains, and does not explode, and only a warning where a loss below zero does "
    "not; in the first "
    f"{EARLY} steps of a run that goes on only spikes to twice the first loss",
    source=f"spikes recover fast, slowly or not fully ({ML_ENGINEERING}); the tolerances are ours",
    fault="a batch of poisoned samples; the learning rate too high",
    causes=("bad-samples", "learning-rate-high", "warmup-short"),
    needs=("loss",),
)
def spikes(view: View) -> Iterator[Finding]:
    at, losses = view.losses()
    if len(losses) < FEW:
        return
    found = find_spikes(view)
    if not found:
        return
    lasting = [spike for spike in found if spike[2] == "none"]
    slow = [spike for spike in found if spike[2] == "slow"]
    worst = max(found, key=lambda spike: spike[1])
    if not (lasting or slow) and jumps_by_nature(view):
        return
    if fades_to_zero(view) or (view.is_shared and not has_exploded(view)):
        return
    first, middle = float(losses[0]), float(np.median(losses[4:]))
    if view.is_early and worst[1] < first + view.unit(first):
        return
    evidence = f"{_told(found)}; the highest spike is {worst[1]:.3g}, at step {worst[0]:,}"
    if lasting and losses.max() > worst[1] + view.unit(worst[1]) and at[losses.argmax()] > worst[0]:
        evidence += f", and the loss rose further, to {losses.max():.3g} at step {int(at[losses.argmax()]):,}"
    is_high = worst[1] > middle + 0.5 * view.unit(middle)
    is_lost = bool(lasting) and _has_level(view)
    severity = "error" if is_lost else "warning" if lasting or slow or (len(found) >= 3 and is_high) else "info"
    span = (found[0][0], found[-1][0])
    early = [spike for spike in found if spike[0] <= max(20, 0.1 * view.total)]
    warmup = view.warmup
    filtered = without_bad_samples(view)
    # The guard judges the samples of what it keeps out: where none stood out, it is not the samples.
    if view.quarantined or (view.events("skip") and not view.events("quarantine")):
        yield finding(
            severity,
            "bad-samples",
            0.6,
            evidence,
            steps=span,
            override=filtered,
            spikes=len(found),
        )
    elif len(early) > len(found) / 2 and warmup is not None and warmup < max(5, 0.01 * view.total):
        override = change(view, "schedule.warmup_steps", max(10, round(0.05 * view.total)))
        yield finding(
            severity,
            "warmup-short",
            0.6,
            f"{evidence}; the warm-up is {warmup} steps",
            steps=span,
            override=override,
            spikes=len(found),
        )
    elif lasting or slow:
        yield finding(
            severity,
            "learning-rate-high",
            0.3 if sudden_break(view) else 0.55,
            evidence,
            steps=span,
            override=lower_rate(view),
            spikes=len(found),
        )
    else:
        # Of classes, a rare one costs much when its turn comes: nothing to warn of.
        yield finding(
            "info" if view.task == "classify" else severity,
            "bad-samples",
            0.45,
            evidence,
            steps=span,
            override=filtered,
            spikes=len(found),
        )


def jumps_by_nature(view: View) -> bool:
    """A log-likelihood that goes below zero costs a sample the square of its error in units of a spread that shrinks
    while the model learns: some batches cost far more than the rest, in clean data too."""
    return not view.has_floor and divergence_of(view) is None and not view.quarantined


def _told(found: list[tuple[int, float, str]]) -> str:
    """How many spikes, and how the loss recovered from them."""
    words = {"fast": "recovered quickly", "slow": "recovered slowly", "none": "did not recover"}
    counts = {how: sum(spike[2] == how for spike in found) for how in words}
    if len(found) == 1:
        return f"1 loss spike; the loss {words[found[0][2]]}"
    told = [
        f"{words[how]} {f'from {count}' if count < len(found) else ''}".strip()
        for how, count in counts.items()
        if count
    ]
    return f"{len(found)} loss spikes; the loss {', '.join(told)}"


def find_spikes(view: View) -> list[tuple[int, float, str]]:
    """Step, loss and recovery of each."""
    steps, losses = view.losses()
    around = detrended(losses)
    # The noise of batches falls with the loss: before most is learned it is larger than in most rows of the run.
    smooth = running_median(losses, 9)
    start = int(np.argmax(smooth <= (smooth[0] + smooth.min()) / 2))
    throughout = _noise_with_tails(around[4:])
    at_start = max(throughout, _noise_with_tails(around[:start])) if start >= OF_START else throughout
    found: list[tuple[int, float, str]] = []
    row = 4
    while row < len(losses):
        before = float(np.median(losses[max(0, row - 8) : row]))
        noise = at_start if row < start else throughout
        limit = before + max(6 * noise, 0.15 * view.unit(before))
        if losses[row] <= limit:
            row += 1
            continue
        level = before + max(3 * noise, 0.05 * view.unit(before))
        back = next((later for later in range(row + 1, len(losses)) if losses[later] <= level), None)
        how = "none" if back is None else "fast" if back - row <= 3 else "slow"
        if back is None and len(losses) - row < 3:
            how = "fast"  # too early to say
        found.append((int(steps[row]), float(losses[row]), how))
        row = len(losses) if back is None else back + 1
    return found


def _noise_with_tails(around: np.ndarray) -> float:
    """Small batches have long tails: what one row in twenty does is not news."""
    return max(median_and_spread(around)[1], float(np.quantile(np.abs(around), 0.9)) / 1.64)


@rule(
    "attention-logits",
    symptom="instability",
    looks_at="the largest attention logit, and whether it keeps growing",
    thresholds="above 100 and rising (an info while the loss keeps falling, that of validation where it is evaluated); "
    "or above 10 and grown at least threefold in the second half of the run; above 300 is an error",
    source=f"every run above 10,000 diverged ({SMALL_SCALE_PROXIES}), and logits passed 50,000 in another that did "
    f"({VIT_22B}); our thresholds are far lower, because a lead of 10 over the other logits already puts nearly all "
    "attention on one token",
    fault="queries and keys scaled up; the learning rate too high",
    causes=("attention-logits-grow",),
    needs=("attention_logit_max",),
)
def attention_logits(view: View) -> Iterator[Finding]:
    steps, logits = view.finite("attention_logit_max")
    if len(logits) < 6:
        return
    last = float(np.median(logits[-3:]))
    first = float(np.median(logits[:3]))
    half = steps > steps[-1] / 2
    grown = _growth(steps[half], logits[half]) if half.sum() >= 8 and (logits > 0).all() else 1.0
    # At first they always grow.
    is_rising = steps[-1] >= view.total / 2 and last > 10 and grown > 3
    if is_rising or (last > 100 and (rank_correlation(steps, logits) > 0.3 or last > 300)):
        evidence = f"the largest attention logit changed from {first:.3g} to {last:.3g}"
        evidence += f", growing at least {grown:.2g}-fold in the second half of the run" if is_rising else ""
        override = change(view, "model.qk_norm", True)
        severe = last > 300
        # What runs away is told however well the loss does meanwhile; large logits that it gains by are no fault.
        falls = not severe and not is_rising and loss_falls_on(view)
        if falls:
            evidence += "; the loss keeps falling, so they do no harm so far"
        yield finding(
            "info" if falls else "error" if severe else "warning",
            "attention-logits-grow",
            0.4 if falls else 0.7 if severe or is_rising else 0.55,
            evidence,
            steps=(steps[0], steps[-1]),
            override=override,
            last=last,
        )


def _growth(steps: np.ndarray, values: np.ndarray) -> float:
    """How many times as large it has become from the first step to the last, at the least."""
    return float(np.exp(robust_line(steps, np.log(values)).low * (steps[-1] - steps[0])))


@rule(
    "log-z",
    symptom="instability",
    looks_at="log Z, the log of the softmax normalizer of the output, against the log of the vocabulary size",
    thresholds="15 nats away from it and still moving",
    source=f"a z-loss that keeps log Z near 0 made training more stable ({PALM}); reasoning: bf16 has too few digits "
    "for logits of several tens",
    fault="an output layer whose logits drift",
    causes=("z-drift",),
    needs=("log_z",),
)
def log_z(view: View) -> Iterator[Finding]:
    steps, values = view.finite("log_z")
    if len(values) < 6:
        return
    start = float(view.fact("uniform_loss") or np.median(values[:3]))
    last = float(np.median(values[-3:]))
    if abs(last - start) > 15 and abs(rank_correlation(steps, values)) > 0.5:
        evidence = f"log Z moved from {values[0]:.3g} to {last:.3g}; an untrained model has about {start:.3g}"
        yield finding(
            "warning",
            "z-drift",
            0.6,
            evidence,
            steps=(steps[0], steps[-1]),
            override=change(view, "training.z_loss", 1e-4),
            last=last,
        )
