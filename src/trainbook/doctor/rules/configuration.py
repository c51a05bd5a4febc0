"""The configuration by itself: values far from the usual ones for this model and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainbook.doctor.curves import (
    LATE_SHARE,
    LEFT,
    LEFT_IN_VALIDATION,
    MUCH,
    Fall,
    divergence_of,
    ends_in_nan,
    fall_at_end,
    has_learned_everything,
    has_nothing_left,
    learned_late,
    training_since,
)
from trainbook.doctor.remedies import change, lower_rate, raise_rate, usual, usual_rates
from trainbook.doctor.rule import Lacking, finding, rule
from trainbook.doctor.statistics import robust_line
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.knobs.bibliography import LLAMA

USUAL = "the usual range and the cases on the knob's page"
STRONG_SMOOTHING = 0.4
OWN_DROPOUT = 0.7  # of any part of a module of the user's own; a half has been usual between wide layers
STEEP = 0.03  # of the loss, in the last quarter of a run
HARMLESS = "Nothing shows that it does harm. With less dropout, training may need fewer steps."
NO_USUAL = "usual learning rate is known for this kind of model"


@rule(
    "rate-for-the-case",
    symptom="loss not decreasing",
    looks_at="the peak learning rate against the usual one for this optimizer, model size, and training from "
    "scratch or "
    "fine-tuning",
    thresholds="more than 10 times as high; less than a ninth, a fifth if the loss is still falling at the end, or "
    f"half if it fell by more than {STEEP:.0%} in the last quarter, or the validation loss by {LATE_SHARE:.0%} of the "
    "whole improvement in the last half, and the size of the model is known; 25 times as high is an error; nothing is "
    f"said of a learning rate with which training ends below {LEFT:.0%} and validation below {LEFT_IN_VALIDATION:.0%} "
    "of the first loss",
    source=USUAL,
    fault="the learning rate 30 times too high or too low",
    causes=("learning-rate-high", "learning-rate-low"),
    needs=("setting:optimizer.learning_rate",),
)
def rate_for_the_case(view: View) -> Iterator[Finding]:
    rate, known = view.peak_rate, usual_rates(view)
    if known is None:
        raise Lacking(NO_USUAL)
    if rate is None or view.setting("model.parametrization", "standard") != "standard":
        return
    low, high = known
    factor = rate / high if rate > high else rate / low if rate < low else 1.0
    expected = f"{low:.2g} is usual for this optimizer and model"
    if low != high:
        expected = f"{low:.2g} to {high:.2g} is usual for this optimizer, depending on the size of the model"
    evidence = f"the peak learning rate is {rate:.2g}; {expected}"
    if factor > 10 and has_nothing_left(view):
        return
    if factor > 10:
        yield finding(
            "error" if factor >= 25 else "warning",
            "learning-rate-high",
            0.75 if factor >= 25 else 0.55,
            evidence,
            override=lower_rate(view),
            factor=factor,
        )
        return
    fall = fall_at_end(view)
    is_fast = fall is not None and fall.of_level > STEEP and low == high
    is_late = low == high and not view.is_fine_tuning and learned_late(view)
    if factor < 1 / 9 or (factor < 1 / 5 and _falls_to_the_end(view)) or (factor <= 1 / 2 and (is_fast or is_late)):
        is_falling = factor >= 1 / 12 and (is_fast or is_late or _falls_to_the_end(view))
        yield finding(
            "warning",
            "learning-rate-low",
            0.7 if factor < 1 / 12 else 0.6 if is_falling else 0.5,
            evidence + (f"; the loss was still falling at the end{_by(fall)}" if is_falling else ""),
            override=raise_rate(view),
            factor=factor,
        )


def _by(fall: Fall | None) -> str:
    if fall is None:
        return ""
    return f", by {fall.told} in the last {int(fall.steps[1] - fall.steps[0]):,} steps"


def _falls_to_the_end(view: View) -> bool:
    """Of a run that has ended: for certain, over its last third."""
    steps, losses = view.losses()
    late = steps > steps[-1] * 2 / 3 if len(steps) else []
    if not view.has_ended or len(losses) < 12 or ends_in_nan(view) or divergence_of(view) is not None:
        return False
    return robust_line(steps[late], losses[late]).high < 0


@rule(
    "batch-for-the-case",
    symptom="fluctuating validation",
    looks_at="the number of sequences and tokens in a batch",
    thresholds="fewer than 4 sequences and 2,048 tokens; more than 4,096 sequences or 8 million tokens; 256 "
    "sequences or "
    "more if that is over a tenth of the data, or leaves fewer than 100 updates; nothing is said of a small batch with "
    "which everything was learned",
    source=f"{USUAL}; 4 million tokens for models of up to 65 billion parameters ({LLAMA})",
    fault="a batch of one sequence",
    causes=("batch-small", "batch-large", "batch-unusual"),
    needs=("setting:batch.global_batch_size",),
)
def batch_for_the_case(view: View) -> Iterator[Finding]:
    size, length = view.global_batch, view.setting("data.max_seq_length")
    if size is None:
        return
    tokens = size * length if length else None
    low, high = usual("batch.global_batch_size")
    shown = f"a batch has {size} sequence{'s' if size > 1 else ''}" + (f", at most {tokens:,} tokens" if tokens else "")
    samples, updates = view.fact("train_samples"), view.total
    if size < low / 2 and (tokens is None or tokens < 2048):
        if has_learned_everything(view):
            return
        wanted = min(32, samples // 4) if samples else 32  # each update sees a part of the data, not all of it
        if wanted > size:
            larger = change(view, "batch.global_batch_size", wanted)
            yield finding("warning", "batch-small", 0.75, shown, override=larger)
        return
    if size >= 256 and ((samples and size > 0.1 * samples) or 0 < updates < 100):
        evidence = f"{shown}, and the run makes {updates:,} update{'s' * (updates != 1)}" if updates else shown
        yield finding("warning", "batch-large", 0.6, evidence, override=_smaller_batch(view, size))
    elif size > high or (tokens is not None and tokens > 8_000_000):
        yield finding("warning", "batch-unusual", 0.5, shown, override=_smaller_batch(view, size))


def _smaller_batch(view: View, size: int) -> str | None:
    low, _ = usual("batch.global_batch_size")
    return change(view, "batch.global_batch_size", max(int(low), size // 8))


@rule(
    "averages-for-the-case",
    symptom="instability",
    looks_at="beta1 and beta2: over how many steps gradients and squared gradients are averaged",
    thresholds="outside the usual range",
    source=USUAL,
    fault="beta2 of 0.5 or 0.99999; beta1 of 0.99",
    causes=("beta2-low", "beta2-high", "momentum-high"),
    needs=("setting:optimizer.beta2",),
)
def averages_for_the_case(view: View) -> Iterator[Finding]:
    if view.setting("optimizer.type", "adamw") in ("sgd", "muon"):
        momentum = view.setting("optimizer.momentum")
        if momentum is not None and momentum > usual("optimizer.momentum")[1]:
            yield finding(
                "warning",
                "momentum-high",
                0.7,
                f"momentum is {momentum:g}",
                override=change(view, "optimizer.momentum", 0.9),
            )
        return
    beta1, beta2 = view.setting("optimizer.beta1"), view.setting("optimizer.beta2")
    low, high = usual("optimizer.beta2")
    if beta2 is not None and beta2 < low:
        yield finding(
            "warning",
            "beta2-low",
            0.75,
            f"beta2 is {beta2:g}: squared gradients are averaged over about {1 / (1 - beta2):.1f} steps",
            override=change(view, "optimizer.beta2", 0.95),
        )
    elif beta2 is not None and beta2 > high:
        steps = 1 / (1 - beta2) if beta2 < 1 else float("inf")
        evidence = (
            f"beta2 is {beta2:g}: squared gradients are averaged over about {steps:,.0f} steps, in a run of "
            f"{view.total:,}"
            if view.total
            else f"beta2 is {beta2:g}"
        )
        yield finding("warning", "beta2-high", 0.7, evidence, override=change(view, "optimizer.beta2", 0.99))
    if beta1 is not None and beta1 > usual("optimizer.beta1")[1]:
        yield finding(
            "warning",
            "momentum-high",
            0.75,
            f"beta1 is {beta1:g}: gradients are averaged over about {1 / (1 - beta1):,.0f} steps",
            override=change(view, "optimizer.beta1", 0.9),
        )


class _LateLosses(NamedTuple):
    training: float
    validation: float


def _late_losses(view: View) -> _LateLosses | None:
    """Of a model that has learned: where nothing was learned, the two are alike whatever the reason."""
    losses, evaluations = view.losses()[1], view.values("loss", "eval")
    if not len(evaluations) or not len(losses) or not view.has_floor:
        return None
    late = _LateLosses(training_since(view, view.last_step)[1], float(np.median(evaluations[-3:])))
    return late if late.training < MUCH * losses[0] else None


@rule(
    "strength-for-the-case",
    symptom="underfitting",
    looks_at="weight decay, dropout, the initializer range, the clipping threshold, and the width of the model",
    thresholds=f"outside the usual ranges; of a module of your own, dropout above {OWN_DROPOUT:g} in any part; of "
    "dropout only a remark where something was learned and the training loss does not end above the validation loss, "
    "since what dropout does shows there",
    source=USUAL,
    fault="weight decay of 10; dropout of 0.6; an initializer range of 0.2 or 0.0002; a clipping threshold of 0.001",
    causes=("decay-high", "dropout-high", "init-large", "init-small", "clipping-tight", "model-small"),
    needs=("setting:optimizer.weight_decay",),
)
def strength_for_the_case(view: View) -> Iterator[Finding]:
    decay, set_to = view.setting("optimizer.weight_decay"), view.setting("model.dropout")
    is_own = set_to is None  # a module of the user's own: what its parts say, which are often narrow
    dropout, most = (view.fact("dropout"), OWN_DROPOUT) if is_own else (set_to, usual("model.dropout")[1])
    spread, limit = view.setting("model.initializer_range"), view.setting("batch.max_grad_norm")
    if decay is not None and decay > usual("optimizer.weight_decay")[1] and view.fact("num_decayed") != 0:
        yield finding(
            "warning",
            "decay-high",
            0.7,
            f"weight decay is {decay:g}",
            override=change(view, "optimizer.weight_decay", 0.1),
        )
    if dropout is not None and dropout > most and not has_learned_everything(view):
        override = None if is_own else change(view, "model.dropout", 0.1)
        evidence, late = f"dropout is {dropout:.2g}", _late_losses(view)
        if late is not None and late.training <= late.validation:
            evidence += f"; but the training loss, {late.training:.3g}, is not above the validation loss, "
            evidence += f"{late.validation:.3g}"
            yield finding("info", "dropout-high", 0.4, evidence, remedy=HARMLESS)
        else:
            yield finding("warning", "dropout-high", 0.7, evidence, override=override)
    if limit is not None and limit < usual("batch.max_grad_norm")[0]:
        yield finding(
            "warning",
            "clipping-tight",
            0.6,
            f"gradients are clipped to a norm of {limit:g}",
            override=change(view, "batch.max_grad_norm", 1.0),
        )
    low, high = usual("model.initializer_range")
    if spread is not None and not view.is_fine_tuning:
        if spread > high:
            yield finding(
                "warning",
                "init-large",
                0.7,
                f"the initial weights have a standard deviation of {spread:g}",
                override=change(view, "model.initializer_range", 0.02),
            )
        elif spread < low:
            yield finding(
                "warning",
                "init-small",
                0.7,
                f"the initial weights have a standard deviation of {spread:g}",
                override=change(view, "model.initializer_range", 0.02),
            )
    width = view.setting("model.hidden_size")
    if width is not None and width < usual("model.hidden_size")[0] / 2 and not view.is_fine_tuning:
        yield finding(
            "warning",
            "model-small",
            0.6,
            f"the hidden size is {width}",
            override=change(view, "model.hidden_size", 128),
        )


@rule(
    "first-weights",
    symptom="loss not decreasing",
    looks_at="the scale of hidden weight matrices before the first step: root mean square times the square root of "
    "their "
    "input width",
    thresholds="below 0.06, with an initializer range below the usual one; or above 2; usual initializer ranges "
    "give 0.2 to 1",
    source="a range of 0.02 at widths 128 to 768 gives 0.23 to 0.55; 1 preserves the scale of activations; a "
    "narrow model "
    "has a small scale even with the usual range",
    fault="initial weights 10 times too small or too large",
    causes=("init-small", "init-large"),
    needs=("start:weight_scale",),
)
def first_weights(view: View) -> Iterator[Finding]:
    scale = float(view.fact("weight_scale"))
    evidence = f"initial weight matrices scale activations by {scale:.2g}; 0.2 to 1 is usual"
    spread, width = view.setting("model.initializer_range"), view.setting("model.hidden_size")
    is_narrow = width is not None and scale / width**0.5 > usual("model.initializer_range")[0]
    if scale < 0.06 and not is_narrow:
        yield finding(
            "warning",
            "init-small",
            0.75,
            evidence,
            override=change(view, "model.initializer_range", 0.02) if spread else None,
            scale=scale,
        )
    elif scale > 2.0:
        yield finding(
            "warning",
            "init-large",
            0.75,
            evidence,
            override=change(view, "model.initializer_range", 0.02) if spread else None,
            scale=scale,
        )


@rule(
    "no-shuffling",
    symptom="fluctuating validation",
    looks_at="whether data.shuffle is on",
    thresholds="it is off",
    source="the knob's page: keep the order only if it has a meaning",
    fault="data that is not shuffled",
    causes=("data-unshuffled",),
    needs=("setting:data.shuffle",),
)
def no_shuffling(view: View) -> Iterator[Finding]:
    if view.setting("data.shuffle") is False:
        yield finding(
            "info",
            "data-unshuffled",
            0.6,
            "data.shuffle is off",
            override=change(view, "data.shuffle", True),
            is_observed=True,
        )


@rule(
    "judged-on-itself",
    symptom="overfitting",
    looks_at="whether data.validation names the same source as data.source",
    thresholds="the same name",
    source="the definition: a validation split is data that the model is not trained on",
    fault="validation on the training data",
    causes=("evaluation-on-train",),
    needs=("setting:data.validation",),
)
def judged_on_itself(view: View) -> Iterator[Finding]:
    source, validation = view.setting("data.source"), view.setting("data.validation")
    if validation is not None and source == validation:
        yield finding(
            "error",
            "evaluation-on-train",
            0.9,
            f"data.validation and data.source are both {source}",
            override=change(view, "data.validation", None),
            is_observed=True,
        )


@rule(
    "smoothing-for-the-case",
    symptom="underfitting",
    looks_at="the strength of label smoothing",
    thresholds=f"{STRONG_SMOOTHING:g} or more",
    source=f"{USUAL}; at 1, all labels are the same",
    fault="label smoothing of 0.9",
    causes=("label-smoothing-high",),
    needs=("setting:training.label_smoothing",),
)
def smoothing_for_the_case(view: View) -> Iterator[Finding]:
    strength = view.setting("training.label_smoothing")
    if isinstance(strength, (int, float)) and strength >= STRONG_SMOOTHING:
        evidence = f"training.label_smoothing is {strength:g} (usual: 0 to 0.1)"
        override = change(view, "training.label_smoothing", 0.1)
        yield finding("warning", "label-smoothing-high", 0.8, evidence, override=override, strength=float(strength))
