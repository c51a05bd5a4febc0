"""The learning rate over the run: warm-up, decay and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trainbook.doctor.curves import (
    divergence_of,
    ends_in_nan,
    has_learned_everything,
    starts_not_finite,
    validation_has_stopped,
)
from trainbook.doctor.remedies import (
    RATE,
    change,
    is_solved,
    longer,
    lower_rate,
    slower_decay,
    usual_rates,
    without_bad_samples,
)
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.rules.stability import jumps_by_nature
from trainbook.doctor.statistics import noise_of, robust_line
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import MINICPM, TUNING_PLAYBOOK, UNTUNED_WARMUP
from trainbook.knobs.derive import LONGEST_WARMUP, SHORT_WARMUP

COMES_DOWN = ("linear", "cosine", "polynomial", "warmup_stable_decay")
ADAPTIVE = ("adamw", "adamw_8bit", "paged_adamw_8bit", "stable_adamw", "lion")


LOWEST_STAGE = 1e-3  # of the peak: in stages below nothing is learned


def _goes_by_stages(rates: np.ndarray) -> bool:
    """Constant for long stretches, as in a schedule that divides the learning rate a few times."""
    changes = np.flatnonzero(np.abs(np.diff(rates)) > 1e-6 * rates.max())
    stretches = np.diff(np.concatenate([[-1], changes, [len(rates) - 1]]))
    return len(changes) > 0 and float(np.median(stretches)) >= len(rates) / 20


@rule(
    "rate-ends-early",
    symptom="underfitting",
    looks_at="how long before the end the learning rate reaches its lowest value and stays there",
    thresholds="more than a sixth of the run within 0.5 % of the peak above the final learning rate; not of a schedule "
    f"in stages whose last one is above {LOWEST_STAGE:g} of the peak",
    source="a schedule should end at the last update; a cosine schedule spends 9 % of a run within 2 % of its end",
    fault="a schedule of half the run's length",
    causes=("schedule-ends-early",),
    needs=("learning_rate",),
)
def rate_ends_early(view: View) -> Iterator[Finding]:
    steps, rates = view.finite("learning_rate")
    if len(rates) < 8 or rates.max() <= 0 or view.events("remedy"):
        return
    peak, last = float(rates.max()), float(rates[-1])
    if last > 0.5 * peak or view.setting("schedule.type") == "cosine_with_restarts":
        return
    if last >= LOWEST_STAGE * peak and _goes_by_stages(rates[int(rates.argmax()) :]):
        return  # its last stage is part of the schedule
    is_low = rates <= last + 0.005 * peak
    is_low[: int(rates.argmax()) + 1] = False
    first = int(np.argmax(is_low)) if is_low.any() else len(rates) - 1
    idle = float(steps[-1] - steps[first])
    tail = rates[first:]
    if idle > view.total / 6 and is_low[first:].all() and tail.max() - tail.min() <= 0.005 * peak:
        evidence = (
            f"the learning rate reached {last:.2g} at step {int(steps[first]):,} and stayed there for {int(idle):,} of "
            f"{view.total:,} steps"
        )
        yield finding(
            "warning",
            "schedule-ends-early",
            0.85,
            evidence,
            steps=(steps[first], steps[-1]),
            override=slower_decay(view),
            idle=idle,
            is_observed=True,
        )


@rule(
    "rate-ends-high",
    symptom="fluctuating validation",
    looks_at="the learning rate at the end of a finished run",
    thresholds="more than half of the peak although the schedule should decay; for a constant schedule, an info",
    source=f"the loss falls rapidly while the learning rate decays ({MINICPM})",
    fault="a schedule of ten times the run's length",
    causes=("schedule-too-long",),
    needs=("learning_rate",),
)
def rate_ends_high(view: View) -> Iterator[Finding]:
    steps, rates = view.finite("learning_rate")
    if len(rates) < 8 or not view.has_ended or rates.max() <= 0 or rates[-1] <= 0.5 * rates.max():
        return
    if _rises_to_the_end(rates):
        return  # that is a warm-up: what comes after it was never reached
    kind = view.setting("schedule.type")
    share = float(rates[-1] / rates.max())
    evidence = f"the learning rate ends at {share:.0%} of its peak"
    if kind in COMES_DOWN and float(view.setting("schedule.floor") or 0.0) < 0.4:
        yield finding("warning", "schedule-too-long", 0.85, evidence, steps=(steps[0], steps[-1]), is_observed=True)
    elif kind in (None, "constant"):
        yield finding(
            "info",
            "schedule-too-long",
            0.5,
            evidence,
            steps=(steps[0], steps[-1]),
            override=change(view, "schedule.type", "cosine"),
            is_observed=True,
        )


def _rises_to_the_end(rates: np.ndarray) -> bool:
    """In each row of the last half, to the highest of all."""
    late = rates[len(rates) // 2 :]
    return bool(len(late) >= FEWEST_RATES and (np.diff(late) > 0).all() and late[-1] == rates.max())


FEWEST_RATES = 4  # rows


@rule(
    "warm-up-length",
    symptom="underfitting",
    looks_at="how long the learning rate rises: by the warm-up that was set, and by the learning rates of the rows",
    thresholds=f"more than {LONGEST_WARMUP:.0%} of the run, as in `trainbook check`; to the very end is an error",
    source=f"at most 10 % of the run is usual ({TUNING_PLAYBOOK}); the threshold is ours",
    fault="a warm-up of 190 of 200 steps; one that is longer than the run",
    causes=("warmup-long",),
)
def warm_up_length(view: View) -> Iterator[Finding]:
    (steps, rates), total, asked = view.finite("learning_rate"), view.total, view.warmup or 0
    span = (0, view.last_step) if view.last_step else None
    if view.has_ended and len(rates) >= 8 and _rises_to_the_end(rates):
        evidence = f"the learning rate rose to the last step, to {rates[-1]:.2g}"
        if asked >= total:
            evidence += f": the warm-up of {asked:,} steps is longer than the run of {total:,}"
        peak = view.setting(RATE)
        if isinstance(peak, (int, float)) and rates[-1] < 0.99 * peak:
            evidence += f"; its peak of {peak:.2g} was never reached"
        outlasts = "The learning rate rose to the end of the run: shorten the warm-up, or lengthen the run."
        yield finding(
            "error", "warmup-long", 0.9, evidence, steps=span, override=_shorter_warmup(view), remedy=outlasts
        )
        return
    # What was done counts for more than what was set: a schedule of the user's own need not obey that.
    length = _risen_until(steps, rates, asked) if len(rates) and steps[-1] > LONGEST_WARMUP * total else asked
    if view.record.config is None and not len(rates) and view.setting("schedule.type") in (None, "constant"):
        return
    if total and length > LONGEST_WARMUP * total:
        evidence = f"the learning rate rises over {length:,} of {total:,} {view.step_name}s ({length / total:.1%})"
        yield finding("warning", "warmup-long", 0.85, evidence, steps=span, override=_shorter_warmup(view))


def _risen_until(steps: np.ndarray, rates: np.ndarray, asked: int) -> int:
    """The step at which a learning rate that begins low and never falls until then is highest; 0: it does not."""
    first = int(np.argmax(rates >= (1 - 1e-6) * rates.max()))
    if first == 0 or rates[0] > 0.5 * rates[first] or (np.diff(rates[: first + 1]) < 0).any():
        return 0
    between = steps[first - 1], steps[first]  # rows say no more than that it ends there
    return asked if between[0] < asked <= between[1] else int(between[0])


def _shorter_warmup(view: View) -> str | None:
    """In the unit that it is stated in."""
    if view.setting("schedule.warmup_steps") is None and view.setting("schedule.warmup_ratio") is not None:
        return change(view, "schedule.warmup_ratio", SHORT_WARMUP)
    if view.setting("schedule.warmup_steps") is None:
        return None
    return change(view, "schedule.warmup_steps", max(1, round(SHORT_WARMUP * view.total)))


SHORTEST_WARMUP = 10  # updates: the least that is advised
NO_WARMUP_HELPS = 100  # times the usual learning rate: from here on the learning rate itself is the error
FAR_ABOVE = 2.5  # times the usual learning rate: below, most runs do without a warm-up


@rule(
    "warm-up",
    symptom="instability",
    looks_at="the length of the warm-up, and whether the first steps are unstable",
    thresholds=f"at least {2 * SHORTEST_WARMUP} updates; a warm-up below 10 % of them and below the larger of 5 "
    "updates and 0.5 %; training from scratch with an adaptive optimizer at half to "
    f"{NO_WARMUP_HELPS} times the usual learning rate; "
    "the loss rises within the first 20 steps or 5 %, by 3 % and 5 deviations of single rows, or early updates "
    f"are above 5 % of the weights at more than {FAR_ABOVE} times the usual learning rate, and the run has not learned "
    "everything all the same; gradient norms 5 times "
    "the later ones support it",
    source=f"warm-up keeps the first updates small ({UNTUNED_WARMUP}), over at most 10 % of the run "
    f"({TUNING_PLAYBOOK}); the tolerances are ours",
    fault="no warm-up",
    causes=("warmup-short",),
    needs=("loss", "setting:optimizer.learning_rate"),
)
def warm_up(view: View) -> Iterator[Finding]:
    warmup, rate = view.warmup, view.peak_rate
    if warmup is None or rate is None or view.is_fine_tuning or view.setting("optimizer.type", "adamw") not in ADAPTIVE:
        return
    known = usual_rates(view)
    enough = min(max(5, 0.005 * view.total), 0.1 * view.total)
    is_a_trial = view.total < 2 * SHORTEST_WARMUP  # of whether it works at all
    if is_a_trial or warmup >= enough or view.step_name == "epoch":  # whose updates nobody counted
        return
    if known is not None and not 0.5 * known[0] <= rate < NO_WARMUP_HELPS * known[1]:
        return
    steps, losses = view.losses()
    early = steps <= view.first_steps
    # Many runs need no warm-up. The loss must show that this one does: first updates and gradients are large in healthy
    # runs too, unless the learning rate is far above the usual one.
    rise = _early_rise(losses, early)
    ratio_steps, ratios = view.update_ratios()
    first_ratios = ratios[ratio_steps <= 10]
    is_large = len(first_ratios) > 0 and first_ratios.max() > 0.05
    is_far_above = known is not None and rate > FAR_ABOVE * known[1]
    if rise is None and (not (is_large and is_far_above) or has_learned_everything(view)):
        return
    signs = [f"the loss rises from {rise[0]:.3g} to {rise[1]:.3g}"] if rise else []
    if is_large:
        signs.append(f"early updates change the weights by up to {first_ratios.max():.2g} of their norm")
    norm_steps, norms = view.finite("grad_norm")
    first_norms = norms[norm_steps <= 20]
    later = norms[norm_steps > 20]
    if len(first_norms) and len(later) > 4 and first_norms.max() > 5 * np.median(later):
        signs.append(f"early gradient norms reach {first_norms.max():.3g}; the later median is {np.median(later):.3g}")
    length = max(SHORTEST_WARMUP, round(0.05 * view.total))
    override = change(view, "schedule.warmup_steps", length) if view.total > 2 * length else None
    evidence = "; ".join([f"the warm-up is {warmup} of {view.total:,} updates", *signs])
    sure = 0.65 if len(signs) == 1 else 0.8
    yield finding(
        "warning", "warmup-short", sure, evidence, steps=(0, steps[early][-1] if early.any() else 0), override=override
    )


def _early_rise(losses: np.ndarray, early: np.ndarray) -> tuple[float, float] | None:
    """The largest rise of the loss within the first steps, from one row to a later one, if it is more than noise."""
    if early.sum() < 3 or not (losses > 0).all():
        return None
    first = np.log(losses[early])
    rises = first - np.minimum.accumulate(first)
    at = int(rises.argmax())
    if rises[at] < max(np.log(1.03), 5 * noise_of(np.log(losses))):
        return None
    return float(losses[early][: at + 1].min()), float(losses[early][at])


FEW_UPDATES = 100  # fewer are not enough for a warm-up, a stretch at the peak and a way down


@rule(
    "few-updates",
    symptom="underfitting",
    looks_at="the number of updates of a run from scratch, and whether it was still learning at the end",
    thresholds=f"fewer than {FEW_UPDATES}; the training or validation loss fell by 2 % over the last half; "
    "not if the last evaluation is all right, nor if validation has stopped improving",
    source="the second moments of the optimizer alone need 1 / (1 - beta2) updates: 20 to 1,000",
    fault="a run of 40 updates",
    causes=("training-short",),
    needs=("loss",),
)
def few_updates(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if view.is_fine_tuning or not view.has_ended or view.total >= FEW_UPDATES or len(losses) < 12:
        return
    if ends_in_nan(view) or divergence_of(view) is not None or is_solved(view) or validation_has_stopped(view):
        return
    if view.step_name == "epoch":
        return  # how many updates these are is not known
    half = steps > steps[-1] / 2
    line = robust_line(steps[half], losses[half])
    unit = view.unit(float(np.median(losses[half])))
    fall = -line.slope * (steps[-1] - steps[half][0]) / unit if unit else 0.0
    at, evaluations = view.finite("loss", "eval")
    judged = evaluations[at >= steps[-1] / 2]
    gained = float(judged[0] - judged[-1]) if len(judged) >= 3 and judged[-1] == judged.min() else 0.0
    is_judged_better = gained > 0 and gained > 0.02 * view.unit(float(judged[0]))
    is_falling = line.high < 0 and fall > 0.02
    if is_falling or is_judged_better:
        which, by = ("loss", fall * unit) if is_falling else ("validation loss", gained)
        begins = line.intercept + line.slope * float(steps[half][0]) if is_falling else float(judged[0])
        by = f"{min(by / begins, 0.99):.0%}" if view.has_floor and begins > 0 else f"{by:.2g}"
        updates = f"{view.total} update{'s' * (view.total != 1)}"
        evidence = f"the run has {updates}, and the {which} was still falling, by {by} in the last half"
        span = (steps[half][0], steps[-1])
        yield finding("warning", "training-short", 0.65, evidence, steps=span, override=longer(view, 4.0), fall=fall)


MANY = 0.1  # of all updates
AROUND = 5  # rows, that a level is read from
ABOUT = 1.05  # times the loss of guessing


@rule(
    "guard-acted",
    symptom="instability",
    looks_at="what the guard did: skipped updates, rollbacks, a lower learning rate, quarantined samples",
    thresholds="any rollback or lowered learning rate; 3 skipped updates and 1 % of all; 10 % if no sample stood out, "
    "or if the loss goes below zero and does not diverge; updates skipped because their loss was too low do not count, "
    "nor those that the guard then took for usual (a remark, if the loss is no higher afterwards), nor batches of a "
    "classifier that cost no more than guessing",
    source="the guard's ladder: it lowers the learning rate only after milder measures failed",
    fault="the learning rate too high; poisoned samples",
    causes=("learning-rate-high", "bad-samples", "non-finite"),
    needs=(),
)
def guard_acted(view: View) -> Iterator[Finding]:
    lowered, back = view.events("remedy"), view.events("rollback")
    if (lowered or back) and not starts_not_finite(view):
        events = [*lowered, *back]
        steps = sorted(event["step"] for event in events)
        did = [("rolled back", len(back)), ("lowered the learning rate", len(lowered))]
        told = [f"{what} {count} time{'s' if count != 1 else ''}" for what, count in did if count]
        evidence = f"the guard {' and '.join(told)}"
        cause, sure = ("bad-samples", 0.5) if view.quarantined else ("learning-rate-high", 0.65)
        override = lower_rate(view) if cause == "learning-rate-high" else without_bad_samples(view)
        yield finding(
            "error" if lowered else "warning", cause, sure, evidence, steps=(steps[0], steps[-1]), override=override
        )
    skipped = view.values("skipped_updates")
    if len(skipped) and view.last_step and not view.record.has("loss_scale"):
        # No learning rate is too high because a loss fell, and no sample is bad because all are from some step on.
        usual = _taken_for_usual(view)
        count = float(skipped.max()) - sum(
            _is_below(event) or _is_a_guess(event, view) or event["step"] in usual for event in view.events("skip")
        )
        least = MANY if jumps_by_nature(view) else 0.01
        if count >= max(3, least * view.last_step):
            of_all = f" of {view.attempted:,}" if count <= view.attempted else ""  # of logs that tell no rollback
            back = ", with those that were rolled back" if view.attempted > view.last_step else ""
            evidence = f"{count:.0f}{of_all} updates were skipped{back}"
            span = (0, view.last_step)
            if view.events("quarantine") and not view.quarantined:
                said = f"{evidence}, and no sample in their batches stood out"
                if view.quarantined_with_batches:
                    said += f" ({view.quarantined_with_batches:,} were excluded with their whole batches)"
                severity = "warning" if count > MANY * view.last_step else "info"
                yield finding(severity, "learning-rate-high", 0.4, said, steps=span, override=lower_rate(view))
                return
            yield finding("warning", "bad-samples", 0.5, evidence, steps=span, override=without_bad_samples(view))
        elif len(usual) >= least * view.last_step and _came_back(view, min(usual), max(usual)):
            evidence = (
                f"the guard skipped {len(usual)} updates, up to step {max(usual):,}, and then accepted their loss as "
                "usual; once updates were applied again, the loss fell below its earlier level: the model was off, not "
                "the data"
            )
            span = (min(usual), max(usual))
            yield finding("info", "learning-rate-high", 0.4, evidence, steps=span, override=lower_rate(view))


def _came_back(view: View, first: int, last: int) -> bool:
    """Whether the loss after these steps is no higher than before them, within as many rows on each side."""
    steps, losses = view.losses()
    before, after = losses[steps < first][-AROUND:], losses[steps > last]
    return len(before) > 0 and len(after) >= AROUND and float(np.median(after[-AROUND:])) < float(np.median(before))


def _is_a_guess(event: Mapping[str, Any], view: View) -> bool:
    """Of classes: the batch cost no more than guessing does. There was nothing in it to learn from, which is no sign of
    a learning rate that is too high, nor of a bad sample."""
    guess, loss = view.fact("uniform_loss"), event.get("loss")
    is_known = isinstance(guess, (int, float)) and isinstance(loss, (int, float)) and view.task == "classify"
    return is_known and loss <= ABOUT * guess  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]


def _taken_for_usual(view: View) -> set[int]:
    """Steps of updates that were skipped until the guard took their level for usual."""
    skipped = {event["step"] for event in view.events("skip")}
    found: set[int] = set()
    for event in view.events("adapt"):
        step = event["step"]
        while step in skipped:
            found.add(step)
            step -= 1
    return found


def _is_below(skip: dict[str, Any]) -> bool:
    """Whether the guard skipped the update for a loss that was too low."""
    loss, norm = (skip.get(f"{name}_deviation") or 0.0 for name in ("loss", "grad_norm"))
    return skip.get("cause") == "outlier" and -loss > max(norm, 0.0)
