"""The usual change for a cause that an experiment has shown, where no rule's finding says one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from trainbook.doctor.remedies import change, chosen_metric, longer, lower_rate, raise_rate, until, without_repeats
from trainbook.doctor.view import View

CLIP = "batch.max_grad_norm"


def treatment_of(cause: str, view: View) -> str | None:
    """A `key=value`; None where no knob treats the cause, or it is at that value already."""
    make = TREATMENTS.get(cause)
    return make(view) if make is not None else None


def _set(path: str, value: object) -> Callable[[View], str | None]:
    return lambda view: change(view, path, value)


def _warm_up(view: View) -> str | None:
    return change(view, "schedule.warmup_steps", max(1, math.ceil(0.05 * view.last_step)))


def _end_at_the_best(view: View) -> str | None:
    chosen = chosen_metric(view)
    if chosen is not None and chosen.best_step < 0.8 * view.last_step:
        return until(view, chosen.best_step)
    return change(view, "model.dropout", 0.1)


def _more_samples(view: View) -> str | None:
    present = view.setting("evaluation.eval_max_samples")
    return change(view, "evaluation.eval_max_samples", 4 * present if isinstance(present, int) else None)


def _guarded(view: View) -> str | None:
    return change(view, "guard.enabled", True) or without_repeats(view)


TREATMENTS: Mapping[str, Callable[[View], str | None]] = {
    "learning-rate-high": lower_rate,
    "learning-rate-low": raise_rate,
    "warmup-short": _warm_up,
    "clipping-off": _set(CLIP, 1.0),
    "clipping-tight": _set(CLIP, 1.0),
    "gradients-explode": _set(CLIP, 1.0),
    "decay-high": _set("optimizer.weight_decay", 0.1),
    "beta2-low": _set("optimizer.beta2", 0.95),
    "beta2-high": _set("optimizer.beta2", 0.99),
    "momentum-high": _set("optimizer.beta1", 0.9),
    "epsilon-high": _set("optimizer.epsilon", 1e-8),
    "dropout-high": _set("model.dropout", 0.1),
    "label-smoothing-high": _set("training.label_smoothing", 0.1),
    "init-large": _set("model.initializer_range", 0.02),
    "init-small": _set("model.initializer_range", 0.02),
    "attention-logits-grow": _set("model.qk_norm", True),
    "fp16-overflow": _set("precision.compute", "bf16"),
    "data-unshuffled": _set("data.shuffle", True),
    "training-short": longer,
    "overfitting": _end_at_the_best,
    "dataset-tiny": _end_at_the_best,
    "evaluation-noisy": _more_samples,
    "bad-samples": _guarded,
}
