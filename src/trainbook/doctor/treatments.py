"""The usual change for a cause that an experiment has shown, where no rule's finding says one.

A change is only named if it can act against the cause: it turns its knob the right way, and nothing shows that the
fault is where no knob reaches (code, data). What to do by hand is said instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from trainbook.doctor.curves import unclipped_steps, validation_has_stopped
from trainbook.doctor.remedies import (
    change,
    chosen_metric,
    longer,
    lower_rate,
    more_evaluated,
    raise_rate,
    slower_decay,
    until,
    without_bad_samples,
)
from trainbook.doctor.view import View

CLIP = "batch.max_grad_norm"
EARLY_STOPPING = "evaluation.early_stopping_patience"
SeenOutcomes = Mapping[str, str | None]  # by experiment


def treatment_of(cause: str, view: View) -> str | None:
    """A `key=value`; None where no knob treats the cause, or it is at that value or beyond already."""
    make = TREATMENTS.get(cause)
    return make(view) if make is not None else None


def is_comparable(override: str) -> bool:
    """Whether a run with the change could end better than one without. Early stopping cannot make it so: until it
    stops, the run is the same, and its best checkpoint is kept either way."""
    return not override.startswith(EARLY_STOPPING)


def by_hand(cause: str, seen: SeenOutcomes) -> str | None:
    """What to do about a cause that an experiment has shown to be in code or data; None: a knob may treat it."""
    found = (words for (name, at, outcome), words in BY_HAND.items() if name == cause and seen.get(at) == outcome)
    return next(found, None)


# By cause, experiment and outcome.
BY_HAND: Mapping[tuple[str, str, str], str] = {
    ("evaluation-noisy", "evaluate-twice", "other samples"): "The code that evaluates takes other samples each time, "
    "which evaluation.eval_max_samples does not change. Evaluate on the same samples every time, and on all of them if "
    "they are few.",
}


def _set(path: str, value: object) -> Callable[[View], str | None]:
    return lambda view: change(view, path, value)


def _at_most(path: str, value: float) -> Callable[[View], str | None]:
    """For a knob that is too high; null is higher than any number."""
    return lambda view: change(view, path, value) if _number(view, path, math.inf) > value else None


def _at_least(path: str, value: float) -> Callable[[View], str | None]:
    """For a knob that is too low."""
    return lambda view: change(view, path, value) if _number(view, path, math.inf) < value else None


def _number(view: View, path: str, otherwise: float) -> float:
    present = view.setting(path)
    return float(present) if isinstance(present, int | float) else otherwise


def _clipped(view: View) -> str | None:
    """Not where gradients above the threshold were left as they were: another threshold would not be applied either."""
    return None if unclipped_steps(view) else _at_most(CLIP, 1.0)(view)


def _warm_up(view: View) -> str | None:
    steps = max(1, math.ceil(0.05 * view.last_step))
    return change(view, "schedule.warmup_steps", steps) if (view.warmup or 0) < steps else None


def _end_at_the_best(view: View) -> str | None:
    """Where validation has become worse, a run that ends at its best; where it stands still, dropout. While it still
    falls, either would only slow it down: what helps then is more data."""
    chosen = chosen_metric(view)
    if chosen is not None and chosen.has_worsened and chosen.best_step < 0.8 * view.last_step:
        return until(view, chosen.best_step)
    return _at_least("model.dropout", 0.1)(view) if validation_has_stopped(view) else None


def _guarded(view: View) -> str | None:
    return change(view, "guard.enabled", True) or without_bad_samples(view)


TREATMENTS: Mapping[str, Callable[[View], str | None]] = {
    "learning-rate-high": lower_rate,
    "learning-rate-low": raise_rate,
    "warmup-short": _warm_up,
    "clipping-off": _clipped,
    "clipping-tight": _at_least(CLIP, 1.0),
    "gradients-explode": _clipped,
    "decay-high": _at_most("optimizer.weight_decay", 0.1),
    "beta2-low": _at_least("optimizer.beta2", 0.95),
    "beta2-high": _at_most("optimizer.beta2", 0.99),
    "momentum-high": _at_most("optimizer.beta1", 0.9),
    "epsilon-high": _at_most("optimizer.epsilon", 1e-8),
    "dropout-high": _at_most("model.dropout", 0.1),
    "label-smoothing-high": _at_most("training.label_smoothing", 0.1),
    "init-large": _at_most("model.initializer_range", 0.02),
    "init-small": _at_least("model.initializer_range", 0.02),
    "attention-logits-grow": _set("model.qk_norm", True),
    "fp16-overflow": _set("precision.compute", "bf16"),
    "data-unshuffled": _set("data.shuffle", True),
    "schedule-ends-early": slower_decay,
    "training-short": longer,
    "overfitting": _end_at_the_best,
    "dataset-tiny": _end_at_the_best,
    "evaluation-noisy": lambda view: more_evaluated(view, 4),
    "bad-samples": _guarded,
}
