"""The end of the loss curve: whether it stands still, or was still falling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainbook.doctor.chance import AS_GOOD_AS_GUESSING
from trainbook.doctor.curves import (
    ABOVE_CHANCE,
    FAST_OF_ALL,
    FAST_OF_LEVEL,
    LATE,
    MUCH,
    divergence_of,
    ends_in_nan,
    fall_at_end,
    falls_below_zero,
    has_learned_much,
    never_generalized,
    thrown_at_first,
    validation_falls_on,
    validation_gain,
    validation_has_stopped,
)
from trainbook.doctor.remedies import (
    Chosen,
    change,
    chosen_metric,
    is_solved,
    longer,
    rates_in_use,
    usual_rates,
)
from trainbook.doctor.rule import finding, rule
from trainbook.doctor.statistics import robust_line
from trainbook.doctor.view import STARTS_BY, View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import TUNING_PLAYBOOK

FEW = 8  # rows: with fewer a curve says nothing
GAINED_LATE = 0.02  # of the validation loss, over the last half of a run
NEGLIGIBLE = 0.01  # of the first loss: what is left, or gained late, is not worth more steps


@rule(
    "plateau",
    symptom="underfitting",
    looks_at="whether the training loss has stopped falling while validation is as good, so that neither more "
    "steps nor more "
    "data help",
    thresholds="a change below 1 % in the last half, validation within 10 % of training; only if something was learned "
    f"(a loss below {MUCH:.0%} of the first one and {AS_GOOD_AS_GUESSING:.0%} of that of guessing, and an accuracy "
    f"above {ABOVE_CHANCE:g} exp(-loss), which is that of guessing)",
    source="reasoning: a loss that still falls says nothing about the size of the model",
    fault="a model of width 16",
    causes=("model-small",),
    needs=("loss", "learning_rate", "eval:loss"),
)
def plateau(view: View) -> Iterator[Finding]:
    steps, losses = view.losses()
    if len(losses) < 2 * FEW or steps[-1] < 200 or ends_in_nan(view) or divergence_of(view) is not None:
        return
    if not has_learned_much(view):
        return  # what has learned nothing is not held back by its size
    half = slice(len(losses) // 2, None)
    line = robust_line(steps[half], losses[half])
    level = float(np.median(losses[half]))
    evaluations = view.values("loss", "eval")
    if not len(evaluations) or level <= 0 or not view.has_floor:
        return
    fall = -line.slope * (steps[-1] - steps[half][0]) / level
    gap = float(evaluations[-1]) / level - 1
    if abs(fall) < 0.01 and gap < 0.1:
        evidence = (
            f"the loss has stayed at {level:.3g} over the last half of the run, and the validation loss is "
            "about the same"
        )
        width = view.setting("model.hidden_size")
        override = change(view, "model.hidden_size", 2 * width) if width else None
        yield finding(
            "info", "model-small", 0.4, evidence, steps=(steps[half][0], steps[-1]), override=override, fall=fall
        )


@rule(
    "still-improving",
    symptom="underfitting",
    looks_at="whether the loss is still falling at the end, the best evaluation is clearly the last, or nearly every "
    "evaluation is better than the one before",
    thresholds="the loss falls significantly and by more than 1 % in the last quarter of the steps (the last third if "
    f"that has fewer than {LATE} rows; with fewer than 6 there, nothing is said), and validation has neither "
    "become worse nor stopped improving; evaluations that nearly all improve count if the validation loss fell by "
    f"{GAINED_LATE:.0%} over the last half of the run, and by a tenth of all that it fell; the "
    "learning rate is named too if the fall is "
    f"{FAST_OF_LEVEL:.0%} of the loss and {FAST_OF_ALL:.0%} of the whole improvement; not for a loss that diverged "
    "or ends in NaN, or only falls from where the first updates threw it, nor where no evaluation was better than the "
    "untrained model or than guessing, nor if the last evaluation is all right, nor if the loss is below 1 % of its "
    "first value (5 % if the last half gained less than 1 %)",
    source=f"train longer if the best step is in the last quarter ({TUNING_PLAYBOOK})",
    fault="a run with a tenth of its steps",
    causes=("training-short",),
    needs=("loss",),
)
def still_improving(view: View) -> Iterator[Finding]:
    if is_solved(view) or validation_has_stopped(view) or _has_little_left(view) or falls_below_zero(view):
        return
    thrown = thrown_at_first(view)
    if never_generalized(view):
        return  # what more steps would learn holds for the training data alone
    if thrown is not None and not thrown.has_learned:
        return  # it falls from where the first updates threw it: more steps of the same kind are no remedy
    fall = fall_at_end(view)
    if fall is not None and fall.of_level > 0.01:
        first, last = fall.steps
        evidence = f"the loss was still falling, by {fall.told} in the last {int(last - first):,} steps"
        sure, remedy = 0.5, None
        if fall.is_fast:
            evidence += f": {fall.of_all:.0%} of the whole improvement"
            sure, remedy = 0.6, _longer_or_faster(view)
        # A healthy run may be short on purpose: this is advice, not a warning.
        yield finding("info", "training-short", sure, evidence, steps=fall.steps, override=longer(view), remedy=remedy)
    elif _ends_at_its_best(view):
        steps = view.losses()[0]
        evidence = "the last evaluation is the best"
        yield finding("info", "training-short", 0.5, evidence, steps=(steps[0], steps[-1]), override=longer(view))
    elif _fell_throughout_in_validation(view):
        steps = view.losses()[0]
        evidence = "nearly every evaluation was better than the one before, and the validation loss fell by "
        evidence += f"{validation_gain(view):.1%} over the last half of the run"
        yield finding("info", "training-short", 0.4, evidence, steps=(steps[0], steps[-1]), override=longer(view))


def _fell_throughout_in_validation(view: View) -> bool:
    """By enough in the last half as well: where the learning rate comes down to zero, the end itself is flat in any
    run, however little was learned."""
    if not view.has_ended or ends_in_nan(view) or divergence_of(view) is not None or len(view.losses()[0]) < 2 * FEW:
        return False
    return validation_falls_on(view) and (validation_gain(view) or 0.0) > GAINED_LATE


def _has_little_left(view: View) -> bool:
    """The loss is a tiny share of what it was at the start; or a small one, and late steps gained next to nothing."""
    steps, losses = view.losses()
    if len(losses) < FEW or steps[0] > STARTS_BY or not view.has_floor:
        return False
    evaluations = view.values("loss", "eval")
    levels = evaluations if len(evaluations) >= 3 else losses
    first, last = float(losses[0]), float(np.median(levels[-3:]))
    gained = float(np.median(levels[len(levels) // 2 :][:3])) - last
    return 0 <= last < NEGLIGIBLE * first or (last < 5 * NEGLIGIBLE * first and gained < NEGLIGIBLE * first)


def _longer_or_faster(view: View) -> str:
    rate, known = view.peak_rate, usual_rates(view)
    if rate is not None and rate >= rates_in_use(view)[1]:
        return "Train longer."
    if rate is None or known is None or rate >= known[0]:
        return "Train longer, or with a higher learning rate."
    return f"Train longer, or with a higher learning rate: {known[0]:.2g} is usual for this optimizer and model."


def _ends_at_its_best(view: View) -> bool:
    chosen = chosen_metric(view)
    if len(view.losses()[0]) < 2 * FEW or not view.has_ended or ends_in_nan(view) or divergence_of(view) is not None:
        return False
    return chosen is not None and len(chosen.values) >= 3 and _is_clearly_best(chosen)


def _is_clearly_best(chosen: Chosen) -> bool:
    """The last evaluation, by a hundredth."""
    earlier, last = chosen.values[:-1], chosen.values[-1]
    best = float(earlier.max() if chosen.higher_is_better else earlier.min())
    return chosen.is_better(float(last), best, by=0.01)
