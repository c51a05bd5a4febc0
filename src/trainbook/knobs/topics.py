"""Techniques and symptoms by the names that people have for them: what it is, and the knobs that belong to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainbook.knobs.aliases import by_path, knobs_named
from trainbook.knobs.config import Declaration
from trainbook.knobs.measured import measured
from trainbook.knobs.values import choices

ROSE = ("goes up", "increases", "rises", "increasing", "rising")
# What is seen, for each symptom that knobs and the doctor's rules name; and what people call it.
SYMPTOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "loss spikes": (
        "The loss jumps up for a few steps and comes back, or does not. Single bad batches, a learning rate at its "
        "limit and growing attention logits look alike at first.",
        ("loss spike", "spike", "spikes", "spiking loss"),
    ),
    "instability": (
        "The run is close to diverging: gradient norms, logits or weights grow, and small changes of the learning rate "
        "decide whether it survives.",
        ("unstable", "unstable training", "training instability"),
    ),
    "divergence": (
        "The loss rises and does not come back.",
        ("diverges", "diverging", "diverged", "loss explodes", "loss increases"),
    ),
    "NaN gradients": (
        "A loss or a gradient is NaN or infinite: from the data, from the loss function, or from a number format that "
        "overflows.",
        ("nan", "nans", "nan loss", "loss is nan", "inf", "overflow"),
    ),
    "exploding gradients": (
        "Gradient norms grow by orders of magnitude.",
        ("exploding gradient", "gradient explosion", "gradients explode"),
    ),
    "loss not decreasing": (
        "The loss stays where it began, or where guessing by frequency is.",
        ("not learning", "no learning", "loss stuck", "loss plateau", "plateau", "loss does not decrease"),
    ),
    "underfitting": (
        "Training and validation loss are both high, and neither falls any more.",
        ("underfit", "underfits", "model too small"),
    ),
    "overfitting": (
        "The training loss falls on while the validation loss rises or stands still.",
        (
            *("overfit", "overfits", "memorization", "memorisation"),
            *(f"{loss} {does}" for loss in ("val loss", "validation loss", "eval loss") for does in ROSE),
        ),
    ),
    "fluctuating validation": (
        "The validation loss or metric jumps from one evaluation to the next by more than training changes it.",
        ("noisy validation", "noisy evaluation", "validation fluctuates"),
    ),
    "out of memory": (
        "An allocation fails on the device: CUDA out of memory.",
        ("oom", "cuda out of memory", "cuda oom", "cuda error out of memory"),
    ),
    "too slow": (
        "Fewer tokens per second than the hardware allows.",
        ("slow", "slow training", "low gpu utilization", "low utilization", "throughput"),
    ),
    "failure": (
        "The run ended with an error before its last step. Its reason is in the run's folder, and `trainbook doctor` "
        "tells it first.",
        ("crash", "crashed", "crashes", "failed", "run failed", "exception", "traceback"),
    ),
    "bad samples": (
        "A few samples are broken, mislabelled or of another kind, and each of them costs an update.",
        ("bad data", "poisoned data", "outliers", "corrupt data", "label noise"),
    ),
}
# Where what is learned should stay the same, importance for tuning is no order: what changes only the cost is first.
FIRST_SECTIONS = {
    "out of memory": ("memory", "batch", "precision", "distributed"),
    "too slow": ("precision", "memory", "batch", "data", "distributed"),
}
# Techniques that are no knob's name and no choice of one: what they are, and the knobs that make them.
TECHNIQUES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lora": (
        "Low-rank adapters: the pretrained weights stay frozen, and small matrices beside them are trained.",
        ("model.lora_rank", "model.lora_alpha", "model.lora_dropout", "model.lora_targets", "model.quantize_base"),
    ),
    "mup": (
        "Maximal update parametrization: initial values, multipliers and learning rates scale with the width, so that "
        "the best learning rate of a small model is that of a large one.",
        ("model.parametrization", "model.base_hidden_size", "model.output_multiplier", "model.embedding_multiplier"),
    ),
    "mixed precision": (
        "Products in 16 bits, weights and optimizer state in 32: about twice as fast, with half of the activations' "
        "memory.",
        ("precision.compute", "precision.weights", "precision.loss_scale"),
    ),
    "early stopping": (
        "End a run when the validation metric has not improved for several evaluations; the best checkpoint counts.",
        ("evaluation.early_stopping_patience", "evaluation.metric_for_best_model"),
    ),
    "weight decay": (
        "Weights are shrunk a little at each update, apart from the gradient.",
        ("optimizer.weight_decay", "optimizer.weight_decay_mode", "optimizer.decay_embeddings"),
    ),
    "warmup": (
        "The learning rate grows from zero over the first updates, while the optimizer's averages are still short.",
        ("schedule.warmup_steps", "schedule.warmup_ratio"),
    ),
}


def explain_topic(name: str) -> dict[str, Any] | None:
    """What a technique or a symptom is, and its knobs with what they do to it; None: it is neither."""
    words = _words(name)
    for symptom, (what, others) in SYMPTOMS.items():
        if words in {_words(each) for each in (symptom, *others)}:
            treating = [each for each in by_path().values() if symptom in each.knob.symptoms]
            first = FIRST_SECTIONS.get(symptom, ())
            treating.sort(key=lambda each: (each.section not in first, each.knob.rank is None, each.knob.rank or 0))
            return _facts("symptom", symptom, what, [(each, None) for each in treating])
    if words in TECHNIQUES:
        what, paths = TECHNIQUES[words]
        return _facts("technique", name, what, [(by_path()[path], None) for path in paths if path in by_path()])
    if chosen := [(each, value) for each in by_path().values() if (value := _choice(each, words)) is not None]:
        what = next((each.knob.values[value] for each, value in chosen if value in each.knob.values), "")
        return _facts("technique", name, what[:1].upper() + what[1:] + ("." if what else ""), chosen)
    return None


def knob_in_words(name: str) -> str | None:
    """The path of a knob whose name is written with spaces or hyphens."""
    found = knobs_named(_words(name).replace(" ", "_"))
    return found[0].path if len(found) == 1 else None


def topics() -> list[str]:
    return [*SYMPTOMS, *TECHNIQUES]


def _words(name: str) -> str:
    """`Loss-Spike`, `loss_spike` and `loss spike` are the same."""
    return " ".join(re.sub(r"[-_:.,]+", " ", name.lower()).split())


def _choice(declaration: Declaration, words: str) -> str | None:
    """The value of a knob that goes by this name."""
    for value in choices(declaration):
        if isinstance(value, str) and _words(value) == words:
            return value
    for foreign, own in declaration.knob.value_aliases.items():
        if isinstance(foreign, str) and isinstance(own, str) and _words(foreign) == words:
            return own
    return None


def _facts(kind: str, name: str, what: str, knobs: Sequence[tuple[Declaration, str | None]]) -> dict[str, Any]:
    return {
        "topic": name,
        "kind": kind,
        "what": what,
        "knobs": [
            {
                "path": each.path,
                "value": value,
                "default": list(d) if isinstance(d := each.field.default, tuple) else d,
                "what": each.knob.what,
                "raised": each.knob.raised,
                "lowered": each.knob.lowered,
                "rank": each.knob.rank,
            }
            for each, value in knobs
        ],
        "measured": [
            {"path": each.path, **found}
            for each, value in knobs
            for found in (measured(each.path) if kind == "technique" else ())
            if value in (None, found["value"])
        ],
        "sources": list(dict.fromkeys(source for each, _ in knobs for source in each.knob.sources))
        if kind == "technique"
        else [],
    }
