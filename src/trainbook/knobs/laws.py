"""The laws that bind several knobs, one small function each.

A law has the paths it involves and a sentence; its function yields what is broken, as (paths, message, hint). It is
passed over when the value of one of its knobs was refused. "Set" means that the user set a knob to something else than
its default: a default never breaks a law that says "has no effect", and neither does a written-out configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainbook.errors import Problem
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.origin import Origin
from trainbook.knobs.values import show


@dataclass(frozen=True)
class Settings:
    """Values with their origins: what a law judges."""

    config: Config
    origins: dict[str, Origin]

    def get(self, path: str) -> Any:
        return self.config.get(path)

    def is_set(self, path: str) -> bool:
        return self.origins[path].is_the_users and self.get(path) != by_path()[path].field.default

    def is_written(self, path: str) -> bool:
        """The user wrote it down, be it with the value it has by default."""
        return self.origins[path].is_the_users

    def show(self, path: str) -> str:
        by_default = " (the default)" if self.origins[path].kind == "default" else ""
        return show(self.get(path)) + by_default

    def place(self, *paths: str) -> str:
        origins = [self.origins[path] for path in paths]
        stated = [origin.place for origin in origins if origin.kind != "default"]
        return ", ".join(dict.fromkeys(stated)) or "default"


Broken = tuple[tuple[str, ...], str, str]
Check = Callable[[Settings], Iterator[Broken]]


@dataclass(frozen=True)
class Law:
    paths: tuple[str, ...]
    text: str
    check: Check


LAWS: list[Law] = []


def law(*paths: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LAWS.append(Law(paths, (check.__doc__ or "").strip(), check))
        return check

    return register


def broken_laws(settings: Settings, refused: set[str] | frozenset[str] = frozenset()) -> list[Problem]:
    """Every problem, in the order of the laws. `refused`: paths without a value that could be judged."""
    return [
        Problem(settings.place(*paths), paths[0], message, hint)
        for each in LAWS
        if not refused.intersection(each.paths)
        for paths, message, hint in each.check(settings)
    ]


def laws_of(path: str) -> list[Law]:
    return [each for each in LAWS if path in each.paths]


# The shape of the model


@law("model.hidden_size", "model.num_attention_heads")
def heads_share_the_width(s: Settings) -> Iterator[Broken]:
    """model.hidden_size is a multiple of model.num_attention_heads."""
    paths = ("model.hidden_size", "model.num_attention_heads")
    if s.get(paths[0]) % s.get(paths[1]):
        yield paths, f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not one of {s.show(paths[1])}.", ""


@law("model.num_attention_heads", "model.num_key_value_heads")
def heads_share_keys_and_values(s: Settings) -> Iterator[Broken]:
    """model.num_attention_heads is a multiple of model.num_key_value_heads."""
    paths = ("model.num_attention_heads", "model.num_key_value_heads")
    if s.get(paths[1]) is not None and s.get(paths[0]) % s.get(paths[1]):
        yield paths, f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not one of {s.show(paths[1])}.", ""


@law("model.position", "model.hidden_size", "model.num_attention_heads")
def rotation_needs_pairs(s: Settings) -> Iterator[Broken]:
    """Rotary positions turn pairs of numbers: hidden_size / num_attention_heads is even."""
    size, heads = s.get("model.hidden_size"), s.get("model.num_attention_heads")
    if s.get("model.position") == "rotary" and size % heads == 0 and (size // heads) % 2:
        paths = ("model.position", "model.hidden_size", "model.num_attention_heads")
        width = f"hidden_size / num_attention_heads is {size} / {heads} = {size // heads}"
        yield paths, f"rotary needs an even head width, but {width}.", ""


# The length of the run and the schedule over it

LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")


@law(*LENGTHS)
def one_length(s: Settings) -> Iterator[Broken]:
    """The length is one of training.max_steps, training.num_train_epochs and training.max_tokens."""
    yield from _only_one(s, LENGTHS, "the length of the run is stated")


@law("schedule.warmup_steps", "schedule.warmup_ratio")
def one_warmup(s: Settings) -> Iterator[Broken]:
    """The warm-up is either schedule.warmup_steps or schedule.warmup_ratio."""
    yield from _only_one(s, ("schedule.warmup_steps", "schedule.warmup_ratio"), "the warm-up is stated")


def _only_one(s: Settings, paths: tuple[str, ...], what: str) -> Iterator[Broken]:
    given = tuple(path for path in paths if s.get(path) is not None)
    if len(given) > 1:
        values = " and ".join(f"{path} = {show(s.get(path))}" for path in given)
        times = "twice" if len(given) == 2 else "three times"
        yield given, f"{what} {times}, by {values}.", "Keep one, and set what remains to null."


@law("schedule.warmup_steps", "training.max_steps")
def warmup_ends_before_the_run(s: Settings) -> Iterator[Broken]:
    """schedule.warmup_steps is less than training.max_steps."""
    paths = ("schedule.warmup_steps", "training.max_steps")
    warmup, steps = s.get(paths[0]), s.get(paths[1])
    if warmup is not None and steps is not None and warmup >= steps:
        yield paths, f"must be less than {paths[1]}, but {warmup} is not less than {steps}.", ""


@law("schedule.type", "schedule.warmup_steps", "schedule.warmup_ratio", "schedule.decay_ratio", "training.max_steps")
def warmup_and_decay_fit_into_the_run(s: Settings) -> Iterator[Broken]:
    """With warmup_stable_decay, warm-up and decay together are no longer than the run."""
    if s.get("schedule.type") != "warmup_stable_decay":
        return
    decay, ratio, steps = (
        s.get(path) for path in ("schedule.decay_ratio", "schedule.warmup_ratio", "training.max_steps")
    )
    warmup_steps = s.get("schedule.warmup_steps")
    if ratio is not None and ratio + decay > 1 + 1e-9:
        paths = ("schedule.decay_ratio", "schedule.warmup_ratio")
        sum_of_both = f"{show(ratio)} + {show(decay)} = {show(round(ratio + decay, 6))}"
        yield paths, f"warm-up and decay must fit into the run, but warmup_ratio + decay_ratio is {sum_of_both}.", ""
    elif warmup_steps is not None and steps is not None and warmup_steps < steps < warmup_steps + decay * steps - 1e-9:
        paths = ("schedule.decay_ratio", "schedule.warmup_steps", "training.max_steps")
        needed = f"{warmup_steps} + {show(decay)} x {steps} = {show(round(warmup_steps + decay * steps, 3))}"
        yield paths, f"warm-up and decay must fit into the {steps} steps of the run, but take {needed}.", ""


# The batch

BATCH = ("batch.global_batch_size", "batch.per_device_train_batch_size", "batch.gradient_accumulation_steps")


@law(*BATCH)
def batch_divides(s: Settings) -> Iterator[Broken]:
    """global_batch_size = per_device_train_batch_size x gradient_accumulation_steps x the number of devices."""
    size, micro, accumulation = (s.get(path) for path in BATCH)
    if size is None:
        return
    given = tuple(path for path in BATCH if s.get(path) is not None)
    parts = (micro or 1) * (accumulation or 1)
    if size % parts:
        names = " x ".join(path.split(".")[1] for path in given[1:])
        product = f"{micro} x {accumulation} = {parts}" if micro and accumulation else f"{parts}"
        yield given, f"must be a multiple of {names}, but {size} is not one of {product}.", ""


# Knobs that have an effect only together with others


def _no_effect(path: str, unless: str, *needed: Any) -> None:
    """Registers the law that a knob may be set only where another one has one of the needed values."""
    words = " or ".join(show(value) for value in needed)

    def check(s: Settings) -> Iterator[Broken]:
        if s.is_set(path) and s.get(unless) not in needed:
            yield (path, unless), f"has no effect unless {unless} is {words}, but that is {s.show(unless)}.", ""

    check.__doc__ = f"{path} has an effect only if {unless} is {words}."
    law(path, unless)(check)


_no_effect("model.rope_theta", "model.position", "rotary")
_no_effect("optimizer.momentum", "optimizer.type", "sgd")
_no_effect("optimizer.beta1", "optimizer.type", "adamw")
_no_effect("optimizer.beta2", "optimizer.type", "adamw")
_no_effect("optimizer.epsilon", "optimizer.type", "adamw")
_no_effect("schedule.num_cycles", "schedule.type", "cosine_with_restarts")
_no_effect("schedule.power", "schedule.type", "polynomial")
_no_effect("schedule.decay_ratio", "schedule.type", "warmup_stable_decay")
_no_effect("schedule.decay_shape", "schedule.type", "warmup_stable_decay")
_no_effect("precision.loss_scale", "precision.compute", "fp16")
_no_effect("precision.initial_scale_power", "precision.compute", "fp16")
_no_effect("precision.growth_interval", "precision.compute", "fp16")
_no_effect("evaluation.eval_steps", "evaluation.eval_strategy", "steps")


@law("precision.loss_scale", "precision.initial_scale_power", "precision.growth_interval")
def fixed_scale_does_not_move(s: Settings) -> Iterator[Broken]:
    """A fixed precision.loss_scale has neither an initial_scale_power nor a growth_interval."""
    if s.get("precision.loss_scale") == "dynamic":
        return
    for path in ("precision.initial_scale_power", "precision.growth_interval"):
        if s.is_set(path):
            scale = s.show("precision.loss_scale")
            yield (
                (path, "precision.loss_scale"),
                f"has no effect unless precision.loss_scale is 'dynamic', but that is {scale}.",
                "",
            )


@law("precision.weights", "precision.compute")
def narrow_weights_compute_narrowly(s: Settings) -> Iterator[Broken]:
    """precision.weights bf16 needs precision.compute bf16 (or auto)."""
    if s.get("precision.weights") == "bf16" and s.get("precision.compute") not in ("bf16", "auto"):
        compute = s.show("precision.compute")
        yield (
            ("precision.weights", "precision.compute"),
            f"bf16 needs precision.compute bf16, but that is {compute}.",
            "",
        )


@law("data.vocab_size", "data.tokenizer")
def only_a_learned_vocabulary_has_a_size(s: Settings) -> Iterator[Broken]:
    """data.vocab_size is for a tokenizer that is learned from the data; the others bring theirs."""
    tokenizer = s.get("data.tokenizer")
    brings_its_own = tokenizer in ("byte", "char") or tokenizer.endswith(".json")
    if s.is_set("data.vocab_size") and brings_its_own:
        message = f"has no effect: data.tokenizer {s.show('data.tokenizer')} brings its own vocabulary."
        yield ("data.vocab_size", "data.tokenizer"), message, "Leave it out, or choose tokenizer bpe."


# Evaluation

WANTS_EVALUATION = ("evaluation.early_stopping_patience", "evaluation.metric_for_best_model")


@law("evaluation.eval_strategy", *WANTS_EVALUATION)
def judging_needs_evaluation(s: Settings) -> Iterator[Broken]:
    """Early stopping and the choice of a metric need evaluation: evaluation.eval_strategy is not no."""
    if s.get("evaluation.eval_strategy") != "no":
        return
    for path in WANTS_EVALUATION:
        if s.is_set(path):
            yield (path, "evaluation.eval_strategy"), "needs evaluation, but evaluation.eval_strategy is 'no'.", ""


@law("evaluation.eval_strategy", "data.validation_ratio", "data.validation", *WANTS_EVALUATION)
def evaluation_needs_data(s: Settings) -> Iterator[Broken]:
    """Evaluation needs data.validation_ratio > 0 or a data.validation source."""
    if not without_validation_data(s) or s.get("evaluation.eval_strategy") == "no":
        return
    asking = [path for path in WANTS_EVALUATION if s.is_set(path)]
    if s.is_written("evaluation.eval_strategy"):
        asking.insert(0, "evaluation.eval_strategy")
    if asking:
        message = "needs validation data, but data.validation_ratio is 0 and data.validation is not set."
        yield (asking[0], "data.validation_ratio"), message, ""


def without_validation_data(s: Settings) -> bool:
    return s.get("data.validation_ratio") == 0 and s.get("data.validation") is None
