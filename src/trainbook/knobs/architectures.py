"""What a pretrained model is, as our knobs: from a config.json of Hugging Face, or from a run or recipe of ours.

What our networks cannot compute exactly as that model does is refused, never approximated.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs import recipes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.derive import num_positions
from trainbook.knobs.families import DROPOUT_RATES, LENGTH, READERS, VOCABULARIES, HfConfig
from trainbook.knobs.hub import CONFIG, find_folder, read_config
from trainbook.knobs.sections.model_context import ModelContext
from trainbook.knobs.sections.model_embeddings import ModelEmbeddings
from trainbook.knobs.sections.model_rope import ROPE
from trainbook.knobs.sections.model_scaling import ModelScaling
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.knobs.values import show

DROPOUT = "model.dropout"
SIZES = (
    "model.num_hidden_layers",
    "model.num_decoder_layers",
    "model.hidden_size",
    "model.intermediate_size",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.head_width",
)
# Of every model that is read here, all of these are settled.
SETTLED = (
    "model.type",
    *SIZES,
    "model.bias",
    "model.norm",
    "model.norm_epsilon",
    "model.norm_position",
    "model.activation",
    "model.position",
    "model.rope_theta",
    "model.attention_scale",
    "model.token_types",
    "model.tie_embeddings",
    "model.qk_norm",
)
# The same of a run of ours, whose config.yaml may be older than these: then they have their defaults.
CONTEXT = tuple(f"model.{name}" for name in ModelContext.__annotations__)
EMBEDDINGS = tuple(f"model.{name}" for name in ModelEmbeddings.__annotations__)
NEWER = ("model.family", "model.qkv_bias", *CONTEXT, *EMBEDDINGS, *ROPE)
# Its weights mean what they do only with these; a file of another format knows none of them.
SCALING = tuple(f"model.{name}" for name in ModelScaling.__annotations__)


# What values of the wrong kind raise, wherever they are met.
NO_CONFIGURATION = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True)
class ModelReading:
    folder: Path
    values: dict[str, Any]
    trained_length: int | None = None  # of a model that can be used beyond it, and was not trained there
    tokenizer: str | None = None  # of a model that was trained here
    place: str = ""  # what said all this, for messages
    task: str | None = None  # of a model of transformers: what it was made for
    remarks: tuple[str, ...] = ()  # what differs from the folder, and is told


def _read_earlier(name: str, load: recipes.Load) -> ModelReading:
    """A model of our own says everything itself, also what no other format can."""
    config = recipes.config_of(name, load)
    kind = config.model.type
    if kind not in BUILT_IN:
        hint = (
            f" Export it with: trainbook export {shlex.quote(name)} --to DIR, and use that folder."
            if kind == "hf"
            else ""
        )
        raise UserError(
            f"model.pretrained: {name} has a model of type {kind}, which cannot be loaded from a run.{hint}"
        )
    more = ("model.vocab_multiple", "model.logit_soft_cap", *NEWER, *SCALING)
    values = {path: config.get(path) for path in (*SETTLED, *more)}
    if config.model.position == "learned":
        values[LENGTH] = values["model.num_positions"] = num_positions(config)
    if recipes.is_recipe(name):
        values["data.vocab_size"] = config.data.vocab_size
        return ModelReading(Path(name), values, tokenizer=config.data.tokenizer, place=name)
    folder = Path(name).expanduser()
    return ModelReading(folder, values, tokenizer=str(folder / "tokenizer"), place=str(folder / "config.yaml"))


def read_model(name: str, model_type: str | None, load: recipes.Load) -> ModelReading:
    """A key that is left out of a file has the default of transformers. `load` reads the configuration of a model that
    was trained here."""
    if recipes.is_recipe(name) or recipes.is_run(name):
        return _read_earlier(name, load)
    folder = find_folder(name)
    config = read_config(folder)
    if model_type == "hf":
        return ModelReading(folder, {"model.type": "hf", **_sizes(config)}, task=task_of(config))
    family = config.get("model_type")
    reader = READERS.get(str(family))
    if reader is None:
        raise NotBuiltIn(folder, f"the family {show(family)} is not built in ({', '.join(READERS)} are)")
    source = HfConfig(config)
    values = {"model.qk_norm": False, "model.num_decoder_layers": None, "model.token_types": 0}
    values |= {path: by_path()[path].field.default for path in ("model.rope_theta", *NEWER)}
    values |= {"model.attention_scale": "inverse_sqrt", "model.norm_position": "pre"}
    try:
        values |= reader(source)
    except NO_CONFIGURATION as error:
        raise UserError(
            f"model.pretrained: {folder / CONFIG} is not a valid {family} configuration ({_told(error)})."
        ) from None
    source.must_be("quantization_config", None, None)
    if source.objections:
        raise NotBuiltIn(folder, f"the built-in models do not support it: {'; '.join(source.objections)}")
    trained_length = values.pop("trained_length", None)
    values |= {"model.parametrization": "standard", "model.embedding_multiplier": 1.0, "model.output_multiplier": 1.0}
    values["model.family"] = str(family)
    values["model.vocab_rows"] = source.get("vocab_size", VOCABULARIES[str(family)])
    values["model.num_positions"] = values["model.num_positions"] or values.get(LENGTH, trained_length)
    ordered = {path: values[path] for path in (*SETTLED, *NEWER, *SCALING, LENGTH) if path in values}
    ordered[DROPOUT], remarks = _dropout(source, str(family))
    return ModelReading(folder, ordered, trained_length, remarks=remarks)


def _told(error: Exception) -> str:
    return f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)


def _dropout(source: HfConfig, family: str) -> tuple[Any, tuple[str, ...]]:
    """Built-in networks have one rate for all places."""
    rates = {name: source.get(name, default) for name, default in DROPOUT_RATES[family].items()}
    hidden = next(iter(rates.values()))
    if all(rate == hidden for rate in rates.values()):
        return hidden, ()
    shown = ", ".join(f"{name} {show(rate)}" for name, rate in rates.items())
    return hidden, (f"{DROPOUT}: {show(hidden)} is used everywhere, but the pretrained model has {shown}.",)


def shape_of_pretrained(name: str) -> dict[str, Any]:
    """The knobs of a built-in model of the same shapes, for whoever only plans: what it would compute differently does
    not count. UserError where its kind is not known here."""
    folder = find_folder(name)
    config = read_config(folder)
    family = str(config.get("model_type"))
    if family not in READERS:
        raise UserError(
            f"model.pretrained: {folder / CONFIG} describes a {show(family)} model, whose size is known only after it "
            f"is built. Sizes are known in advance for {', '.join(READERS)}."
        )
    try:
        values = READERS[family](HfConfig(config))
    except NO_CONFIGURATION as error:
        raise UserError(
            f"model.pretrained: {folder / CONFIG} is not a valid {family} configuration ({_told(error)})."
        ) from None
    values.pop("trained_length", None)
    return {path: value for path, value in values.items() if value is not None}


class NotBuiltIn(ConfigError):
    """A model that transformers may hold, but no built-in network."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.reason, self.place = reason, str(folder / CONFIG)
        hint = "Omit model.type to run the model in transformers (model.type=hf)."
        super().__init__([Problem(self.place, "model.pretrained", f"{reason}.", hint)])


def task_of(config: Mapping[str, Any]) -> str | None:
    """What a model of transformers was made for, as its config.json says; None where that is open."""
    if config.get("is_encoder_decoder"):
        return "seq2seq"
    stated = config.get("architectures")
    for name in stated if isinstance(stated, list) else ():
        for ending, task in _TASKS.items():
            if str(name).endswith(ending):
                return task
    return None


# The endings of class names in transformers.
_TASKS = {
    "ForConditionalGeneration": "seq2seq",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
}


# What a size is called in one architecture or another.
_SIZES = {
    "model.num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "model.hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "model.intermediate_size": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim"),
    "model.num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "model.num_key_value_heads": ("num_key_value_heads",),
    "model.head_width": ("head_dim", "d_kv"),
}


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path, names in _SIZES.items():
        found = next((config[name] for name in names if type(config.get(name)) is int), None)
        if found is not None and found > 0:
            values[path] = found
    width, heads = values.get("model.hidden_size"), values.get("model.num_attention_heads")
    if width and heads:
        values.setdefault("model.head_width", max(1, width // heads))
    return values
