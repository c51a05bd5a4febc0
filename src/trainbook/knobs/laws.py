"""The laws that bind several knobs, one small function each.

A law has the paths it involves and a sentence; its function yields what is broken, as (paths, message, hint). It is
passed over when the value of one of its knobs was refused. "Set" means that the user set a knob to something else than
its default: a default never breaks a law that says "has no effect", and neither does a written-out configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trainbook.errors import Problem
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config, section_types
from trainbook.knobs.derive import has_windows, task_name
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


MODEL_TYPES = ("gpt", "bert", "t5", "hf")
TASKS = ("auto", "causal", "chat", "masked", "span", "seq2seq", "classify", "classify_many", "regress", "tag")
# What each kind of model can learn. A model of the user's own is asked for logits of every token.
TASKS_OF_MODEL = {
    "gpt": ("causal", "chat"),
    "bert": ("masked", "classify", "classify_many", "regress", "tag"),
    "t5": ("span", "seq2seq"),
    "hf": tuple(task for task in TASKS if task not in ("auto", "span")),
}
IS_PYTHON_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _is_one_of(s: Settings, path: str, names: tuple[str, ...], of_your_own: str) -> Iterator[Broken]:
    value = s.get(path)
    if value in names or IS_PYTHON_PATH.fullmatch(value):
        return
    near = get_close_matches(value, names, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else ""
    law_text = f"must be {', '.join(names)}, or {of_your_own} as package.module:Name, but got {s.show(path)}."
    yield (path,), law_text, hint


@law("model.type")
def model_type_is_known(s: Settings) -> Iterator[Broken]:
    """model.type is gpt, bert, t5, hf, or the Python path of a model of your own."""
    yield from _is_one_of(s, "model.type", MODEL_TYPES, "a model of your own")


@law("training.task")
def task_is_known(s: Settings) -> Iterator[Broken]:
    """training.task is one of the tasks, or the Python path of a task of your own."""
    yield from _is_one_of(s, "training.task", TASKS, "a task of your own")


@law("model.type", "training.task", "data.label_field", "data.target_field")
def model_can_do_the_task(s: Settings) -> Iterator[Broken]:
    """Each kind of model has its tasks: gpt causal, bert masked and labels, t5 spans and target texts."""
    kind, task = s.get("model.type"), task_name(s.config)
    if kind in TASKS_OF_MODEL and task in TASKS and task not in TASKS_OF_MODEL[kind]:
        able = [other for other, tasks in TASKS_OF_MODEL.items() if task in tasks]
        said = "" if s.get("training.task") != "auto" else ", which follows from data.label_field"
        message = f"{kind} learns {' or '.join(TASKS_OF_MODEL[kind])}, but the task is {task}{said}."
        yield ("training.task", "model.type"), message, f"Take model.type={' or '.join(able)} for it."


@law("model.type", "model.initializer_range")
def t5_has_first_values_of_its_own(s: Settings) -> Iterator[Broken]:
    """model.initializer_range has no effect with model.type t5, whose first values follow from the widths."""
    if s.is_set("model.initializer_range") and s.get("model.type") == "t5":
        message = "has no effect with model.type t5, whose first values follow from the widths."
        yield ("model.initializer_range", "model.type"), message, ""


@law("model.type", "model.hidden_size", "model.num_attention_heads", "model.head_width")
def heads_share_the_width(s: Settings) -> Iterator[Broken]:
    """model.hidden_size is a multiple of model.num_attention_heads, unless model.head_width is set."""
    paths = ("model.hidden_size", "model.num_attention_heads")
    judged = s.get("model.type") != "hf" and s.get("model.head_width") is None  # hf: its own config.json has the sizes
    if judged and s.get(paths[0]) % s.get(paths[1]):
        yield paths, f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not one of {s.show(paths[1])}.", ""


@law("model.num_attention_heads", "model.num_key_value_heads")
def heads_share_keys_and_values(s: Settings) -> Iterator[Broken]:
    """model.num_attention_heads is a multiple of model.num_key_value_heads."""
    paths = ("model.num_attention_heads", "model.num_key_value_heads")
    if s.get(paths[1]) is not None and s.get(paths[0]) % s.get(paths[1]):
        yield paths, f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not one of {s.show(paths[1])}.", ""


@law("model.position", "model.hidden_size", "model.num_attention_heads", "model.head_width")
def rotation_needs_pairs(s: Settings) -> Iterator[Broken]:
    """Rotary positions turn pairs of numbers: head_width, or else hidden_size / num_attention_heads, is even."""
    size, heads, width = (s.get(f"model.{name}") for name in ("hidden_size", "num_attention_heads", "head_width"))
    if width is not None:
        if s.get("model.position") == "rotary" and width % 2:
            yield ("model.position", "model.head_width"), f"rotary needs an even head width, but it is {width}.", ""
    elif s.get("model.position") == "rotary" and size % heads == 0 and (size // heads) % 2:
        paths = ("model.position", "model.hidden_size", "model.num_attention_heads")
        width = f"hidden_size / num_attention_heads is {size} / {heads} = {size // heads}"
        yield paths, f"rotary needs an even head width, but {width}.", ""


# Parts that transformers or the user builds


# Sizes are read from the folder, and judged there; the rest of these is for every kind of model.
OF_ANY_MODEL = (
    *("type", "pretrained", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "quantize_base"),
    *("num_hidden_layers", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_width"),
)
PARTS = tuple(f"model.{name}" for name in section_types()["model"].model_fields if name not in OF_ANY_MODEL)


@law("model.type", *PARTS)
def hf_has_its_own_parts(s: Settings) -> Iterator[Broken]:
    """With model.type hf the parts, dropout among them, are what config.json in model.pretrained says."""
    if s.get("model.type") != "hf":
        return
    for path in PARTS:
        if s.is_set(path):
            message = "has no effect with model.type hf, which takes it from config.json in model.pretrained."
            yield (path, "model.type"), message, ""


@law("data.padding", "data.samples", "model.type", "training.task", "data.label_field", "data.target_field")
def only_built_in_models_pack(s: Settings) -> Iterator[Broken]:
    """data.padding packed is for the built-in models: others cannot be told where a document ends."""
    kind = s.get("model.type")
    if s.get("data.padding") == "packed" and not has_windows(s.config) and kind not in ("gpt", "bert", "t5"):
        message = f"packed puts several documents into a row, and model.type {kind} has no way to keep them apart."
        yield ("data.padding", "model.type"), message, "Take bucketed, which also wastes little."


LORA = ("model.lora_alpha", "model.lora_dropout", "model.lora_targets")


@law("model.lora_rank", *LORA)
def adapters_have_a_rank(s: Settings) -> Iterator[Broken]:
    """model.lora_alpha, model.lora_dropout and model.lora_targets have an effect only with model.lora_rank."""
    if s.get("model.lora_rank") is not None:
        return
    for path in LORA:
        if s.is_set(path):
            yield (path, "model.lora_rank"), "has no effect unless model.lora_rank is set.", ""


@law("model.quantize_base", "model.lora_rank")
def only_frozen_weights_are_quantised(s: Settings) -> Iterator[Broken]:
    """model.quantize_base needs model.lora_rank: weights of so few bits are not trained, adapters beside them are."""
    if s.get("model.quantize_base") != "none" and s.get("model.lora_rank") is None:
        message = "needs model.lora_rank: weights of so few bits cannot be trained, only adapters beside them."
        yield ("model.quantize_base", "model.lora_rank"), message, ""


@law("precision.weights", "model.lora_rank")
def only_frozen_weights_are_fp16(s: Settings) -> Iterator[Broken]:
    """precision.weights fp16 needs model.lora_rank: trained fp16 weights lose updates and overflow."""
    if s.get("precision.weights") == "fp16" and s.get("model.lora_rank") is None:
        message = (
            "fp16 is for frozen weights, so it needs model.lora_rank: trained ones would lose updates and overflow."
        )
        hint = "For fp16 training take precision.compute=fp16 over fp32 weights."
        yield ("precision.weights", "model.lora_rank"), message, hint


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


def _no_effect_with(path: str, other: str, *idle: Any) -> None:
    """Registers the same law where the values that leave a knob idle are the fewer ones."""
    words = " or ".join(show(value) for value in idle)

    def check(s: Settings) -> Iterator[Broken]:
        if s.is_set(path) and s.get(other) in idle:
            yield (path, other), f"has no effect with {other} {s.show(other)}.", ""

    check.__doc__ = f"{path} has no effect with {other} {words}."
    law(path, other)(check)


_no_effect("model.rope_theta", "model.position", "rotary")
_no_effect("model.num_decoder_layers", "model.type", "t5")
_no_effect("model.token_types", "model.type", "bert")
_no_effect("optimizer.momentum", "optimizer.type", "sgd", "muon")
_no_effect_with("optimizer.beta1", "optimizer.type", "sgd")
_no_effect_with("optimizer.beta2", "optimizer.type", "sgd")
_no_effect_with("optimizer.epsilon", "optimizer.type", "sgd", "lion")
_no_effect("schedule.num_cycles", "schedule.type", "cosine_with_restarts")
_no_effect("schedule.power", "schedule.type", "polynomial")
_no_effect("schedule.decay_ratio", "schedule.type", "warmup_stable_decay")
_no_effect("schedule.decay_shape", "schedule.type", "warmup_stable_decay")
_no_effect("precision.loss_scale", "precision.compute", "fp16")
_no_effect("precision.initial_scale_power", "precision.compute", "fp16")
_no_effect("precision.growth_interval", "precision.compute", "fp16")
_no_effect("evaluation.eval_steps", "evaluation.eval_strategy", "steps")
_no_effect("evaluation.num_beams", "evaluation.generate", True)
_no_effect("evaluation.max_new_tokens", "evaluation.generate", True)
_no_effect("evaluation.target_unit", "evaluation.generate", True)


def _no_effect_in_task(path: str, *tasks: str) -> None:
    def check(s: Settings) -> Iterator[Broken]:
        task = task_name(s.config)
        if s.is_set(path) and task in TASKS and task not in tasks:
            yield (
                (path, "training.task"),
                f"has no effect unless the task is {' or '.join(tasks)}, but it is {task}.",
                "",
            )

    check.__doc__ = f"{path} has an effect only if the task is {' or '.join(tasks)}."
    law(path, "training.task", "model.type", "data.label_field", "data.target_field")(check)


_no_effect_in_task("training.mask_ratio", "masked", "span")
_no_effect_in_task("training.whole_word_masking", "masked")
_no_effect_in_task("training.span_length", "span")
_no_effect_in_task("evaluation.baseline", "classify")
_no_effect_in_task("data.label_field", "classify", "classify_many", "regress", "tag")
_no_effect_in_task("data.target_field", "seq2seq", "chat")
_no_effect_in_task("data.chat_template", "chat")
_no_effect_in_task("data.mask_prompt", "chat")
_no_effect_in_task("data.max_target_length", "span", "seq2seq")
OF_TOKENS = ("causal", "chat", "masked", "span", "seq2seq")  # tasks whose targets are tokens
_no_effect_in_task("training.label_smoothing", *OF_TOKENS, "classify", "tag")
_no_effect_in_task("training.z_loss", *OF_TOKENS, "classify", "tag")
_no_effect_in_task("model.logit_soft_cap", *OF_TOKENS)
_no_effect_in_task("model.tie_embeddings", *OF_TOKENS)


@law("data.padding", "data.samples", "training.task", "model.type", "data.label_field", "data.target_field")
def spans_are_not_packed(s: Settings) -> Iterator[Broken]:
    """data.padding packed is not for training.task span: what is left of a text after cutting is not known before."""
    if s.get("data.padding") == "packed" and task_name(s.config) == "span" and not has_windows(s.config):
        message = "packed is not for the task span: how long a text is after spans were cut out is not known before."
        yield ("data.padding", "training.task"), message, "Take bucketed, or data.samples=windows."


@law("precision.weights", "optimizer.type", "optimizer.beta2", "model.lora_rank")
def narrow_averages_still_move(s: Settings) -> Iterator[Broken]:
    """With precision.weights bf16, AdamW's average of squares is bf16 too, and stands still for beta2 above .996."""
    is_narrow = s.get("precision.weights") == "bf16" and s.get("model.lora_rank") is None
    if is_narrow and s.get("optimizer.type") in ("adamw", "muon") and s.get("optimizer.beta2") > 0.996:
        message = (
            f"must be at most 0.996 with precision.weights bf16, but it is {s.show('optimizer.beta2')}: bf16 has 8 "
            "bits, and what a step adds to the average of squares would be less than the last one."
        )
        hint = "Take 0.99 or 0.95, or optimizer.type=stable_adamw, which keeps that average in fp32."
        yield ("optimizer.beta2", "precision.weights", "optimizer.type"), message, hint


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
    """precision.weights bf16 or fp16 needs the same precision.compute (or auto)."""
    weights, compute = s.get("precision.weights"), s.get("precision.compute")
    if weights != "fp32" and compute not in (weights, "auto"):
        yield (
            ("precision.weights", "precision.compute"),
            f"{weights} needs precision.compute {weights}, but that is {s.show('precision.compute')}.",
            "",
        )


