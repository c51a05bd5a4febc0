"""Causes that what is known of a run rules out, whatever else it looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trainbook.doctor.causes import HINDRANCES
from trainbook.doctor.chance import LEARNED, above_chance, knows_its_task
from trainbook.doctor.curves import fell_for_certain, has_learned_everything, restored_without_loss
from trainbook.doctor.remedies import is_high_enough
from trainbook.doctor.view import View

FAR_BELOW_UNIFORM = 0.2  # of the loss of a uniform guess: frequencies alone lead nowhere near
LOGS = ("csv", "tensorboard", "wandb")  # of which nobody knows what wrote them
OF_LOOPS = ("gradients-not-zeroed", "updates-missing", "training-in-eval-mode")
OF_TOKENS = ("tokens-unknown", "text-truncated", "padding-as-targets")
OF_TARGET_TOKENS = ("targets-not-shifted", "targets-shifted-twice", "mask-ratio-high", "future-leaks")
OF_SHIFTS = ("targets-not-shifted", "targets-shifted-twice")
OF_CLASSES = ("classes-missed", "classes-imbalanced", "classes-unjudged", "labels-mapped", "softmax-twice")
OF_CLASSES += ("label-smoothing-high",)
ENOUGH = 128  # targets seen, to tell what all of them are like
IN_RANDOM_ORDER = 0.2  # the likeness of targets that follow each other, at most: sorted ones have 1
USUAL_TARGETS = 10.0  # the root of their mean square, that a model soon reaches from outputs around 0
STILL_HIGH = 0.01  # of the peak learning rate, at nine tenths of a run: a cosine has twice as much there

NOT_OF_A_LOSS_FUNCTION = {"learning-rate-high", "bad-samples", "non-finite", "data-not-finite"}


def refuted(view: View) -> set[str]:
    found = {cause for cause, is_out in REFUTED.items() if is_out(view)}
    if restored_without_loss(view) is not None:
        found |= NOT_OF_A_LOSS_FUNCTION
    return found | HINDRANCES if has_learned_everything(view) else found


def _below(path: str, least: float) -> Callable[[View], bool]:
    """The setting is known, and is off or lower than this."""

    def is_below(view: View) -> bool:
        value = view.setting(path)
        return view.is_known(path) and (value is None or (isinstance(value, (int, float)) and value < least))

    return is_below


def _is_tool(view: View) -> bool:
    """A trainer does these things, and `trainbook.watch` sees them."""
    return view.record.origin not in LOGS


def _is_built_in(view: View) -> bool:
    """The loss and the targets are those of a task of ours."""
    config = view.record.config
    return config is not None and ":" not in str(config.training.task or "")


def _has_adapters(view: View) -> bool:
    """What else is frozen is so on purpose."""
    return bool(view.setting("model.lora_rank"))


def _has_no_tokens(view: View) -> bool:
    return view.fact("has_embedding") is False


def _has_numbers(view: View) -> bool:
    return view.task == "regress"


def _next_token_is_target(view: View) -> bool:
    """As was measured on the inputs of the run, or as the loss of a task of ours has it."""
    matches = [match["1"] for _, match in view.parts("target_match") if "1" in match]
    return bool(np.mean(matches) > 0.5) if matches else _is_built_in(view)


def _is_finite(view: View) -> bool:
    return all(np.isfinite(view.curve(name)[1]).all() for name in ("loss", "grad_norm"))


def _has_targets_with_fractions(view: View) -> bool:
    """The sum of whole numbers, as classes are, is a whole number."""
    seen, mean = view.fact("targets_seen") or 0, view.fact("target_mean")
    if view.fact("targets_are_whole") is False:
        return True
    if view.fact("target_classes") is not None or view.fact("targets_are_whole") or mean is None or seen < ENOUGH:
        return False
    total = float(mean) * seen
    return bool(np.isfinite(total) and abs(total) < 1e9 and abs(total - round(total)) > 1e-4)


def _is_in_random_order(view: View) -> bool:
    order, seen = view.fact("target_order"), view.fact("samples_seen") or 0
    return order is not None and seen >= ENOUGH and order < IN_RANDOM_ORDER and not view.fact("in_order")


def _has_targets_of_usual_size(view: View) -> bool:
    mean, variance = view.fact("target_mean"), view.fact("target_variance")
    if mean is None or variance is None or (view.fact("targets_seen") or 0) < ENOUGH:
        return False
    return float(mean) ** 2 + float(variance) <= USUAL_TARGETS**2


def _rate_falls_to_the_end(view: View) -> bool:
    """In the last tenth of a run it is not over yet, and goes down with each row."""
    steps, rates = view.finite("learning_rate")
    late = rates[steps >= 0.9 * steps[-1]] if len(steps) else rates
    if not view.has_ended or len(late) < 2:
        return False
    return bool(late[0] >= STILL_HIGH * rates.max() and (np.diff(late) < 0).all())


def _evaluations_differ(view: View) -> bool:
    return len(np.unique(view.values("loss", "eval"))) > 1


def _inputs_tell_targets(view: View) -> bool:
    """On held-out data the model, or the linear baseline, is far better than any prediction that ignores the inputs."""
    evaluations = view.values("loss", "eval")
    if above_chance(view) is not None or not len(evaluations):
        return above_chance(view) is not None
    by_frequency, uniform = view.fact("validation_prior_loss") or view.fact("prior_loss"), view.fact("uniform_loss")
    limit = LEARNED * by_frequency if by_frequency else FAR_BELOW_UNIFORM * (uniform or 0.0)
    return bool(np.nanmin(evaluations) < limit)


REFUTED: Mapping[str, Callable[[View], bool]] = {
    **dict.fromkeys(OF_LOOPS, _is_tool),
    **dict.fromkeys(OF_TOKENS, _has_no_tokens),
    **dict.fromkeys(OF_TARGET_TOKENS, lambda view: _has_no_tokens(view) or view.predicts_labels),
    **dict.fromkeys(
        OF_SHIFTS, lambda view: _has_no_tokens(view) or view.predicts_labels or _next_token_is_target(view)
    ),
    **dict.fromkeys(OF_CLASSES, _has_numbers),
    **dict.fromkeys(("non-finite", "loss-not-finite", "data-not-finite", "fp16-overflow"), _is_finite),
    "label-smoothing-high": lambda view: _has_numbers(view) or _below("training.label_smoothing", 0.3)(view),
    "epsilon-high": _below("optimizer.epsilon", 1e-4),
    "dropout-high": lambda view: view.has_no_dropout,
    "decay-high": lambda view: _below("optimizer.weight_decay", 1e-4)(view) or view.fact("num_decayed") == 0,
    "clipping-tight": _below("batch.max_grad_norm", 1e-12),
    "batchnorm-statistics": lambda view: view.fact("has_batch_norm") is False,
    "evaluation-other-model": _evaluations_differ,
    "labels-random": _inputs_tell_targets,
    "learning-rate-low": lambda view: is_high_enough(view) or (knows_its_task(view) and not fell_for_certain(view)),
    "base-untrained": knows_its_task,
    "constant-missed": knows_its_task,
    "loss-mismatched": lambda view: _is_built_in(view) or _has_targets_with_fractions(view),
    "targets-broadcast": _is_built_in,
    "softmax-twice": lambda view: _has_numbers(view) or _is_built_in(view),
    "layers-frozen": _has_adapters,
    "targets-unscaled": lambda view: (
        (view.task is not None and not _has_numbers(view)) or _has_targets_of_usual_size(view)
    ),
    "data-unshuffled": _is_in_random_order,
    "schedule-ends-early": _rate_falls_to_the_end,
}
