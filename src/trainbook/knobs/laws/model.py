"""The kind and the shape of the model, its tasks, and the parts that transformers or the user builds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainbook.knobs.config import declarations, section_types
from trainbook.knobs.derive import TASKS, TASKS_OF_MODEL, task_name
from trainbook.knobs.formats import OF_TYPE, objections_to_writing
from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.nearest import nearest

MODEL_TYPES = (*BUILT_IN, "hf")
IS_PYTHON_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _is_one_of(s: Settings, path: str, names: tuple[str, ...], of_your_own: str) -> Iterator[Broken]:
    value = s.get(path)
    if value in names or IS_PYTHON_PATH.fullmatch(value):
        return
    known = {name: name for name in names} | _names_elsewhere(path)
    near = known.get(nearest(value, known) or "")
    hint = f"Did you mean '{near}'?" if near else ""
    law_text = f"must be {', '.join(names)}, or {of_your_own} as package.module:Name, but got {s.show(path)}."
    yield (path,), law_text, hint


def _names_elsewhere(path: str) -> dict[str, str]:
    """What other libraries call the values of a knob."""
    aliases = next(each.knob.value_aliases for each in declarations() if each.path == path)
    return {foreign: own for foreign, own in aliases.items() if isinstance(foreign, str)}


@law("model.type")
def model_type_is_known(s: Settings) -> Iterator[Broken]:
    """model.type is gpt, bert, t5, hf, or the Python path of your own model."""
    yield from _is_one_of(s, "model.type", MODEL_TYPES, "your own model")


@law("training.task")
def task_is_known(s: Settings) -> Iterator[Broken]:
    """training.task is one of the tasks, or the Python path of your own task."""
    yield from _is_one_of(s, "training.task", TASKS, "your own task")


@law("model.type", "training.task", "data.label_field", "data.target_field")
def model_can_do_the_task(s: Settings) -> Iterator[Broken]:
    """Each type of model has its tasks: gpt causal, bert masked and labels, t5 spans and target texts."""
    kind, task = s.get("model.type"), task_name(s.config)
    if kind in TASKS_OF_MODEL and task in TASKS and task not in TASKS_OF_MODEL[kind]:
        able = [other for other, tasks in TASKS_OF_MODEL.items() if task in tasks]
        said = "" if s.get("training.task") != "auto" else ", which follows from data.label_field"
        message = f"{kind} supports {' or '.join(TASKS_OF_MODEL[kind])}, but the task is {task}{said}."
        yield ("training.task", "model.type"), message, f"Use model.type={' or '.join(able)}."


@law("model.type", "model.initializer_range", yields=True)
def t5_has_first_values_of_its_own(s: Settings) -> Iterator[Broken]:
    """model.initializer_range has no effect with model.type t5, whose initialization follows from the widths."""
    if s.is_set("model.initializer_range") and s.get("model.type") == "t5":
        message = "has no effect with model.type t5, whose initialization follows from the widths."
        yield ("model.initializer_range", "model.type"), message, ""


@law("model.type", "model.hidden_size", "model.num_attention_heads", "model.head_width")
def heads_share_the_width(s: Settings) -> Iterator[Broken]:
    """model.hidden_size is a multiple of model.num_attention_heads, unless model.head_width is set."""
    paths = ("model.hidden_size", "model.num_attention_heads")
    judged = s.get("model.type") != "hf" and s.get("model.head_width") is None  # hf: its own config.json has the sizes
    if judged and s.get(paths[0]) % s.get(paths[1]):
        yield (
            paths,
            f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not a multiple of {s.show(paths[1])}.",
            "",
        )


@law("model.num_attention_heads", "model.num_key_value_heads")
def heads_share_keys_and_values(s: Settings) -> Iterator[Broken]:
    """model.num_attention_heads is a multiple of model.num_key_value_heads."""
    paths = ("model.num_attention_heads", "model.num_key_value_heads")
    if s.get(paths[1]) is not None and s.get(paths[0]) % s.get(paths[1]):
        yield (
            paths,
            f"must be a multiple of {paths[1]}, but {s.show(paths[0])} is not a multiple of {s.show(paths[1])}.",
            "",
        )


@law("model.position", "model.hidden_size", "model.num_attention_heads", "model.head_width")
def rotation_needs_pairs(s: Settings) -> Iterator[Broken]:
    """Rotary positions rotate pairs of dimensions: head_width, or else hidden_size / num_attention_heads, is even."""
    size, heads, width = (s.get(f"model.{name}") for name in ("hidden_size", "num_attention_heads", "head_width"))
    if width is not None:
        if s.get("model.position") == "rotary" and width % 2:
            yield ("model.position", "model.head_width"), f"rotary needs an even head width, but it is {width}.", ""
    elif s.get("model.position") == "rotary" and size % heads == 0 and (size // heads) % 2:
        paths = ("model.position", "model.hidden_size", "model.num_attention_heads")
        width = f"hidden_size / num_attention_heads is {size} / {heads} = {size // heads}"
        yield paths, f"rotary needs an even head width, but {width}.", ""


@law("model.type", "model.position", "model.num_positions", "data.max_seq_length")
def learned_positions_suffice(s: Settings) -> Iterator[Broken]:
    """With learned positions, model.num_positions is at least data.max_seq_length."""
    positions, length = s.get("model.num_positions"), s.get("data.max_seq_length")
    if s.get("model.type") == "hf" or s.get("model.position") != "learned" or positions is None:
        return
    if positions < length:
        paths = ("model.num_positions", "data.max_seq_length")
        yield (
            paths,
            f"must be >= data.max_seq_length with learned positions, but {positions} is less than {length}.",
            "",
        )


@law(
    "model.rope_scaling",
    *(f"model.rope_{name}" for name in ("low_frequency", "high_frequency", "beta_slow", "beta_fast")),
)
def slow_rotations_are_below_fast_ones(s: Settings) -> Iterator[Broken]:
    """model.rope_low_frequency is below model.rope_high_frequency, model.rope_beta_slow below model.rope_beta_fast."""
    pairs = {"llama3": ("low_frequency", "high_frequency"), "yarn": ("beta_slow", "beta_fast")}
    for low, high in (pairs[s.get("model.rope_scaling")],) if s.get("model.rope_scaling") in pairs else ():
        paths = (f"model.rope_{low}", f"model.rope_{high}")
        if s.get(paths[0]) >= s.get(paths[1]):
            yield (
                paths,
                f"must be less than {paths[1]}, but {s.show(paths[0])} is not less than {s.show(paths[1])}.",
                "",
            )


@law("model.type", "model.family", "model.pretrained")
def family_can_hold_the_model(s: Settings) -> Iterator[Broken]:
    """Without model.pretrained, model.family must be able to represent a model with these settings."""
    family, kind = s.get("model.family"), s.get("model.type")
    if family == "auto" or kind not in OF_TYPE or s.get("model.pretrained") is not None:
        return
    if family not in OF_TYPE[kind]:
        message = (
            f"must be auto or {' or '.join(OF_TYPE[kind])} with model.type {kind}, but got {s.show('model.family')}."
        )
        yield ("model.family", "model.type"), message, ""
        return
    for path, needed in objections_to_writing(family, s.config).items():
        yield ("model.family", path), f"{family} needs {path} {' or '.join(needed)}, but that is {s.show(path)}.", ""


# Parts that transformers or the user builds


# Sizes are read from the folder, and judged there; the rest of these is for every kind of model.
OF_ANY_MODEL = (
    *("type", "pretrained", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "quantize_base"),
    *("num_hidden_layers", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_width"),
    "parametrization",  # has a law of its own
)
PARTS = tuple(f"model.{name}" for name in section_types()["model"].model_fields if name not in OF_ANY_MODEL)


@law("model.type", *PARTS, yields=True)
def hf_has_its_own_parts(s: Settings) -> Iterator[Broken]:
    """With model.type hf the architecture, including dropout, comes from config.json in model.pretrained."""
    if s.get("model.type") != "hf":
        return
    for path in PARTS:
        if s.is_set(path):
            message = "has no effect with model.type hf, which takes it from config.json in model.pretrained."
            yield (path, "model.type"), message, ""


LORA = ("model.lora_alpha", "model.lora_dropout", "model.lora_targets")


@law("model.lora_rank", *LORA, yields=True)
def adapters_have_a_rank(s: Settings) -> Iterator[Broken]:
    """model.lora_alpha, model.lora_dropout and model.lora_targets have an effect only with model.lora_rank."""
    if s.get("model.lora_rank") is not None:
        return
    for path in LORA:
        if s.is_set(path):
            yield (path, "model.lora_rank"), "has no effect unless model.lora_rank is set.", ""


@law("model.quantize_base", "model.lora_rank", yields=True)
def only_frozen_weights_are_quantized(s: Settings) -> Iterator[Broken]:
    """model.quantize_base needs model.lora_rank: quantized weights cannot be trained, only adapters on top of them."""
    if s.get("model.quantize_base") != "none" and s.get("model.lora_rank") is None:
        message = "needs model.lora_rank: quantized weights cannot be trained, only adapters on top of them."
        yield ("model.quantize_base", "model.lora_rank"), message, ""


no_effect("model.rope_theta", "model.position", "rotary")
no_effect("model.rope_scaling", "model.position", "rotary")
no_effect("model.rope_factor", "model.rope_scaling", "linear", "llama3", "yarn")
no_effect("model.rope_original_positions", "model.rope_scaling", "llama3", "yarn")
no_effect("model.rope_low_frequency", "model.rope_scaling", "llama3")
no_effect("model.rope_high_frequency", "model.rope_scaling", "llama3")
no_effect("model.rope_beta_fast", "model.rope_scaling", "yarn")
no_effect("model.rope_beta_slow", "model.rope_scaling", "yarn")
no_effect("model.rope_attention_factor", "model.rope_scaling", "yarn")
no_effect("model.sliding_window", "model.type", "gpt")
no_effect("model.qkv_bias", "model.type", "gpt")
no_effect("model.embedding_skip", "model.type", "gpt")
no_effect("model.value_embeddings", "model.type", "gpt")
no_effect("model.num_decoder_layers", "model.type", "t5")
no_effect("model.token_types", "model.type", "bert")
