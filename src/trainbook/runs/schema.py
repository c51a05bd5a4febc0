"""The schema of a run's files: every metric and every kind of event, with its unit and meaning.

Writers check their rows against these tables; readers take units and meanings from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.nearest import nearest

COLUMNS_FOLDER = ".metrics.columns"  # a cache of those who read metrics
SCHEMA_VERSION = 1

Split = Literal["train", "eval"]
Level = Literal["info", "warning", "error"]

BOTH: tuple[Split, ...] = ("train", "eval")
TRAIN: tuple[Split, ...] = ("train",)
EVAL: tuple[Split, ...] = ("eval",)


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    splits: tuple[Split, ...]
    cadence: Literal["row", "logging", "evaluation"]  # in each row; at logging steps; at evaluations
    meaning: str
    higher_is_better: bool | None = None  # None: not a matter of better and worse
    per: str | None = None  # a dict in the row, with a number for each of these; None: a single value


@dataclass(frozen=True)
class EventKind:
    kind: str
    meaning: str
    level: Level = "info"
    shown: bool = True  # whether the terminal prints a line for it; the file always has it


PLACING_METRICS = ("step", "segment", "time", "best", "tokens", "epoch", "targets")  # they place a row
LARGEST_STEP = 2**53  # whole numbers up to here are exact as floats
LARGEST_METRIC = 1e100  # squares and sums of such numbers are still numbers; no training computes a larger one


def bounded(value: float) -> float:
    """A metric as it is read: infinite if a mean over such values would overflow."""
    return value if not abs(value) > LARGEST_METRIC else math.inf if value > 0 else -math.inf


def bounded_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bounded_row(value)
        if isinstance(value, dict)
        else bounded(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else value
        for name, value in row.items()
    }


def _by_name(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _higher(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, unit, EVAL, "evaluation", meaning, higher_is_better=True)


def _lower(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, unit, EVAL, "evaluation", meaning, higher_is_better=False)


METRICS = _by_name(
    Metric("step", "steps", BOTH, "row", "attempted updates so far, including this one and skipped ones"),
    Metric("segment", "count", BOTH, "row", "0 in a new run; incremented by each resume or rollback"),
    Metric("split", "name", BOTH, "row", "train or eval"),
    Metric("time", "unix seconds", BOTH, "row", "when the row was written"),
    Metric("epoch", "epochs", BOTH, "row", "epochs over the training data so far, as a fraction"),
    Metric("tokens", "tokens", BOTH, "row", "training tokens so far, without padding"),
    Metric("targets", "targets", BOTH, "row", "number of targets in the mean of the loss"),
    Metric(
        "loss",
        "nats per target",
        BOTH,
        "row",
        "the objective: cross entropy (in training with all extra terms), or the squared error in regression",
        higher_is_better=False,
    ),
    Metric(
        "cross_entropy",
        "nats per target",
        TRAIN,
        "logging",
        "plain cross entropy, without label smoothing, z-loss or other extra terms",
    ),
    Metric("squared_error", "squared units", TRAIN, "logging", "the objective of regression"),
    Metric("label_smoothing", "nats per target", TRAIN, "logging", "what label smoothing adds to the cross entropy"),
    Metric("z_loss", "nats per target", TRAIN, "logging", "the weighted z-loss, normalized like the cross entropy"),
    Metric("learning_rate", "rate", TRAIN, "logging", "the learning rate of this step"),
    Metric("grad_norm", "norm", TRAIN, "logging", "global norm of the gradients before clipping"),
    Metric(
        "grad_norms",
        "norm",
        TRAIN,
        "logging",
        "norm of each layer's gradients before clipping; grad_norm is the root of the sum of their squares",
        per="layer",
    ),
    Metric(
        "update_ratio",
        "ratio",
        TRAIN,
        "logging",
        "norm of the update over the norm of the weights before it, estimated from a sample of the weights",
    ),
    Metric(
        "update_ratios",
        "ratio",
        TRAIN,
        "logging",
        "update_ratio of each layer",
        per="layer",
    ),
    Metric(
        "zero_gradients",
        "share",
        TRAIN,
        "logging",
        "share of the trained parameters that lie in tensors whose gradient is zero or missing",
    ),
    Metric("bad_losses", "steps", TRAIN, "logging", "steps since the last row whose loss was not finite, if any"),
    Metric(
        "same_batches", "share", TRAIN, "logging", "share of the batches since the last row that equal the previous one"
    ),
    Metric("duplicate_rows", "share", TRAIN, "logging", "share of rows of the step's batch that equal an earlier one"),
    Metric("weight_norm", "norm", TRAIN, "logging", "norm of the weight matrices, estimated from the same sample"),
    Metric(
        "optimizer_updates",
        "updates",
        TRAIN,
        "logging",
        "updates in the optimizer's moving averages, if it counts them",
    ),
    Metric(
        "probe_loss",
        "nats per target",
        TRAIN,
        "logging",
        "cross entropy of the first rows of the step's batch in evaluation mode (without dropout)",
    ),
    Metric(
        "offset_losses",
        "nats per target",
        TRAIN,
        "logging",
        "probe_loss if the targets were the tokens at this offset: a next-token model is best at offset 1",
        per="offset",
    ),
    Metric(
        "target_match",
        "share",
        TRAIN,
        "logging",
        "share of targets that equal the input token at this offset",
        per="offset",
    ),
    Metric("padding_targets", "share", TRAIN, "logging", "share of targets that are pad tokens after a pad token"),
    Metric(
        "future_leak",
        "deviations",
        TRAIN,
        "logging",
        "change of the predictions in the first half of a row when its second half changes; 0 without a leak",
    ),
    Metric(
        "dead_units",
        "share",
        TRAIN,
        "logging",
        "share of feed-forward units that are never active in the first rows of the step's batch",
        per="layer",
    ),
    Metric("target_share", "share", TRAIN, "logging", "targets over tokens in the step's batch"),
    Metric(
        "repeated_rows",
        "share",
        TRAIN,
        "logging",
        "share of the samples since the last row that were already seen in the same epoch",
    ),
    Metric(
        "repeated_batches",
        "share",
        TRAIN,
        "logging",
        "share of the batches since the last row that were already seen in the same epoch",
    ),
    Metric(
        "ordered_rows",
        "share",
        TRAIN,
        "logging",
        "share of neighbours in the step's batch that are in source order: about a half if shuffled",
    ),
    Metric(
        "attention_logit_max",
        "logit",
        TRAIN,
        "logging",
        "largest scaled |query · key| over layers and heads, in the first rows of the step's batch",
    ),
    Metric(
        "log_z",
        "nats",
        TRAIN,
        "logging",
        "mean over targets of log(sum(exp(logits))), in the same rows; NaN without targets",
    ),
    Metric(
        "loss_deviation",
        "robust sigmas",
        TRAIN,
        "logging",
        "distance of this step's loss from the median of recent ones; negative if below",
    ),
    Metric(
        "grad_norm_deviation",
        "robust sigmas",
        TRAIN,
        "logging",
        "distance of this step's gradient norm from the median of recent ones; negative if below",
    ),
    Metric(
        "rate_factor",
        "factor",
        TRAIN,
        "logging",
        "the guard's factor on the scheduled learning rate: 1 unless the guard lowered it",
    ),
    Metric("clipped", "share", TRAIN, "logging", "share of the steps since the last row that were clipped"),
    Metric("loss_scale", "factor", TRAIN, "logging", "the factor on the loss under fp16"),
    Metric("applied_updates", "updates", TRAIN, "logging", "updates applied so far; the schedule counts these"),
    Metric("skipped_updates", "updates", TRAIN, "logging", "updates skipped so far"),
    Metric("tokens_per_second", "tokens/s", TRAIN, "logging", "training tokens over wall time since the last row"),
    Metric("step_seconds", "seconds", TRAIN, "logging", "mean wall time of a step since the last row"),
    Metric("data_wait_seconds", "seconds", TRAIN, "logging", "mean time a step waited for its batch"),
    Metric("memory_bytes", "bytes", TRAIN, "logging", "memory in use, of the kind that memory_kind names"),
    Metric("rank_memory", "bytes", TRAIN, "logging", "memory of each process, if there are several", per="rank"),
    Metric(
        "rank_seconds",
        "seconds",
        TRAIN,
        "logging",
        "compute time of each process per step, with ddp or fsdp",
        per="rank",
    ),
    Metric("memory_kind", "name", TRAIN, "logging", "host_rss, or device_peak since the last row"),
    Metric(
        "gpu_utilisation", "share", TRAIN, "logging", "share of time in which the device was busy, if it can be read"
    ),
    _lower("perplexity", "ratio", "exp of the cross entropy per target"),
    _higher(
        "accuracy",
        "share",
        "share of targets that are predicted correctly; with several labels per sample, all must be right",
    ),
    _lower("bits_per_token", "bits per target", "cross entropy per target in base 2"),
    _lower("bits_per_byte", "bits per byte", "cross entropy per byte of text in base 2; comparable across tokenizers"),
    _higher("f1_micro", "share", "2 TP / (2 TP + FP + FN), counted over all classes together"),
    _higher("f1_macro", "share", "mean F1 over the classes that occur in labels or predictions"),
    _higher("entity_f1", "share", "F1 of whole entities of all types together, as seqeval counts them"),
    _higher("entity_f1_macro", "share", "mean F1 over the entity types"),
    _higher("entity_precision", "share", "share of the predicted entities that are correct"),
    _higher("entity_recall", "share", "share of the true entities that were found"),
    _higher("exact_match", "share", "share of inputs whose generated text equals one of the targets of this input"),
    _lower(
        "word_error_rate",
        "ratio",
        "edits over words of the nearest reference; for phonemes, share of samples that equal no reference",
    ),
    _lower("phoneme_error_rate", "ratio", "edits over phonemes of the nearest reference"),
    _lower("mean_squared_error", "squared units", "mean squared difference from the true value"),
    _lower("mean_absolute_error", "units", "mean absolute difference from the true value"),
    _higher("pearson", "correlation", "linear correlation of predicted and true values; NaN if either is constant"),
    Metric("baseline_accuracy", "share", EVAL, "evaluation", "accuracy of a linear bag-of-words model, as a baseline"),
    Metric(
        "baseline_mean_squared_error",
        "squared units",
        EVAL,
        "evaluation",
        "mean squared error of always predicting the mean of the training targets, as a baseline",
    ),
    Metric("seconds", "seconds", EVAL, "evaluation", "wall time of the evaluation"),
    Metric("best", "flag", EVAL, "evaluation", "true if evaluation.metric_for_best_model is the best so far"),
)


def fixed(value: float, decimals: int) -> str:
    """Fixed point while that is readable: neither ten digits nor nothing but zeros. NaN stays nan."""
    is_readable = 0.5 * 10**-decimals <= abs(value) < 1e6 or value == 0 or not math.isfinite(value)
    return f"{value:.{decimals}f}" if is_readable else f"{value:.3e}"


def judgements(row: Mapping[str, Any]) -> list[tuple[Metric, float]]:
    """The metrics of an evaluation row that measure quality, in the order of the table."""
    own = (metric for metric in METRICS.values() if metric.splits == EVAL and metric.unit not in ("seconds", "flag"))
    shown = (METRICS["loss"], *own)
    return [(metric, row[metric.name]) for metric in shown if isinstance(row.get(metric.name), (int, float))]


EVENTS = {
    event.kind: event
    for event in (
        EventKind("start", "training starts at step 0", shown=False),
        EventKind("facts", "what the first batches tell of the loss function and the targets", shown=False),
        EventKind("symptom", "the training loop does something that is usually a mistake", "warning"),
        EventKind("resume", "training resumes from a checkpoint; `step` is the checkpoint's"),
        EventKind("rollback", "training rolls back to an earlier state; `step` is that state's", "warning"),
        EventKind("checkpoint", "a checkpoint is complete on disk", shown=False),
        EventKind("checkpoint_damaged", "a checkpoint is damaged and was not used", "warning"),
        EventKind("checkpoint_upkeep_failed", "a checkpoint is complete, but cleaning up older ones failed", "warning"),
        EventKind("skip", "an update was skipped", "warning"),
        EventKind(
            "corruption", "a step gave another result when it was computed again: a device is suspect", "warning"
        ),
        EventKind("quarantine", "samples are excluded from training from here on; or none stood out", "warning"),
        EventKind("release", "quarantined samples have no higher loss than others, and are trained on again"),
        EventKind("trial", "the guard tested a suspicion: is the model worse, or has the data changed?", "warning"),
        EventKind("observe", "the model is worse, and has some updates to recover by itself", "warning"),
        EventKind("adapt", "data or loss function have changed: the guard takes the new level for usual", "warning"),
        EventKind("remedy", "the learning rate is lowered and warmed up again", "warning"),
        EventKind("products", "products in fp8 are given up for wider ones", "warning"),
        EventKind("oom", "out of memory: batches are computed in smaller parts from here on", "warning"),
        EventKind("early_stop", "evaluations stopped improving, so the run ends"),
        EventKind("interrupt", "a signal asked the run to stop", "warning"),
        EventKind("config_change", "a setting or the environment differs from before", "warning"),
        EventKind("inject", "a fault was injected on purpose", "warning"),
        EventKind("tracker", "a tracker failed, fell behind or lost rows; the run is not affected", "warning"),
        EventKind("notice", "for information"),
        EventKind("finding", "the doctor found a symptom, with a likely cause and a change to try", "warning"),
        EventKind("withdrawn", "an earlier finding of the doctor no longer holds"),
        EventKind("finish", "the run finished", shown=False),
        EventKind("failure", "the run failed", "error"),
    )
}

# Events that begin a segment: what an older segment wrote after their step never happened.
SEGMENT_STARTS = ("start", "resume", "rollback")


def check_metrics(row: Mapping[str, Any]) -> None:
    """An unknown name is a bug in the code that wrote the row, hence a ValueError."""
    split = row.get("split")
    if split not in BOTH:
        raise ValueError(f"metrics row: split must be one of {', '.join(BOTH)}, but got {split!r}")
    _check_step(row, "metrics row")
    for name in row:
        metric = METRICS.get(name)
        if metric is None:
            raise ValueError(f"metrics row: unknown metric {name!r}{_nearest(name, METRICS)}")
        if split not in metric.splits:
            raise ValueError(
                f"metrics row: {name!r} belongs to {', '.join(metric.splits)} rows, but split is {split!r}"
            )
        _check_kind(metric, row[name])


def check_event(row: Mapping[str, Any]) -> None:
    kind = row.get("kind")
    if kind not in EVENTS:
        raise ValueError(f"events row: unknown kind {kind!r}{_nearest(str(kind), EVENTS)}")
    _check_step(row, "events row")


def _check_kind(metric: Metric, value: Any) -> None:
    """A metric is either a number or a dict, as the schema says."""
    if metric.per is None:
        if isinstance(value, Mapping):
            raise ValueError(f"metrics row: {metric.name!r} must be a single value, but got {value!r}")
    elif not isinstance(value, Mapping) or not all(isinstance(number, (int, float)) for number in value.values()):
        raise ValueError(f"metrics row: {metric.name!r} must be a dict of a number per {metric.per}, but got {value!r}")


def _check_step(row: Mapping[str, Any], what: str) -> None:
    step = row.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"{what}: step must be an integer >= 0, but got {step!r}")


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""
