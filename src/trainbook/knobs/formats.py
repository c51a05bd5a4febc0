"""Which models the formats of others can hold exactly, as far as knobs decide it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainbook.knobs.config import Config
from trainbook.knobs.derive import key_value_heads, qkv_bias, task_name, value_layers
from trainbook.knobs.scaling import head_width

# The formats that a model of each type may be written in.
OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "gpt": ("gpt2", "llama", "mistral", "qwen2", "qwen3"),
    "bert": ("bert",),
    "t5": ("t5",),
}
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")  # one layout of weights

# What each format calls the activations that it knows.
ACTIVATIONS: Mapping[str, Mapping[str, str]] = {
    "gpt2": {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2", "silu": "silu"},
    **{form: {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"} for form in LLAMAS},
    "bert": {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2", "silu": "silu"},
    "t5": {
        "relu": "relu",
        "relu2": "relu2",
        "geglu_tanh": "gated-gelu",
        "swiglu": "gated-silu",
        "gelu": "gelu",
        "gelu_tanh": "gelu_new",
        "silu": "silu",
    },
}

_LLAMA: Mapping[str, tuple[str | bool | None, ...]] = {
    "position": ("rotary",),
    "norm": ("rmsnorm",),
    "norm_position": ("pre",),
    "attention_scale": ("inverse_sqrt",),
}
_NO_WINDOW: Mapping[str, tuple[None]] = {"sliding_window": (None,)}
_NEEDED: Mapping[str, Mapping[str, tuple[str | bool | None, ...]]] = {
    "gpt2": {"position": ("learned", "none"), "norm": ("layernorm",), "norm_position": ("pre",), **_NO_WINDOW},
    "llama": {**_LLAMA, "qk_norm": (False,), **_NO_WINDOW},
    "mistral": {**_LLAMA, "bias": (False,), "qk_norm": (False,)},
    "qwen2": {**_LLAMA, "bias": (False,), "qkv_bias": (True,), "qk_norm": (False,)},
    "qwen3": {**_LLAMA, "bias": (False,), "qk_norm": (True,)},
    "bert": {
        "position": ("learned", "none"),
        "norm": ("layernorm",),
        "norm_position": ("post",),
        "attention_scale": ("inverse_sqrt",),
    },
    "t5": {
        "position": ("relative", "none"),
        "norm": ("rmsnorm",),
        "norm_position": ("pre",),
        "bias": (False,),
        "attention_scale": ("none",),
    },
}


def objections(form: str, config: Config) -> dict[str, tuple[str, ...]]:
    """For each knob that stands in the way of a format: the values that would not."""
    model = config.model
    found: dict[str, tuple[str, ...]] = {}
    for name, needed in {**_NEEDED[form], "activation": tuple(ACTIVATIONS[form])}.items():
        if getattr(model, name) not in needed:
            found[f"model.{name}"] = tuple("null" if value is None else str(value).lower() for value in needed)
    if form in LLAMAS:
        if form != "qwen2" and qkv_bias(config) != model.bias:
            found["model.qkv_bias"] = ("null",)
        if model.hidden_size % model.num_attention_heads:
            found["model.num_attention_heads"] = (f"a divisor of {model.hidden_size}",)
        return found
    if key_value_heads(config) != model.num_attention_heads:
        found["model.num_key_value_heads"] = (str(model.num_attention_heads),)
    if form != "t5" and head_width(config) * model.num_attention_heads != model.hidden_size:
        found["model.head_width"] = ("hidden_size / num_attention_heads",)
    return found


def objections_to_writing(form: str, config: Config) -> dict[str, tuple[str, ...]]:
    """As `objections`, with what no format has a place for."""
    found = objections(form, config)
    if config.model.qk_norm and form != "qwen3":
        found["model.qk_norm"] = ("false",)
    if config.model.embedding_skip and config.model.type == "gpt":
        found["model.embedding_skip"] = ("false",)
    if value_layers(config):
        found["model.value_embeddings"] = ("none",)
    if config.model.logit_soft_cap is not None:
        found["model.logit_soft_cap"] = ("null",)
    return found


def nearest_format(
    config: Config, candidates: Sequence[str], is_wanted: Callable[[str], bool] = lambda path: False
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The format that the fewest knobs stand in the way of, and these knobs: none where it holds the model. One that
    needs no change of a knob that `is_wanted` as it is comes first."""
    found = {name: objections_to_writing(name, config) for name in candidates}
    nearest = min(found, key=lambda name: (sum(map(is_wanted, found[name])), len(found[name])))
    return nearest, found[nearest]


def can_be_exported(config: Config) -> bool:
    """Whether some format holds this model. Those of transformers are their own; a user's own have none."""
    if ":" in task_name(config):
        return False
    if config.model.type == "hf":
        return True
    return any(not objections_to_writing(form, config) for form in OF_TYPE.get(config.model.type, ()))
