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
