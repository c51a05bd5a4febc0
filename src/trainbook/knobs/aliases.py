"""The names by which knobs and sections are known, here and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trainbook.knobs.config import Declaration, declarations, section_types
from trainbook.nearest import nearest

SECTION_ALIASES: Mapping[str, str] = {
    "architecture": "model",
    "network": "model",
    "optim": "optimizer",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "lr_schedule": "schedule",
    "batching": "batch",
    "trainer": "training",
    "dataset": "data",
    "dataloader": "data",
    "parallel": "distributed",
    "eval": "evaluation",
    "checkpoints": "checkpoint",
    "checkpointing": "checkpoint",
    "logger": "logging",
}

# The knob that a section means when it is given a plain word: `optimizer: AdamW`, `precision: bf16`.
PLAIN_VALUE: Mapping[str, str] = {"model": "type", "optimizer": "type", "schedule": "type", "precision": "compute"}

# Groupings of other programs. Names inside them count as if they stood at the top level; a name that several
# sections have (`type`) means the one of the section given here.
WRAPPERS: Mapping[str, str | None] = {
    "config": None,
    "hyperparameters": None,
    "training_args": None,
    "training_arguments": None,
    "model_config": "model",
    "optimizer_config": "optimizer",
    "scheduler_config": "schedule",
    "lr_config": "schedule",
    "batch_config": "batch",
    "training_config": "training",
    "train_config": "training",
    "precision_config": "precision",
    "mixed_precision_config": "precision",
    "mixed_precision": "precision",
    "memory_config": "memory",
    "data_config": "data",
    "distributed_config": "distributed",
    "eval_config": "evaluation",
    "evaluation_config": "evaluation",
    "checkpoint_config": "checkpoint",
    "logging_config": "logging",
}

# Names beside the knobs' own: one that sets two knobs, and two that choose a value of one (and carry its settings).
SPECIAL: Mapping[str, tuple[str, ...]] = {
    "betas": ("optimizer.beta1", "optimizer.beta2"),
    "adam_betas": ("optimizer.beta1", "optimizer.beta2"),
    "fp16": ("precision.compute",),
    "bf16": ("precision.compute",),
}

# What belongs elsewhere, and where.
_OF_A_STUDY = "It belongs in a study file, for `trainbook tune` and `trainbook transfer`."
ELSEWHERE: Mapping[str, str] = {
    "recipe": "Name the recipe in the command, followed by overrides: trainbook train gpt-tiny learning_rate=1e-3.",
    **dict.fromkeys(("run", "name"), "The name of a run is an option of the command: --name NAME."),
    **dict.fromkeys(("base", "scientific", "nuisance", "budget"), _OF_A_STUDY),
}

# Names of other trainers for what no knob does as they do, in any section, and what to do in place of it.
_OF_THE_FOLDER = "The folder of a run is an option of the command: --runs-dir DIR, with --name NAME."
_OF_THE_FLOOR = "Set schedule.floor, the lowest learning rate as a share of the peak, such as 0.1."
_OF_THE_BEST = "The best checkpoint is kept and used; evaluation.metric_for_best_model says by which metric."
_OF_CLASSES = (
    "Classes are not weighted: add samples of rare classes, and judge by evaluation.metric_for_best_model=f1_macro."
)
_OF_LABELS = "The number of classes follows from the data."
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("output_dir", "out_dir", "overwrite_output_dir"), _OF_THE_FOLDER),
    **dict.fromkeys(("min_lr", "lr_min", "eta_min", "min_learning_rate", "lr_end"), _OF_THE_FLOOR),
    **dict.fromkeys(("load_best_model_at_end", "greater_is_better"), _OF_THE_BEST),
    **dict.fromkeys(("class_weight", "class_weights"), _OF_CLASSES),
    **dict.fromkeys(("num_labels", "num_classes", "n_classes"), _OF_LABELS),
    **dict.fromkeys(("lr_decay_iters", "lr_decay_steps"), "The schedule ends with the run."),
    "save_strategy": "Checkpoints are saved every checkpoint.save_steps steps, by default at each evaluation.",
    "eval_iters": "An evaluation covers the validation split, or evaluation.eval_max_samples samples of it.",
}

MIN_LETTERS, MAX_SUGGESTED = 4, 5  # of a word that names contain; of the names

# Unique in the tree, but saying nothing without its section.
NEEDS_SECTION = frozenset({"enabled"})


@cache
def by_path() -> Mapping[str, Declaration]:
    return {declaration.path: declaration for declaration in declarations()}


@cache
def by_name() -> Mapping[str, tuple[Declaration, ...]]:
    """Every bare name and alias, with the knobs that carry it."""
    found: dict[str, list[Declaration]] = {}
    for declaration in declarations():
        for name in (declaration.name, *declaration.knob.aliases):
            found.setdefault(name, []).append(declaration)
    return {name: tuple(owners) for name, owners in found.items()}


def special_in_section(section: str, name: str) -> bool:
    return any(path.startswith(f"{section}.") for path in SPECIAL.get(name, ()))


def section_named(name: str) -> str | None:
    return name if name in section_types() else SECTION_ALIASES.get(name)


def knobs_named(name: str) -> tuple[Declaration, ...]:
    """The knobs that a bare name, an alias or a dotted path can mean; at best one."""
    if "." in name:
        head, rest = name.split(".", 1)
        section = section_named(head)
        own = knob_in_section(section, rest) if section else None
        return (own,) if own else ()
    return by_name().get(name, ())


def knob_in_section(section: str, name: str) -> Declaration | None:
    return next((found for found in by_name().get(name, ()) if found.section == section), None)


def nearest_path(name: str, section: str | None = None) -> str | None:
    """The path of the knob that was probably meant; within the section if it has one near enough."""
    if section:
        inside = [known for known, owners in by_name().items() if any(owner.section == section for owner in owners)]
        near = nearest(name, inside, cutoff=0.65)
        if near:
            declaration = knob_in_section(section, near)
            return declaration.path if declaration else None
    return _nearest_anywhere(name.lower())


def nearest_knobs_hint(name: str, section: str | None = None) -> str:
    """What follows an unknown name: what to do in place of it, the nearest knob, or those whose names contain the word;
    empty if there is none."""
    if name in INSTEAD:
        return INSTEAD[name]
    near = nearest_path(name, section)
    paths = _as_near_as(near, name) if near else _paths_containing(name)
    several = f"{', '.join(paths[:-1])} or " if paths[1:] else ""
    return f"Did you mean {several}{paths[-1]}?" if paths else ""


def _as_near_as(near: str, name: str) -> list[str]:
    """Of `beta`: beta1 and beta2. The nearest knob, and those that have as many letters more than the word."""
    containing = [path for path in _paths_containing(name) if len(by_path()[path].name) == len(by_path()[near].name)]
    return containing if near in containing else [near]


def _paths_containing(name: str) -> list[str]:
    """Of `warm-up`: warmup_steps and warmup_ratio. Aliases count where no knob's own name contains the word."""
    word = _letters(name)
    if len(word) < MIN_LETTERS:
        return []
    own = [path for path, knob in by_path().items() if word in _letters(knob.name)]
    aliased = (path for path, knob in by_path().items() if any(word in _letters(each) for each in knob.knob.aliases))
    return (own or list(aliased))[:MAX_SUGGESTED]


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _nearest_anywhere(name: str) -> str | None:
    targets = {
        known: owners[0].path for known, owners in by_name().items() if len(owners) == 1 and known not in NEEDS_SECTION
    }
    targets |= {path: path for path in by_path()}
    targets |= {known: paths[0] for known, paths in SPECIAL.items()}
    near = nearest(name, targets, cutoff=0.8 if len(name) <= MIN_LETTERS else 0.7)
    return targets[near] if near else None


def nearest_section(name: str) -> str | None:
    return nearest(name, [*section_types(), *SECTION_ALIASES, *WRAPPERS], cutoff=0.75)
