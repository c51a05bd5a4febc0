"""What a run writes down: every metric and every kind of event, with its meaning, in one place.

Writers check their rows against these tables; readers take units and meanings from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

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


LARGEST_METRIC = 1e100  # squares and sums of such numbers are still numbers; no training computes a larger one


def bounded(value: float) -> float:
    """A metric as it is read: infinite where it is so large that a mean over it would be."""
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
    Metric("step", "steps", BOTH, "row", "attempted updates so far, this one included; skipped ones count"),
    Metric("segment", "count", BOTH, "row", "0 in a fresh run; one more after each resume"),
    Metric("split", "name", BOTH, "row", "train or eval"),
    Metric("time", "unix seconds", BOTH, "row", "when the row was written"),
    Metric("epoch", "epochs", BOTH, "row", "how often the training data has been gone through, as a fraction"),
    Metric("tokens", "tokens", BOTH, "row", "training tokens consumed so far, padding left out"),
    Metric("targets", "targets", BOTH, "row", "number of targets that the row's loss is a mean over"),
    Metric(
        "loss",
        "nats per target",
        BOTH,
        "row",
        "the objective: cross entropy, in training with its extra terms; for numbers, the squared error",
        higher_is_better=False,
    ),
    Metric("cross_entropy", "nats per target", TRAIN, "logging", "the plain one, whatever else is trained on"),
    Metric(
        "squared_error", "squared units", TRAIN, "logging", "for numbers: what is trained on in place of the former"
    ),
    Metric("label_smoothing", "nats per target", TRAIN, "logging", "what label smoothing adds to the cross entropy"),
    Metric("z_loss", "nats per target", TRAIN, "logging", "the weighted z-loss, in the same normalisation"),
    Metric("learning_rate", "rate", TRAIN, "logging", "the schedule's rate at this step"),
    Metric("grad_norm", "norm", TRAIN, "logging", "global norm of the gradients before clipping"),
    Metric(
        "grad_norms",
        "norm",
        TRAIN,
        "logging",
        "norm of each layer's gradients before clipping; together they make grad_norm",
        per="layer",
    ),
    Metric(
        "update_ratio",
        "ratio",
        TRAIN,
        "logging",
        "norm of what the update changed over the norm of the weights before it, estimated from a sample of them",
    ),
    Metric(
        "update_ratios",
        "ratio",
        TRAIN,
        "logging",
        "the same of each layer",
        per="layer",
    ),
    Metric("weight_norm", "norm", TRAIN, "logging", "norm of the weight matrices, estimated from the same sample"),
    Metric(
        "optimizer_updates",
        "updates",
        TRAIN,
        "logging",
        "updates that the optimizer's averages have seen, where it counts them on the host",
    ),
    Metric(
        "probe_loss",
        "nats per target",
        TRAIN,
        "logging",
        "cross entropy of the first rows of the step's batch as in evaluation: without dropout",
    ),
    Metric(
        "offset_losses",
        "nats per target",
        TRAIN,
        "logging",
        "the same if the targets were the tokens so far behind each place: a model that guesses the next is best at 1",
        per="offset",
    ),
    Metric(
        "target_match",
        "share",
        TRAIN,
        "logging",
        "share of targets that equal the token read so far behind their place",
        per="offset",
    ),
    Metric("padding_targets", "share", TRAIN, "logging", "share of targets that are padding behind padding"),
    Metric(
        "future_leak",
        "deviations",
        TRAIN,
        "logging",
        "change of the guesses in the first half of a row when the second half changes; 0 if they cannot see it",
    ),
    Metric(
        "dead_units",
        "share",
        TRAIN,
        "logging",
        "share of feed-forward units that stay silent in the first rows of the step's batch",
        per="layer",
    ),
    Metric("target_share", "share", TRAIN, "logging", "targets over tokens of the step's batch"),
    Metric(
        "repeated_rows", "share", TRAIN, "logging", "of the rows since the last one: share met before in their epoch"
    ),
    Metric("repeated_batches", "share", TRAIN, "logging", "the same of whole batches"),
    Metric(
        "ordered_rows",
        "share",
        TRAIN,
        "logging",
        "share of neighbours in the step's batch that stand in the order of the source: a half if it was shuffled",
    ),
    Metric(
        "attention_logit_max",
        "logit",
        TRAIN,
        "logging",
        "largest |query · key| times the scale over layers and heads, in the first rows of the step's batch",
    ),
    Metric(
        "log_z",
        "nats",
        TRAIN,
        "logging",
        "mean over targets of the log of the sum of exp(logits), in the same rows; NaN where these hold no target",
    ),
    Metric(
        "loss_deviation",
        "robust sigmas",
        TRAIN,
        "logging",
        "how far this step's loss lies above the median of the recent ones; below it, negative",
    ),
    Metric(
        "grad_norm_deviation",
        "robust sigmas",
        TRAIN,
        "logging",
        "how far this step's gradient norm lies above the median of the recent ones; below it, negative",
    ),
    Metric(
        "rate_factor",
        "factor",
        TRAIN,
        "logging",
        "what the guard multiplies the schedule's rate by: 1 unless it has lowered it",
    ),
    Metric("clipped", "share", TRAIN, "logging", "share of the steps since the last row that were clipped"),
    Metric("loss_scale", "factor", TRAIN, "logging", "what the loss is multiplied by under fp16"),
    Metric("applied_updates", "updates", TRAIN, "logging", "updates applied so far; the schedule follows it"),
    Metric("skipped_updates", "updates", TRAIN, "logging", "updates kept out of the model so far"),
    Metric("tokens_per_second", "tokens/s", TRAIN, "logging", "training tokens over wall time since the last row"),
    Metric("step_seconds", "seconds", TRAIN, "logging", "mean wall time of a step since the last row"),
    Metric("data_wait_seconds", "seconds", TRAIN, "logging", "mean time a step waited for its batch"),
    Metric("memory_bytes", "bytes", TRAIN, "logging", "memory in use, of the kind that memory_kind names"),
    Metric("rank_memory", "bytes", TRAIN, "logging", "the same of each process, where there are several", per="rank"),
    Metric(
        "rank_seconds", "seconds", TRAIN, "logging", "computing of each process in a step, with ddp or fsdp", per="rank"
    ),
    Metric("memory_kind", "name", TRAIN, "logging", "host_rss, or device_peak since the last row"),
    Metric("gpu_utilisation", "share", TRAIN, "logging", "share of time the device was busy, where it can be read"),
    _lower("perplexity", "ratio", "exp of the cross entropy per target"),
    _higher("accuracy", "share", "share of targets that are predicted rightly; of several classes, the whole set"),
    _lower("bits_per_token", "bits per target", "cross entropy per target in base 2"),
    _lower("bits_per_byte", "bits per byte", "cross entropy per byte of text in base 2; comparable across tokenizers"),
    _higher("f1_micro", "share", "2 TP / (2 TP + FP + FN), counted over all classes together"),
    _higher("f1_macro", "share", "the mean of the F1 of each class that occurs in truth or prediction"),
    _higher("entity_f1", "share", "F1 of whole entities of all types together, as seqeval counts them"),
    _higher("entity_f1_macro", "share", "the mean of the F1 of each type of entity"),
    _higher("entity_precision", "share", "share of the predicted entities that are right"),
    _higher("entity_recall", "share", "share of the true entities that were found"),
    _higher("exact_match", "share", "share of samples whose written text equals one of their references"),
    _lower(
        "word_error_rate",
        "ratio",
        "edits over words of the nearest reference; of phonemes, share of samples that equal no reference",
    ),
    _lower("phoneme_error_rate", "ratio", "edits over phonemes of the nearest reference"),
    _lower("mean_squared_error", "squared units", "mean of the squared difference from the true number"),
    _lower("mean_absolute_error", "units", "mean of the absolute difference from the true number"),
    _higher(
        "pearson", "correlation", "linear correlation of predicted and true numbers; NaN where one side is constant"
    ),
    Metric("baseline_accuracy", "share", EVAL, "evaluation", "accuracy of a linear model on words, for comparison"),
    Metric("seconds", "seconds", EVAL, "evaluation", "wall time of the evaluation"),
    Metric("best", "flag", EVAL, "evaluation", "true where the chosen metric is the best so far"),
)


def judgements(row: Mapping[str, Any]) -> list[tuple[Metric, float]]:
    """The numbers of an evaluation row that say how good the model is, in the order of the table."""
    own = (metric for metric in METRICS.values() if metric.splits == EVAL and metric.unit not in ("seconds", "flag"))
    shown = (METRICS["loss"], *own)
    return [(metric, row[metric.name]) for metric in shown if row.get(metric.name) is not None]


EVENTS = {
    event.kind: event
    for event in (
        EventKind("start", "training begins at step 0", shown=False),
        EventKind("resume", "training goes on from a checkpoint; `step` is the checkpoint's"),
        EventKind("rollback", "training goes back to an earlier state; `step` is that state's", "warning"),
        EventKind("checkpoint", "a checkpoint is complete on disk", shown=False),
        EventKind("checkpoint_damaged", "a checkpoint failed its checks and was passed over", "warning"),
        EventKind("checkpoint_upkeep_failed", "a checkpoint is complete, but tidying up behind it failed", "warning"),
        EventKind("skip", "an update was kept out of the model", "warning"),
        EventKind("quarantine", "samples are kept out of training from here on, or none stood out", "warning"),
        EventKind("remedy", "the learning rate is lowered, and warmed up anew", "warning"),
        EventKind("oom", "memory was not enough, so that less is computed at a time", "warning"),
        EventKind("early_stop", "evaluations stopped getting better, so the run ends"),
        EventKind("interrupt", "a signal asked the run to stop", "warning"),
        EventKind("config_change", "something differs from what the run was started with", "warning"),
        EventKind("inject", "a fault was put in on purpose", "warning"),
        EventKind("tracker", "a tracker failed, fell behind or lost rows; the run is not touched", "warning"),
        EventKind("notice", "worth knowing, nothing to do"),
        EventKind("finding", "a symptom with its likely cause and a change to try", "warning"),
        EventKind("finish", "the run reached its end", shown=False),
        EventKind("failure", "the run ended by an error", "error"),
    )
}

# Events that begin a segment: what an older segment wrote after their step never happened.
SEGMENT_STARTS = ("start", "resume", "rollback")


def check_metrics(row: Mapping[str, Any]) -> None:
    """A row with an unknown name is a mistake in the code that wrote it, so this is a ValueError."""
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
    """Readers that expect a number would stumble over a dict, and the other way round."""
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
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
