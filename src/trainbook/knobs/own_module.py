"""What `trainbook.fit` takes: which knobs apply to a module and data of the user's own, and their keyword arguments."""

from __future__ import annotations

from trainbook.knobs.aliases import NEEDS_SECTION, by_name, by_path

FIT = "fit"  # what the manifest of such a run has as its recipe
WATCH = "watch"  # and that of a run which `trainbook.watch` recorded

# Knobs of what a user's own module and data replace.
NOT_IN_FIT = {
    "batch.global_batch_size",
    "batch.per_device_train_batch_size",
    "optimizer.tuned_batch_size",
    "precision.products",
    "training.task",
    "training.label_smoothing",
    "training.z_loss",
    "evaluation.per_device_eval_batch_size",
    "evaluation.eval_max_samples",
}
SECTIONS_NOT_IN_FIT = {"model", "data", "memory", "distributed"}

# What `fit` takes instead of a knob, where it takes something.
EVAL_DATA = "Pass the validation batches as eval_data."
INSTEAD = {
    "data.source": "The batches are the second argument of fit.",
    "data.validation": EVAL_DATA,
    "data.validation_ratio": EVAL_DATA,
    "batch.global_batch_size": "Each item of the data is a batch; gradient_accumulation_steps of them make an update.",
    "batch.per_device_train_batch_size": "Each item of the data is a batch.",
    "evaluation.per_device_eval_batch_size": "Each item of eval_data is a batch.",
    "evaluation.eval_max_samples": "All of eval_data is used: pass fewer batches.",
    "precision.products": "torchao's convert_to_float8_training turns a module of your own to fp8.",
    "training.task": "What is learned is what the loss function computes.",
    "training.label_smoothing": "Apply it in the loss function.",
    "training.z_loss": "Add it in the loss function.",
}
# What validation data is called elsewhere.
_VALIDATION = ("val", "valid", "validation", "eval", "dev")
NAMES_OF_EVAL_DATA = {
    "validation",
    "val",
    "dev",
    *(
        f"{which}_{what}"
        for which in _VALIDATION
        for what in ("data", "dataset", "loader", "dataloader", "set", "batches", "iter")
    ),
}


def applies_to_fit(path: str) -> bool:
    return path not in NOT_IN_FIT and path.split(".")[0] not in SECTIONS_NOT_IN_FIT


def instead_of(path: str) -> str:
    return INSTEAD.get(path, "Leave it out.")


def keyword_of(path: str) -> str:
    """The name by which `fit` takes a knob: its own, or an alias where several knobs share the name."""
    declaration = by_path()[path]
    names = (declaration.name, *declaration.knob.aliases)
    return next(name for name in names if len(by_name()[name]) == 1 and name not in NEEDS_SECTION)


def as_keyword_argument(override: str) -> str | None:
    """`optimizer.learning_rate=1e-3` as `learning_rate=1e-3`; None where `fit` does not take it."""
    path, _, value = override.partition("=")
    return f"{keyword_of(path)}={_literal(value)}" if applies_to_fit(path) else None


def _literal(value: str) -> str:
    """A YAML scalar as Python writes it."""
    if value in (words := {"true": "True", "false": "False", "null": "None"}):
        return words[value]
    try:
        float(value)
    except ValueError:
        return repr(value)
    return value
