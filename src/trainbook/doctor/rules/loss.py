"""The loss curve: where it begins, whether it falls, spikes, and whether it is too good to be true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainbook.doctor.finding import Finding
from trainbook.doctor.remedies import change, longer, lower_rate, raise_rate
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.statistics import detrended, median_and_spread, robust_line, running_median, thinned
from trainbook.doctor.view import View

FEW = 8  # rows: with fewer a curve says nothing
STARTS_BY = 3  # the step of the first row, at the latest, for it to be the loss at the start


@rule(
    "loss-at-start",
    symptom="loss not decreasing",
    looks_at="the first loss of a model that is trained from scratch, against that of guessing all classes alike",
    thresholds="above or below by 15 % and 0.2 nats (of T5 above by as much again, and 2.5 nats); a multiple of "
    "it if it is "
    "the accumulation",
    source="Karpathy's recipe: ln V, within about 10 %",
    fault="first weights 10 times too large; the loss multiplied by the accumulation steps",
    causes=("init-large", "accumulation-wrong", "targets-not-shifted"),
    needs=("loss", "start:uniform_loss"),
)
def loss_at_start(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    expected = float(view.fact("uniform_loss"))
    if not len(steps) or steps[0] > STARTS_BY or view.is_fine_tuning:
        return
    first = float(losses[0])
    said = f"the loss begins at {first:.3g}; guessing all classes alike costs {expected:.3g}"
    numbers: dict[str, Any] = {"first": first, "expected": expected}
    count = view.accumulation
    if count > 1:
        for factor, what in ((count, "times"), (1 / count, "of")):
            if abs(first / (expected * factor) - 1) < 0.1:
                evidence = f"{said}: {first / expected:.3g} {what} it, and {count} micro-batches make a step"
                yield finding("error", "accumulation-wrong", 0.85, evidence, steps=(1, steps[0]), **numbers)
                return
    # T5's embeddings begin 50 times as large, and tied to the output they make it answer with what it reads.
    allowed = max(expected, 2.5) if view.setting("model.type") == "t5" else 0.15 * expected + 0.2
    if first > expected + allowed:
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
    elif first < 0.85 * expected - 0.2:
        evidence = f"{said}: before it learned anything the model seems to know its targets"
        yield finding("warning", "targets-not-shifted", 0.5, evidence, steps=(1, steps[0]), **numbers)


def _usual_spread(view: View) -> float:
    width = view.setting("model.hidden_size") or 768
    return 0.02 if width <= 1024 else float(f"{0.02 * (1024 / width) ** 0.5:.2g}")


@rule(
    "divergence",
    symptom="instability",
    looks_at="the loss late in the run, against its lowest and its first",
    thresholds="the median of the last fifth has lost half of what was gained, or lies above the start",
    source="reasoning: noise does not lose half of what was gained",
    fault="the learning rate 30 times too high",
    causes=("learning-rate-high",),
    needs=("loss",),
)
def divergence(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 2 * FEW:
        return
    smooth = running_median(losses, 5)
    first, lowest = float(np.median(losses[:3])), float(smooth.min())
    last = float(np.median(losses[-max(3, len(losses) // 5) :]))
    at = int(steps[int(smooth.argmin())])
    gained = first - lowest
    noise = median_and_spread(detrended(losses))[1]
    if gained > 0.1 * first and last > lowest + max(0.5 * gained, 4 * noise) and at < 0.85 * steps[-1]:
        evidence = f"the loss was {lowest:.3g} at step {at:,} and is {last:.3g} now; it began at {first:.3g}"
    elif last > 1.1 * first + 4 * noise:
        evidence = f"the loss is {last:.3g}, above the {first:.3g} that it began with"
    else:
        return
    yield finding(
        "error",
        "learning-rate-high",
        0.7,
        evidence,
        steps=(at, steps[-1]),
        override=lower_rate(view),
        first=first,
        lowest=lowest,
        last=last,
    )


@rule(
    "not-decreasing",
    symptom="loss not decreasing",
    looks_at="how far the loss has come, and how far each update goes",
    thresholds="less than 3 % below the start; updates above 1 % of the weights or below 0.01 % of them name the rate",
    source="reasoning; an update of about 0.001 of the weights is usual (Karpathy)",
    fault="the learning rate a thousand times too low, or 30 times too high",
    causes=("learning-rate-low", "learning-rate-high", "labels-random"),
    needs=("loss",),
)
def not_decreasing(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < FEW or steps[-1] < 50 or view.is_fine_tuning:
        return
    first, last = float(np.median(losses[:3])), float(np.median(losses[-max(3, len(losses) // 4) :]))
    prior = view.fact("prior_loss")
    if last < 0.97 * first or (prior is not None and last < 0.97 * prior):
        return
    ratios = view.values("update_ratio")
    ratio = float(np.median(ratios)) if len(ratios) else None
    evidence = f"after {int(steps[-1]):,} steps the loss is {last:.3g}; it began at {first:.3g}"
    if ratio is None:
        yield finding("error", "learning-rate-low", 0.35, evidence, steps=(0, steps[-1]), override=raise_rate(view))
    elif ratio > 1e-2:
        said = f"{evidence}, and an update changes {ratio:.2g} of the weights (usual: 0.001)"
        yield finding(
            "error",
            "learning-rate-high",
            0.75,
            said,
            steps=(0, steps[-1]),
            override=lower_rate(view),
            update_ratio=ratio,
        )
    elif ratio < 1e-4:
        said = f"{evidence}, and an update changes {ratio:.2g} of the weights (usual: 0.001)"
        yield finding(
            "error", "learning-rate-low", 0.8, said, steps=(0, steps[-1]), override=raise_rate(view), update_ratio=ratio
        )
    else:
        said = f"{evidence}, although updates are of the usual size ({ratio:.2g} of the weights)"
        yield finding("error", "labels-random", 0.5, said, steps=(0, steps[-1]), update_ratio=ratio)


@rule(
    "stuck-at-prior",
    symptom="loss not decreasing",
    looks_at="whether the loss has settled at that of guessing by frequency, as if inputs said nothing",
    thresholds="the last third within 4 % or 0.05 nats of it, no longer falling, after 100 steps; updates above "
    "2 % name the rate",
    source="Karpathy's recipe: the input-independent baseline",
    fault="labels shuffled among the samples",
    causes=("labels-random", "learning-rate-high", "learning-rate-low"),
    needs=("loss", "start:prior_loss"),
)
def stuck_at_prior(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    prior = float(view.fact("prior_loss"))
    if len(losses) < 12 or steps[-1] < 100 or prior <= 0:
        return
    late = losses[-len(losses) // 3 :]
    last, spread = median_and_spread(late)
    error = 1.25 * spread / len(late) ** 0.5
    if abs(last - prior) > max(0.04 * prior, 0.05, 2 * error):
        return
    half = slice(len(losses) // 2, None)
    line = robust_line(steps[half], losses[half])
    if line.high < 0 and line.slope * (steps[-1] - steps[half][0]) < -0.03 * prior:
        return  # it is still on its way
    ratios = view.values("update_ratio")
    ratio = float(np.median(ratios)) if len(ratios) else 1e-3
    evidence = f"the loss has settled at {last:.3g}; guessing by frequency, without reading, costs {prior:.3g}"
    numbers: dict[str, Any] = {"last": last, "prior": prior, "update_ratio": ratio}
    span = (steps[half][0], steps[-1])
    if ratio > 2e-2:
        said = f"{evidence}; an update changes {ratio:.2g} of the weights (usual: 0.001)"
        yield finding("error", "learning-rate-high", 0.75, said, steps=span, override=lower_rate(view), **numbers)
    elif ratio < 2e-4:
        said = f"{evidence}; an update changes {ratio:.2g} of the weights (usual: 0.001)"
        yield finding("warning", "learning-rate-low", 0.6, said, steps=span, override=raise_rate(view), **numbers)
    elif view.task in ("classify", "tag", "regress"):
        said = f"{evidence}, although updates are of the usual size ({ratio:.2g} of the weights)"
        yield finding("warning", "labels-random", 0.65, said, steps=span, **numbers)
    else:
        said = f"{evidence}: a stretch that many short runs do not get beyond"
        yield finding("info", "training-short", 0.4, said, steps=span, override=longer(view), **numbers)


@rule(
    "spikes",
    symptom="loss spikes",
    looks_at="losses far above those around them, and how long it takes until they are gone (fast, slow, none)",
    thresholds="6 robust deviations and 15 % above the median before; fast: gone within 3 rows; 3 fast ones of "
    "which the "
    "highest is half as high again as the median are worth a look",
    source="stas00/ml-engineering: fast, slow and no recovery",
    fault="a batch of poisoned samples; the learning rate too high",
    causes=("bad-samples", "learning-rate-high", "warmup-short"),
    needs=("loss",),
)
def spikes(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 2 * FEW:
        return
    found = find_spikes(steps, losses)
    if not found:
        return
    lasting = [spike for spike in found if spike[2] == "none"]
    slow = [spike for spike in found if spike[2] == "slow"]
    worst = max(found, key=lambda spike: spike[1])
    counts = ", ".join(
        f"{sum(s[2] == how for s in found)} {how}"
        for how in ("fast", "slow", "none")
        if any(s[2] == how for s in found)
    )
    evidence = (
        f"{len(found)} spike{'s' if len(found) > 1 else ''} of the loss (recovery: {counts}), the highest "
        f"{worst[1]:.3g} at step {worst[0]:,}"
    )
    is_high = worst[1] > 1.5 * float(np.median(losses[4:]))
    severity = "error" if lasting else "warning" if slow or (len(found) >= 3 and is_high) else "info"
    span = (found[0][0], found[-1][0])
    early = [spike for spike in found if spike[0] <= max(20, 0.1 * view.total)]
    warmup = view.warmup
    if view.events("quarantine", "skip"):
        yield finding(
            severity,
            "bad-samples",
            0.6,
            evidence,
            steps=span,
            override=change(view, "data.repetition_filter", True),
            spikes=len(found),
        )
    elif len(early) > len(found) / 2 and warmup is not None and warmup < max(5, 0.01 * view.total):
        override = change(view, "schedule.warmup_steps", max(10, round(0.05 * view.total)))
        yield finding(
            severity,
            "warmup-short",
            0.6,
            f"{evidence}; warm-up is {warmup} steps",
            steps=span,
            override=override,
            spikes=len(found),
        )
    elif lasting or slow:
        yield finding(
            severity, "learning-rate-high", 0.55, evidence, steps=span, override=lower_rate(view), spikes=len(found)
        )
    else:
        yield finding(
            severity,
            "bad-samples",
            0.45,
            evidence,
            steps=span,
            override=change(view, "data.repetition_filter", True),
            spikes=len(found),
        )


def find_spikes(steps: np.ndarray, losses: np.ndarray) -> list[tuple[int, float, str]]:
    """Step, loss and recovery of each."""
    around = detrended(losses)
    # Small batches have long tails: what one row in twenty does is not news.
    noise = max(median_and_spread(around)[1], float(np.quantile(np.abs(around[4:]), 0.9)) / 1.64)
    found: list[tuple[int, float, str]] = []
    row = 4
    while row < len(losses):
        before = float(np.median(losses[max(0, row - 8) : row]))
        limit = before + max(6 * noise, 0.15 * abs(before))
        if losses[row] <= limit:
            row += 1
            continue
        level = before + max(3 * noise, 0.05 * abs(before))
        back = next((later for later in range(row + 1, len(losses)) if losses[later] <= level), None)
        how = "none" if back is None else "fast" if back - row <= 3 else "slow"
        if back is None and len(losses) - row < 3:
            how = "fast"  # too early to say
        found.append((int(steps[row]), float(losses[row]), how))
        row = len(losses) if back is None else back + 1
    return found


@rule(
    "plateau",
    symptom="underfitting",
    looks_at="whether the loss has settled while validation is no worse, so that neither more steps nor more data help",
    thresholds="less than 1 % in the last half, the rate not yet near its end, validation within 10 % of training",
    source="reasoning: a loss that still falls says nothing about the size of the model",
    fault="a model of width 16",
    causes=("model-small",),
    needs=("loss", "learning_rate", "eval:loss"),
)
def plateau(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 2 * FEW or steps[-1] < 200:
        return
    half = slice(len(losses) // 2, None)
    line = robust_line(steps[half], losses[half])
    level = float(np.median(losses[half]))
    fall = -line.slope * (steps[-1] - steps[half][0]) / level
    gap = float(view.values("loss", "eval")[-1]) / level - 1
    if abs(fall) < 0.01 and gap < 0.1:
        evidence = f"the loss has stayed at {level:.3g} over the last half of the run, and validation is as good"
        width = view.setting("model.hidden_size")
        override = change(view, "model.hidden_size", 2 * width) if width else None
        yield finding(
            "info", "model-small", 0.4, evidence, steps=(steps[half][0], steps[-1]), override=override, fall=fall
        )


@rule(
    "still-improving",
    symptom="underfitting",
    looks_at="whether the loss is still falling at the end, or the best evaluation is the last",
    thresholds="the last quarter falls by more than 1 % for certain",
    source="the tuning playbook: a best step in the last quarter asks for a longer run",
    fault="a run of a tenth of its steps",
    causes=("training-short",),
    needs=("loss",),
)
def still_improving(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 2 * FEW or not view.has_ended:
        return
    late = slice(-max(FEW, len(losses) // 4), None)
    kept = thinned(len(steps[late]), 100)
    line = robust_line(steps[late][kept], losses[late][kept])
    span, level = steps[-1] - steps[late][0], float(np.median(losses[late]))
    evaluations = view.values("loss", "eval")
    is_best_last = len(evaluations) >= 3 and evaluations[-1] < evaluations[:-1].min() * 0.99
    is_falling = line.high < 0 and -line.slope * span > 0.01 * level
    if is_falling or is_best_last:
        fall = f"by {-line.slope * span / level:.1%} in its last {int(span):,} steps" if is_falling else "in validation"
        evidence = f"the loss was still falling {fall}"
        yield finding("info", "training-short", 0.5, evidence, steps=(steps[late][0], steps[-1]), override=longer(view))


@rule(
    "too-good",
    symptom="overfitting",
    looks_at="a loss so low, so early, that the model must see its targets",
    thresholds="below 12 % of guessing by frequency within one epoch",
    source="natural text is not that easy: the best models keep about a quarter of a byte's entropy by frequency",
    fault="the causal mask open; targets not shifted",
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
        evidence = f"the loss is {last:.3g} after {int(steps[-1]):,} steps; guessing by frequency costs {prior:.3g}"
        yield finding("warning", "future-leaks", 0.5, evidence, steps=(0, steps[-1]), last=last, prior=prior)
