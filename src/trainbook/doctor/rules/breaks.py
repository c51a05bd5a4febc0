"""What changed in mid-run: a learning rate that jumps, and a loss that is at another level from one row to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainbook.doctor.curves import FEW
from trainbook.doctor.remedies import is_far_above
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.statistics import noise_of
from trainbook.doctor.view import View
from trainbook.finding import Finding

JUMP = 5.0  # times the learning rate of the row before
AGAIN = 0.5  # of the highest learning rate so far: a schedule that comes back up does not pass it by much
AROUND = 5  # rows before and after a break, whose medians are compared
LATER = 8  # rows, at least, that a new level must last
FAR_ABOVE = 8.0  # deviations of single rows
LARGE = 0.3  # of the loss
BY_UPDATES = 3.0  # times what updates of the usual size add up to: more is none of theirs
UNTRAINED = 0.2  # by which a loss may differ from the first one, in parts of it
LEARNED = 0.7  # of the first loss: the model had learned something
CALM = 3.0  # deviations, that the rows right before a break may lie above those before them


@rule(
    "rate-jumps",
    symptom="loss spikes",
    looks_at="a learning rate that rises from one row to the next, far above all before, and the loss right after",
    thresholds=f"{JUMP:g} times the highest learning rate so far, after a tenth of the run; the loss rises by "
    f"{FAR_ABOVE / 2:g} deviations of single rows within {AROUND} rows",
    source="reasoning: no schedule does this; a resume with other settings, or a scheduler that is made anew, does",
    fault="a learning rate that is multiplied by 50 in mid-run",
    causes=("learning-rate-high",),
    needs=("loss", "learning_rate"),
)
def rate_jumps(view: View) -> Iterator[Finding]:
    at, rates = view.finite("learning_rate")
    steps, losses = view.losses()
    if len(rates) < FEW or len(losses) < FEW or not (rates > 0).all():
        return
    so_far = np.maximum.accumulate(rates)[:-1]
    jumps = np.flatnonzero((rates[1:] > JUMP * so_far) & (at[1:] > 0.1 * view.total)) + 1
    for row in jumps:
        step = at[row]
        before, after = losses[steps < step][-AROUND:], losses[steps >= step][:AROUND]
        if len(before) < AROUND or not len(after):
            continue
        rise = float(after.max() - np.median(before))
        if rise > FAR_ABOVE / 2 * noise_of(losses[steps < step]) and rise > 0:
            evidence = (
                f"at step {int(step):,} the learning rate rose from {rates[row - 1]:.2g} to {rates[row]:.2g}, and the "
                f"loss from {np.median(before):.3g} to {after.max():.3g}"
            )
            remedy = (
                "Find out what raised the learning rate there: a resume with other settings, a scheduler that was made "
                "anew, or one that is stepped twice."
            )
            span = (step, steps[steps >= step][len(after) - 1])
            yield finding("error", "learning-rate-high", 0.85, evidence, steps=span, remedy=remedy)
            return


class Break(NamedTuple):
    step: int
    before: float  # the loss until then
    after: float  # and since


def sudden_break(view: View) -> Break | None:
    """A loss that is far above its level from one row to the next and never comes back, after a calm stretch and at a
    learning rate that did not rise: what a new kind of data looks like. A learning rate that is too high announces
    itself by unrest, or strikes near its peak."""
    steps, losses = view.losses()
    if len(losses) < 3 * LATER or not view.has_floor:
        return None
    noise = noise_of(losses)
    middles = np.array([np.median(losses[max(0, row - AROUND) : row]) for row in range(1, len(losses))])
    rises = losses[1:] - middles
    rises[: 2 * AROUND] = 0.0
    row = int(rises.argmax()) + 1
    before, later = float(middles[row - 1]), losses[row:]
    calm, earlier = losses[row - AROUND : row], losses[max(0, row - 4 * AROUND) : row - AROUND]
    if len(later) < LATER or len(earlier) < AROUND or steps[row] < 0.15 * view.total:
        return None
    jump = float(np.median(later)) - before
    is_far = jump > max(FAR_ABOVE * noise, LARGE * view.unit(before)) and rises[row - 1] > 0.8 * jump
    stays = float(np.quantile(later, 0.1)) > before + 0.5 * jump
    was_calm = float(calm.max() - np.median(earlier)) < max(CALM * noise, 0.1 * jump)
    at, rates = view.finite("learning_rate")
    then = rates[np.abs(at - steps[row]) <= 2 * np.median(np.diff(steps))] if len(at) else rates
    rose = len(then) > 1 and then.max() > 1.5 * then[0]
    if not (is_far and stays and was_calm) or rose or is_far_above(view):
        return None
    return Break(int(steps[row]), before, float(np.median(later)))


@rule(
    "level-jumps",
    symptom="loss spikes",
    looks_at="a loss that is far above its level from one row to the next and stays there, after a calm stretch",
    thresholds=f"{FAR_ABOVE:g} deviations of single rows and {LARGE:.0%} of the loss, for {LATER} rows or more until "
    f"the end; the {AROUND} rows before it within {CALM:g} deviations of those before them; after 15 % of the run; not "
    "where the learning rate rose there, nor at one far above the usual",
    source="reasoning: a model that has learned its data does not forget all of it in one update at a learning rate "
    "that it was stable with; other data is new to it at once",
    fault="labels that are shuffled from the middle of the run on",
    causes=("data-changed", "learning-rate-high"),
    needs=("loss",),
)
def level_jumps(view: View) -> Iterator[Finding]:
    found = sudden_break(view)
    if found is None or view.events("resume"):
        return
    evidence = (
        f"the loss was {found.before:.3g} and calm until step {found.step:,}, and has been around {found.after:.3g} "
        "since, from one row to the next"
    )
    _, rates = view.finite("learning_rate")
    if len(rates):
        evidence += "; the learning rate did not rise there"
    yield finding("error", "data-changed", 0.6, evidence, steps=(found.step, view.last_step))


@rule(
    "weights-jump",
    symptom="loss spikes",
    looks_at="the norm of all weights from one row to the next, against what the updates in between can add up to, and "
    "whether the loss is that of the untrained model again",
    thresholds=f"{BY_UPDATES:g} times the updates, and {BY_UPDATES:g} times the change between the rows before; a loss "
    f"below {LEARNED:.0%} of the first one before, and within {UNTRAINED:.0%} of it after",
    source="the triangle inequality: a norm changes by no more than the sum of the updates",
    fault="weights that are initialized anew in mid-run, or a resume that does not load them",
    causes=("weights-lost",),
    needs=("loss", "weight_norm", "update_ratio"),
)
def weights_jump(view: View) -> Iterator[Finding]:
    at, norms = view.finite("weight_norm")
    steps, losses = view.losses()
    of_ratios, ratios = view.finite("update_ratio")
    if len(norms) < 2 * AROUND or len(losses) < 2 * AROUND or len(ratios) < 2 * AROUND:
        return
    first = float(np.median(losses[:AROUND]))
    is_bounded = (
        "sgd" not in str(view.setting("optimizer.type") or "").lower()
    )  # one gradient may move it by any length
    for row in range(AROUND, len(norms)):
        change = abs(norms[row] - norms[row - 1])
        if norms[row] > norms[row - 1] and not is_bounded:
            continue
        before, after = ratios[of_ratios < at[row]][-AROUND:], ratios[of_ratios >= at[row]][:3]
        usual = max((float(np.median(each)) for each in (before, after) if len(each)), default=0.0)
        updates = (at[row] - at[row - 1]) * usual * max(norms[row], norms[row - 1]) * _rise(view, at[row])
        if not change > BY_UPDATES * updates > 0:
            continue
        changes = np.abs(np.diff(norms[row - AROUND : row]) / np.diff(at[row - AROUND : row]))
        if change <= BY_UPDATES * float(np.median(changes)) * (at[row] - at[row - 1]):
            continue  # something makes the weights grow all the time, and not at once
        then, now = losses[steps < at[row - 1]][-AROUND:], losses[steps >= at[row]][:3]
        if len(then) < AROUND or not len(now):
            continue
        low, high = float(np.median(then)), float(np.median(now))
        if low < LEARNED * first and abs(high - first) < UNTRAINED * abs(first):
            evidence = (
                f"between steps {int(at[row - 1]):,} and {int(at[row]):,} the norm of the weights went from "
                f"{norms[row - 1]:.4g} to {norms[row]:.4g}, which the updates in between cannot do; the loss went from "
                f"{low:.3g} to {high:.3g}, that of the untrained model"
            )
            yield finding("error", "weights-lost", 0.95, evidence, steps=(at[row - 1], at[row]))
            return


def _rise(view: View, step: float) -> float:
    """Times that the learning rate rose about this step: so do updates."""
    at, rates = view.finite("learning_rate")
    before, after = rates[at < step][-AROUND:], rates[at >= step][:AROUND]
    if not len(before) or not len(after) or not np.median(before) > 0:
        return 1.0
    return max(1.0, float(max(before.max(), after.max()) / np.median(before)))
