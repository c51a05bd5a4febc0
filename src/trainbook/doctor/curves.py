"""What a loss curve did as a whole: whether it diverged, ended in NaN, or was still falling at its end.

Levels are medians over several rows, and differences between them are held against the noise of single rows: a batch
that happens to be hard is no news.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trainbook.doctor.chance import (
    ALIKE,
    AS_GOOD_AS_GUESSING,
    AT_THE_START,
    TIMES_A_GUESS,
    accuracies_of,
    knows_its_task,
    loss_of_guessing,
    predicts_one_class,
)
from trainbook.doctor.chance import LEARNED as LEARNED_ITS_DATA
from trainbook.doctor.remedies import SHOT_UP, chosen_metric, is_solved
from trainbook.doctor.statistics import (
    OF_A_MEDIAN,
    jitter_of,
    noise_of,
    rank_correlation,
    robust_line,
    running_median,
    thinned,
)
from trainbook.doctor.view import STARTS_BY, View
from trainbook.runs.columns import are_logged

FEW = 16  # rows: with fewer a curve says nothing of what comes and goes
SHORT_CURVE = 20  # rows: of fewer each is told as it is, and of more the median of five
LATE = 8  # rows at the end, at least, that a trend is read from
SIGNIFICANT = 6.0  # standard errors: the lowest of many levels is low by chance too
ENDS = ((1 / 4, LATE), (1 / 3, 6))  # of the steps of a run: its end, if it has so many rows
LATE_SHARE = 0.12  # of the whole improvement, in the last half: a run that has converged makes less of it there
LEARNED, HARDLY_LEARNED = 0.03, 0.05  # of the first loss
STOPPED = 0.005  # of the validation loss, that it falls by over the last half of a run: less is a plateau
FAR_BELOW = 10.0  # times the size of the first loss, below zero
FALLS_ON = 0.8  # of the fall in the first half of a run, in the second: a loss that settles makes far less
LOST_AGAIN = 3  # steps in a row whose losses were finite until a rollback
BY_CHANCE = 0.01  # that the newest rows are all lost, as single ones were before
CERTAIN = 5.0  # deviations of single rows, that a loss fell by: however little of it that is, something was learned
AT_FIRST = 5  # rows: the loss before anything was learned
UNNOTICED = 1 / 3  # of the loss: where it may have fallen by this much within the noise of batches, nobody can tell
MUCH = 0.9  # of the loss at the start: what ends above has not learned much
ABOVE_CHANCE = 1.2  # times the accuracy of guessing
FADED, FADED_GRADIENT = 0.05, 0.1  # of what a loss and its gradients were at first
BOTH_SIDES = 0.2  # of the rows of each third of a run: on either side of zero
EXPLODED = 10.0  # times as far from zero as it was at first, or at its best
FAR_ABOVE_START = 1.3  # times the loss of the untrained model
NO_BETTER = 0.97  # of the loss of the untrained model
REPLACED = 1.0  # of the norm of the weights, in one update: what they were is lost
FAST_OF_ALL, FAST_OF_LEVEL = 0.2, 0.05  # of the whole improvement, and of the loss, in the last quarter of a run


class Divergence(NamedTuple):
    first: float  # the first logged loss
    lowest: float
    last: float
    at: int  # the step where it was lowest
    is_above_start: bool


def divergence_of(view: View) -> Divergence | None:
    """None unless the loss has given back half of its improvement, or ends above its start, by far more than noise."""
    steps, losses = view.losses()
    if len(losses) < FEW or fades_to_zero(view):
        return None
    scaled = np.log if losses.min() > 0 else np.asarray  # the noise of most losses grows with them
    noise = noise_of(scaled(losses))
    width = max(5, len(losses) // 10) | 1
    tail = losses[-max(5, len(losses) // 5) :]
    smooth = running_median(losses, width)
    first, lowest, last = float(losses[0]), float(smooth.min()), float(np.median(tail))
    middle = int(smooth.argmin())
    around = slice(max(0, middle - width // 2), middle + width // 2 + 1)  # whose median this is
    at = int(steps[around][int(losses[around].argmin())])
    unit = view.unit(first)
    found = Divergence(first, lowest, last, at, last > first + 0.1 * unit)
    # On both scales: a single row that is low by chance is further out on a logarithmic one.
    deviations = min(_ratio(float(scaled(last) - scaled(first)), noise), _ratio(last - first, noise_of(losses)))
    if view.is_early:  # a run that has hardly begun: only what cannot be chance
        return found if last > first + 0.5 * unit and deviations > 8 else None
    if found.is_above_start and deviations > 4:
        return found
    fallen = max(first, float(np.median(losses[:3]))) - lowest
    error = OF_A_MEDIAN * noise * (1 / width + 1 / len(tail)) ** 0.5
    risen = float(scaled(last) - scaled(lowest))
    is_given_back = fallen > 0.1 * unit and last > lowest + 0.5 * fallen and steps[middle] < 0.85 * steps[-1]
    if not is_given_back or risen < SIGNIFICANT * error:
        return None
    # A rise no larger than what single rows differ by: validation knows better.
    of_rows = max(noise, noise_of(scaled(losses[len(losses) // 2 :])))
    return None if risen < 4 * of_rows and _is_best_since(view, steps[-len(tail)]) else found


def fades_to_zero(view: View) -> bool:
    """A loss below zero that goes to zero together with its gradients: that of a policy, which is its advantage times a
    log-probability, does so when the policy has become sure of what it does."""
    losses, norms = view.losses()[1], view.values("grad_norm")
    if view.has_floor or min(len(losses), len(norms)) < FEW:
        return False
    (first, last), (steep, flat) = (
        (float(np.median(np.abs(each[:AT_FIRST]))), float(np.median(np.abs(each[-max(AT_FIRST, len(each) // 5) :]))))
        for each in (losses, norms)
    )
    return last < FADED * first and flat < FADED_GRADIENT * steep


def moves_around_zero(view: View) -> bool:
    """From the first rows to the last on both sides of zero, as the loss of a policy: an advantage, whose mean is zero,
    times a log-probability. How low it is tells nothing; what is meant to rise is the reward."""
    losses = view.losses()[1]
    if len(losses) < FEW:
        return False
    return all(BOTH_SIDES <= float((part < 0).mean()) <= 1 - BOTH_SIDES for part in np.array_split(losses, 3))


def has_exploded(view: View) -> bool:
    """Whatever a loss means, it ends far beyond all that it was at first or at its best."""
    losses = view.losses()[1]
    if len(losses) < FEW:
        return False
    known = np.abs([*losses[:AT_FIRST], running_median(losses, 5).min()])
    return float(np.median(losses[-AT_FIRST:])) > EXPLODED * float(known.max())


def _is_best_since(view: View, step: float) -> bool:
    """Validation: an evaluation after this step is the lowest of several, and nearly each is lower than the one
    before."""
    at, evaluations = view.finite("loss", "eval")
    return len(evaluations) >= 3 and at[-1] >= step and loss_falls_on(view)


def _ratio(difference: float, noise: float) -> float:
    return difference / noise if noise > 0 else math.copysign(math.inf, difference) if difference else 0.0


def ends_in_nan(view: View) -> bool:
    """The last logged loss is not a number that training could go on from."""
    values = view.curve("loss")[1]
    return len(values) > 0 and not np.isfinite(values[-1])


def starts_not_finite(view: View) -> bool:
    """The loss of the first step is NaN or infinite: no update came before it. After a rollback, the first step of the
    rows that are left is not the first of the run."""
    steps, values = view.curve("loss")
    in_rows = len(values) > 0 and steps[0] == 1 and not np.isfinite(values[0])
    events = view.events("skip", "rollback")
    kinds = [event["kind"] for event in events]
    if "rollback" in kinds:
        in_rows, events = False, events[: kinds.index("rollback")]
    return in_rows or any(event["step"] == 1 and has_no_loss(event) for event in events)


def restored_without_loss(view: View) -> int | None:
    """The step whose weights the guard restored, in a test or by a rollback, where batches were NaN or infinite at once
    that were finite there before."""
    tested = [event.get("compared") for event in view.events("trial") if event.get("lost") == "loss function"]
    if tested:
        return tested[-1]
    lost = [event for event in view.events("skip") if has_no_loss(event)]
    for back in view.events("rollback"):
        segment, target, noticed = back.get("segment", 0), back["step"], back.get("noticed")
        again = range(target + 1, target + 1 + LOST_AGAIN)
        if not isinstance(noticed, int) or noticed < again[-1]:
            continue  # not counted back, or these steps were never made before
        now = {event["step"] for event in lost if event.get("segment", 0) == segment}
        before = {event["step"] for event in view.events("skip") if event.get("segment", 0) < segment}
        if now.issuperset(again) and before.isdisjoint(again):
            return target
    return None


def is_finite_again(view: View) -> bool:
    """Losses or gradients were NaN or infinite, and then finite again, although nobody changed the weights or the
    learning rate: neither is to blame. Of a run that goes on: also where the newest rows are of such batches again."""
    if divergence_of(view) is not None or view.events("rollback", "remedy"):
        return False
    names = ("step", "loss", "grad_norm", "applied_updates")
    _, losses, norms, applied = view.record.rows("train").columns(*names, need=["loss"])
    is_lost = ~np.isfinite(losses) | (are_logged(norms) & ~np.isfinite(norms))
    last = len(is_lost) - int(np.argmax(~is_lost[::-1]))  # the first of the rows at the end that are all lost
    if is_lost.all() or len(is_lost) == last:
        return not is_lost.all()
    if view.events("skip") and are_logged(applied).all():  # the guard lets no other updates pass
        return bool(applied[-1] > applied[last - 1])
    share = float(is_lost[:last].mean())
    return share ** (len(is_lost) - last) > BY_CHANCE


def has_no_loss(skip: Mapping[str, Any]) -> bool:
    """Whether the loss itself of a skipped update is NaN or infinite, and not its gradient alone."""
    loss = skip.get("loss")
    return isinstance(loss, float) and not np.isfinite(loss)


def falls_throughout(view: View) -> bool:
    """The trend of all rows falls for certain, and by more than 3 %, however low the first ones were by chance."""
    steps, losses = view.losses()
    if len(losses) < LATE:
        return False
    kept = thinned(len(steps), 100)
    line = robust_line(steps[kept], losses[kept])
    return line.high < 0 and -line.high * (steps[-1] - steps[0]) > 0.03 * view.unit(float(np.median(losses)))


def falls_below_zero(view: View) -> tuple[float, float] | None:
    """The first and the last level of a loss that runs away below zero, as a score that is minimized does; None of one
    that settles there, such as the negative log-likelihood of a density, in training or in validation. Halves of a run
    are counted in the sum of its learning rates: where they come down, any loss seems to settle."""
    steps, losses = view.losses()
    if len(losses) < FEW or losses[-1] >= 0:
        return None
    evaluations, gain = view.values("loss", "eval"), validation_gain(view)
    if view.record.origin != "huggingface" and gain is not None and gain < STOPPED and evaluations[-1] < 0:
        return None
    first, last = float(losses[0]), float(np.median(losses[-max(3, len(losses) // 10) :]))
    if view.record.origin == "huggingface" and last < -1.0 and last < first:
        return first, last  # the losses of its models are cross entropies and squared errors
    smooth = running_median(losses, max(3, len(losses) // 10) | 1)
    at, rates = view.finite("learning_rate")
    rates = np.interp(steps, at, rates) if len(at) else np.ones(len(steps))
    way = np.cumsum(rates * np.diff(steps, prepend=0))
    middle = float(np.interp(way[-1] / 2, way, smooth))
    falls_on = middle - last > FALLS_ON * (first - middle)
    return (first, last) if last < -FAR_BELOW * max(1.0, abs(first)) and falls_on else None


def fell_for_certain(view: View) -> bool:
    """By far more than the noise of single rows: little of a loss may be much of what there is to learn, where it is a
    sum with a large constant."""
    losses = view.losses()[1]
    late = losses[-max(3, len(losses) // 4) :]
    first = min(float(losses[0]), float(np.median(losses[:3])))  # it may have shot up since
    return first - float(np.median(late)) > CERTAIN * max(noise_of(losses), noise_of(late))


def may_have_fallen(view: View) -> bool:
    """Far, and unnoticed, since the losses of single batches differ so much: a few rows of the start and of the end are
    all there is, and their medians have errors. With heavy tails, those of a few hundred batches are not enough."""
    losses = view.losses()[1]
    if len(losses) < LATE or losses.min() <= 0:
        return False
    logs = np.log(losses)
    early, late = logs[:AT_FIRST], logs[-max(AT_FIRST, len(logs) // 4) :]
    error = OF_A_MEDIAN * noise_of(logs) * (1 / len(early) + 1 / len(late)) ** 0.5
    return float(np.median(early) - np.median(late)) + 2 * error > -math.log(1 - UNNOTICED)


def never_below_start(view: View) -> bool:
    """Neither the training loss nor an evaluation was ever below the loss of the untrained model, whatever they did in
    between; of a log whose first row is that loss, and whose batches differ too little to hide a fall."""
    losses = view.losses()[1]
    if len(losses) < FEW or not view.starts_by(STARTS_BY) or losses.min() <= 0 or noise_of(np.log(losses)) > ALIKE:
        return False
    levels = [running_median(losses, max(5, len(losses) // 10) | 1), view.values("loss", "eval")]
    return all((each >= (1 - LEARNED) * losses[0]).all() for each in levels)


def is_flat_at_guessing(view: View) -> bool:
    """Training and validation stay where they were after the first rows, and the accuracy is about that of a model that
    gives each sample the same probability: the first row may be a mean over steps in which the loss shot up."""
    steps, losses = view.losses()
    accuracies, evaluations = accuracies_of(view), view.values("loss", "eval")
    if len(losses) < FEW or len(accuracies) < 3 or len(evaluations) < 3 or not view.has_ended or not view.has_floor:
        return False
    if knows_its_task(view):
        return False  # noisy labels make a good model's loss as high as that of a guess
    late = slice(max(2, len(losses) // 10), None)
    line = robust_line(steps[late], losses[late])
    level = float(np.median(losses[late]))
    moved = abs(line.slope) * float(steps[-1] - steps[late][0])
    is_flat = moved < LEARNED * level and evaluations.min() > (1 - HARDLY_LEARNED) * float(np.median(evaluations))
    return is_flat and float(np.median(accuracies)) < TIMES_A_GUESS * math.exp(-float(np.median(evaluations)))


def has_learned_much(view: View) -> bool:
    """The training loss is well below the first one and that of guessing, and the accuracy above that of a model that
    gives each sample the same probability, which is exp(-loss)."""
    losses, accuracies, evaluations = view.losses()[1], accuracies_of(view), view.values("loss", "eval")
    last = float(np.median(losses[-max(3, len(losses) // 4) :]))
    guesses = [float(view.fact(name)) for name in ("uniform_loss", "prior_loss") if view.fact(name) is not None]
    if last > MUCH * losses[0] or any(last > AS_GOOD_AS_GUESSING * guess for guess in guesses):
        return False
    if not (len(accuracies) and len(evaluations)):
        return True
    return float(np.median(accuracies[-3:])) > ABOVE_CHANCE * math.exp(-float(np.median(evaluations[-3:])))


def shot_up_at_first(view: View) -> bool:
    """The loss rose right after the first row, by far more than any later batch lies below its neighbours: of small
    batches one is low by chance, and that is not the level that the run began at."""
    losses = view.losses()[1]
    late = np.log(losses[len(losses) // 2 :])
    noise, lowest = noise_of(late), float((running_median(late, AT_FIRST) - late).max())
    return bool(np.log(np.median(losses[1:6]) / losses[0]) > max(lowest, noise) + 2 * noise)


def never_generalized(view: View) -> str | None:
    """In words, that the training data was learned, and no evaluation was better than the untrained model, nor than
    guessing by frequency; of rows that are means over epochs, that none came near the mean of the first one, which is
    below the loss of that model."""
    (steps, losses), evaluations = view.losses(), view.values("loss", "eval")
    if view.is_fine_tuning or not view.has_floor or not len(evaluations):
        return None
    is_mean = view.step_name == "epoch" and steps[0] <= 1
    first = float(losses[0] if is_mean else losses[:3].max())
    if not (is_mean or view.starts_by(max(STARTS_BY, AT_THE_START * view.total))):
        return None
    guess = loss_of_guessing(view)
    is_guess = not is_mean and guess < first  # first weights may be worse than guessing
    first = guess if is_guess else first
    if evaluations.min() < (FAR_ABOVE_START if is_mean else NO_BETTER) * first:
        return None
    if float(np.median(losses[-5:])) > (AS_GOOD_AS_GUESSING if is_guess else LEARNED_ITS_DATA) * first:
        return None
    than = f"the mean of the first epoch ({first:.3g})" if is_mean else f"the untrained model (loss about {first:.3g})"
    than = f"guessing without the input (loss {first:.3g})" if is_guess else than
    return f"no evaluation was better than {than}"


class Thrown(NamedTuple):
    """Away from its first weights, by the first updates."""

    update: float  # the largest of these updates, against the norm of the weights
    has_learned: bool  # the run ends better than it began, and than guessing


def thrown_at_first(view: View) -> Thrown | None:
    """The loss shot up to a multiple right after the start, by an update that is as large as the weights: what they
    were is lost, whatever the loss did later. A loss that comes down from there has learned nothing by that until it is
    below the first one, and below guessing."""
    steps, losses = view.losses()
    ratio_steps, ratios = view.update_ratios()
    if len(losses) < FEW or not view.starts_by(STARTS_BY) or not view.has_floor or view.is_shared:
        return None
    early, updates = losses[steps <= view.first_steps], ratios[ratio_steps <= view.first_steps]
    first = float(losses[0])
    if not len(updates) or updates.max() < REPLACED or early.max() < SHOT_UP * first:
        return None
    guess = min([float(view.fact(name)) for name in ("prior_loss", "uniform_loss") if view.fact(name)], default=first)
    last = float(np.median(losses[-max(3, len(losses) // 10) :]))
    has_learned = last < (1 - HARDLY_LEARNED) * min(first, guess)
    return Thrown(float(updates.max()), has_learned)


def validation_fell(view: View) -> bool:
    """Since the first evaluation, and by more than evaluations differ."""
    evaluations = view.values("loss", "eval")
    if len(evaluations) < 3:
        return False
    first, last = float(evaluations[0]), float(np.median(evaluations[-3:]))
    return first - last > max(LEARNED * view.unit(first), 3 * jitter_of(evaluations))


CLEARLY = 5.0  # times the usual jump between two evaluations


class Standstill(NamedTuple):
    first: float  # the loss at the start
    last: float  # at the end, of validation where it was evaluated
    name: str  # of the last one


def training_since(view: View, step: int) -> tuple[float, float]:
    """The training loss around this step, and at the end: of a curve of few rows, those rows themselves, since five of
    them are most of it."""
    steps, losses = view.losses()
    if not len(losses):
        return math.nan, math.nan
    rows = 5 if len(losses) >= SHORT_CURVE else 1
    near = np.argsort(np.abs(steps - step), kind="stable")[:rows]
    return float(np.median(losses[near])), float(np.median(losses[-rows:]))


def standstill_of(view: View) -> Standstill | None:
    """Of a run that ended no better than it began, even if the loss shot up after the first step and came back since:
    None if anything was learned, or nobody can tell."""
    losses, evaluations = view.losses()[1], view.values("loss", "eval")
    if len(losses) < FEW or not view.starts_by(STARTS_BY) or not view.has_ended:
        return None
    if losses.min() <= 0 or fell_for_certain(view):
        return None
    shot_up = shot_up_at_first(view)
    if not shot_up and (may_have_fallen(view) or validation_fell(view) or validation_fell_a_little(view)):
        return None
    trained = float(np.median(losses[-max(3, len(losses) // 4) :]))
    is_evaluated = len(evaluations) >= 3
    # After it shot up, nothing but the first row is the start.
    first = float(losses[0]) if shot_up else float(np.median(losses[:AT_FIRST]))
    last = float(np.median(evaluations[-3:])) if is_evaluated else trained
    name = "validation loss" if is_evaluated else "training loss"
    if min(last, trained) >= (1 - LEARNED) * first and (shot_up or (is_evaluated and not falls_throughout(view))):
        return Standstill(first, last, name)
    is_flat = is_evaluated and evaluations.min() >= (1 - LEARNED) * evaluations[0]
    hardly = (1 - HARDLY_LEARNED) * first
    return Standstill(first, last, name) if is_flat and last >= hardly and trained >= 0.9 * last else None


class Fall(NamedTuple):
    steps: tuple[float, float]
    of_level: float  # of the loss where the stretch begins; of what was learned, where that is below zero
    of_all: float  # of the improvement since the start
    is_certain: bool  # validation falls as well
    told: str  # in per cent of the loss, or, where that goes below zero, in its own unit

    @property
    def is_fast(self) -> bool:
        return self.of_all >= FAST_OF_ALL and self.of_level >= FAST_OF_LEVEL and self.is_certain


def fall_at_end(view: View) -> Fall | None:
    """How far the loss fell in the last quarter of a run that has ended, or in the last third where rows are few; None
    unless it fell for certain, or where even there are too few of them."""
    steps, losses = view.losses()
    if len(losses) < 2 * LATE or not view.has_ended or ends_in_nan(view) or divergence_of(view) is not None:
        return None
    chosen = chosen_metric(view)
    if chosen is not None and chosen.has_worsened:
        return None  # the training loss falls, but nothing is gained by it
    late = _end_of(steps)
    if late is None:
        return None
    kept = thinned(len(steps[late]), 100)
    line = robust_line(steps[late][kept], losses[late][kept])
    begins = float(np.median(losses[late][:3]))  # where the stretch begins: it may end at next to nothing
    level = begins if view.has_floor else view.unit(begins)
    fall = min(-line.slope * (steps[-1] - steps[late][0]), level)
    if line.high >= 0 or fall <= 0 or level == 0:
        return None
    improved = max(float(losses[0] - np.median(losses[-3:])), fall)
    span = (float(steps[late][0]), float(steps[-1]))
    is_certain = _validation_falls_fast(view, span[0])
    told = f"{fall / level:.1%}" if view.has_floor else f"{fall:.2g}"
    return Fall(span, fall / level, fall / improved, is_certain, told)


def _end_of(steps: np.ndarray) -> slice | None:
    """By steps and not by rows: of a run that is logged seldom, most rows may be of its first steps."""
    for share, fewest in ENDS:
        first = int(np.searchsorted(steps, (1 - share) * steps[-1]))
        if len(steps) - first >= fewest:
            return slice(first, None)
    return None


def learned_late(view: View) -> bool:
    """Validation is best at the end, and much of it was gained in the last half, although the schedule decays there."""
    at, evaluations = view.finite("loss", "eval")
    first = view.losses()[1][:1]
    if len(evaluations) < 4 or not len(first) or not view.has_ended or evaluations[-1] > evaluations.min():
        return False
    gained = float(np.interp(at[-1] / 2, at, evaluations) - evaluations[-1])
    return gained >= LATE_SHARE * float(first[0] - evaluations[-1]) > 0


def validation_gain(view: View) -> float | None:
    """By how much of itself (of what was learned, where it goes below zero) the validation loss fell over the last half
    of the run; below 0 where it rose. None: there are too few evaluations to tell."""
    at, losses = view.finite("loss", "eval")
    if len(losses) < 3:
        return None
    then = float(np.interp(at[-1] / 2, at, losses))
    unit = view.unit(then)
    return (then - float(losses[-1])) / unit if unit else None


def validation_falls_on(view: View) -> bool:
    """Nearly every evaluation is better than the one before, in the last half of the run as well: however small the
    gain is beside the noise of single batches, something is learned that holds for new data."""
    at, losses = view.finite("loss", "eval")
    if len(losses) < 5 or rank_correlation(at, losses) > -0.9:
        return False
    return float(np.interp(at[-1] / 2, at, losses) - losses[-1]) > 0.1 * float(losses[0] - losses[-1])


def validation_fell_a_little(view: View) -> bool:
    """By much more than it jumps from one evaluation to the next, which are of the same data, however little that is:
    of clicks or returns, a hundredth of the loss may be all that can be learned."""
    losses = view.values("loss", "eval")
    if len(losses) < 5 or shot_up_at_first(view):
        return False
    gain = float(losses[0] - np.median(losses[-3:]))
    return gain > CLEARLY * jitter_of(losses) and bool((losses[len(losses) // 2 :] < losses[0]).all())


def loss_falls_on(view: View) -> bool:
    """In the last half of the run so far: of evaluations, each is lower than the one before, but for their noise; where
    there are none, the trend of the training loss falls for certain."""
    at, evaluations = view.finite("loss", "eval")
    if len(evaluations) >= 3:
        late = evaluations[at >= at[-1] / 2] if len(evaluations) > 4 else evaluations
        return bool(late[-1] == evaluations.min() and rank_correlation(np.arange(len(late)), late) < -0.6)
    steps, losses = view.losses()
    half = slice(len(losses) // 2, None)
    return len(losses) >= 2 * LATE and robust_line(steps[half], losses[half]).high < 0


def validation_has_stopped(view: View) -> bool:
    """Neither the validation loss nor the metric that chooses the best model is still getting better: more steps of
    the same kind are no remedy then."""
    gain, chosen = validation_gain(view), chosen_metric(view)
    if gain is None or chosen is None:
        return False
    if chosen.has_worsened:
        return True
    then = float(np.interp(chosen.steps[-1] / 2, chosen.steps, chosen.values))
    gained = float(chosen.values[-1] - then) * (1 if chosen.higher_is_better else -1)
    return gain < STOPPED and (chosen.metric == "loss" or gained <= chosen.noise)


def _validation_falls_fast(view: View, since: float) -> bool:
    """Also where there is none: nothing speaks against it then."""
    at, losses = view.finite("loss", "eval")
    if len(losses) < 3:
        return True
    then = float(np.interp(since, at, losses))
    return then - losses[-1] >= FAST_OF_ALL * (losses[0] - losses[-1]) > 0


MOST_UNCLIPPED, FEWEST_UNCLIPPED = 0.8, 3  # of the gradient norms above the threshold, and how many of these


def unclipped_steps(view: View) -> int:
    """Logged steps whose gradient norm is above the threshold, and that were not clipped; 0 unless nearly all are."""
    limit = view.setting("batch.max_grad_norm")
    if limit is None or view.setting("batch.clipping", "norm") != "norm":
        return 0
    norms, clipped = view.record.rows("train").columns("grad_norm", "clipped", need=["grad_norm"])
    above = np.isfinite(norms) & (norms > 1.01 * limit) & are_logged(clipped)
    count, ignored = int(np.count_nonzero(above)), int(np.count_nonzero(clipped[above] == 0))
    return ignored if count >= FEWEST_UNCLIPPED and ignored > MOST_UNCLIPPED * count else 0


LARGE_LOSS, SCALED = 1e4, 1e3  # a loss and a gradient norm of targets far from the range of a new model's outputs
NEAR_THE_START = 0.1  # of the first loss: a model that has found the scale of its targets is below
LEFT, LEFT_IN_VALIDATION = 0.05, 0.1  # of the first training loss


def unscaled_targets(view: View) -> str | None:
    """Of a module or loop of the user's own: a huge loss that has hardly fallen, with huge gradients, in words. Numbers
    like prices are far from what a new model gives, and adaptive optimizers get there by one learning rate an
    update."""
    _, losses = view.losses()
    norms = view.values("grad_norm")
    if view.record.origin not in ("fit", "watch") or len(losses) < FEW or not len(norms):
        return None
    first, last = float(np.median(losses[:3])), float(np.median(losses[-max(3, len(losses) // 4) :]))
    norm = float(np.median(norms))
    # A loss that was small once has shot up: that is no matter of the targets.
    if not (min(last, *losses[:3]) > LARGE_LOSS and norm > SCALED and last > NEAR_THE_START * first):
        return None
    return f"the loss is {last:.3g}; it started at {first:.3g}, and the median gradient norm is {norm:.2g}"


def has_nothing_left(view: View) -> bool:
    """Next to nothing of the loss is left, in training and in validation: whatever is unusual about this run, nothing
    is wrong with it."""
    _, losses = view.losses()
    if len(losses) < FEW:
        return False
    # A loss that shot up after the first row says nothing of what there was to learn.
    first = min(float(losses[0]), float(np.median(losses[:3])))
    last = float(np.median(losses[-max(3, len(losses) // 4) :]))
    evaluations = view.values("loss", "eval")
    if not (0 <= last <= LEFT * first) or not len(evaluations):
        return False
    return 0 <= float(evaluations[-1]) <= LEFT_IN_VALIDATION * first


def sees_each_row_once(view: View) -> bool:
    """No row came twice, so that nothing can have been memorized. A log that counts whole epochs does not tell."""
    epochs = view.values("epoch")
    return len(epochs) > 0 and bool((epochs % 1 != 0).any()) and float(epochs[-1]) <= 1.0


def has_learned_everything(view: View) -> bool:
    """Its last evaluation is right throughout, and no constant prediction, or next to nothing of the loss is left:
    nothing has kept it from learning."""
    return (is_solved(view) and not predicts_one_class(view)) or has_nothing_left(view)