@law("data.vocab_size", "data.tokenizer")
def only_a_learned_vocabulary_has_a_size(s: Settings) -> Iterator[Broken]:
    """data.vocab_size is for a tokenizer that is learned from the data; the others bring theirs."""
    tokenizer = s.get("data.tokenizer")
    brings_its_own = tokenizer in ("byte", "char", "word") or tokenizer.endswith(".json") or "/" in tokenizer
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


JUDGED_AS_TEXT = ("exact_match", "word_error_rate", "phoneme_error_rate")


@law("evaluation.metric_for_best_model", "evaluation.generate", "evaluation.target_unit")
def written_text_is_judged_where_it_is_written(s: Settings) -> Iterator[Broken]:
    """exact_match and error rates need evaluation.generate; phoneme_error_rate also target_unit phonemes."""
    metric, path = s.get("evaluation.metric_for_best_model"), "evaluation.metric_for_best_model"
    if metric not in JUDGED_AS_TEXT:
        return
    if not s.get("evaluation.generate"):
        yield (path, "evaluation.generate"), f"{metric} needs evaluation.generate, but that is off.", ""
    elif metric == "phoneme_error_rate" and s.get("evaluation.target_unit") != "phonemes":
        unit = s.show("evaluation.target_unit")
        message = f"{metric} needs evaluation.target_unit 'phonemes', but that is {unit}."
        yield (path, "evaluation.target_unit"), message, ""
