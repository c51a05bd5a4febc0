"""The families of Hugging Face's models that our networks compute: what each config.json says, as our knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any

from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size, key_value_heads
from trainbook.knobs.scaling import head_width
from trainbook.knobs.values import show
from trainbook.nearest import did_you_mean

LENGTH = "data.max_seq_length"
# What a config.json calls its dropout rates, and their defaults in transformers. The first is that of hidden states.
DROPOUT_RATES: Mapping[str, Mapping[str, float]] = {
    "gpt2": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "llama": {"attention_dropout": 0.0},
    "mistral": {"attention_dropout": 0.0},
    "qwen2": {"attention_dropout": 0.0},
    "qwen3": {"attention_dropout": 0.0},
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "t5": {"dropout_rate": 0.1},
}
PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}
OF_T5 = {"gated-gelu": "geglu_tanh", "gated-silu": "swiglu", "gated-gelu_new": "geglu_tanh"} | PLAIN


class HfConfig:
    """A config.json that is asked for values, and remembers what cannot be represented."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.objections: list[str] = []

    def get(self, name: str, default: Any) -> Any:
        return self.config.get(name, default)

    def must_be(self, name: str, needed: Any, default: Any) -> None:
        value = self.get(name, default)
        if value != needed:
            shown = "set" if isinstance(value, dict) else show(value)
            self.objections.append(f"{name} is {shown}" + ("" if needed is None else f", not {show(needed)}"))

    def translate(self, name: str, words: Mapping[str, str], default: str) -> str | None:
        value = self.get(name, default)
        if value not in words:
            self.objections.append(f"{name} is {show(value)}, not one of {', '.join(words)}")
        return words.get(value)

    def head_width(self, width: int, heads: int) -> int:
        if width % heads:
            self.objections.append(f"{heads} heads do not divide the hidden size {width}")
        return width // heads


def _gpt2(c: HfConfig) -> dict[str, Any]:
    width, heads = c.get("n_embd", 768), c.get("n_head", 12)
    c.must_be("scale_attn_by_inverse_layer_idx", False, False)
    c.must_be("add_cross_attention", False, False)
    return {
        "model.type": "gpt",
        "model.num_hidden_layers": c.get("n_layer", 12),
        "model.hidden_size": width,
        "model.intermediate_size": c.get("n_inner", None) or 4 * width,
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": heads,
        "model.head_width": c.head_width(width, heads),
        "model.bias": True,
        "model.norm": "layernorm",
        "model.norm_epsilon": float(c.get("layer_norm_epsilon", 1e-5)),
        "model.activation": c.translate("activation_function", PLAIN, "gelu_new"),
        "model.position": "learned",
        "model.attention_scale": "inverse_sqrt" if c.get("scale_attn_weights", True) else "none",
        "model.tie_embeddings": c.get("tie_word_embeddings", True),
        LENGTH: c.get("n_positions", c.get("n_ctx", 1024)),
    }


def _llama(c: HfConfig) -> dict[str, Any]:
    attention_bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
    if attention_bias != mlp_bias:
        c.objections.append(f"attention_bias is {show(attention_bias)}, but mlp_bias is {show(mlp_bias)}")
    return _like_llama(c) | {"model.bias": bool(attention_bias)}


def _like_llama(c: HfConfig) -> dict[str, Any]:
    width, heads = c.get("hidden_size", 4096), c.get("num_attention_heads", 32)
    positions = c.get("max_position_embeddings", 2048)
    return {
        "model.type": "gpt",
        "model.num_hidden_layers": c.get("num_hidden_layers", 32),
        "model.hidden_size": width,
        "model.intermediate_size": c.get("intermediate_size", 11008),
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": c.get("num_key_value_heads", None) or heads,
        "model.head_width": c.get("head_dim", None) or c.head_width(width, heads),
        "model.bias": False,
        "model.norm": "rmsnorm",
        "model.norm_epsilon": float(c.get("rms_norm_eps", 1e-6)),
        "model.activation": c.translate("hidden_act", GATED, "silu"),
        "model.position": "rotary",
        "model.tie_embeddings": c.get("tie_word_embeddings", False),
        "trained_length": positions,
        **_rotation(c, positions),
    }


def _rotation(c: HfConfig, positions: int) -> dict[str, Any]:
    """Older files have `rope_scaling` and a `rope_theta` beside it, newer ones `rope_parameters`."""
    rope = c.get("rope_parameters", None) or c.get("rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        c.objections.append(f"rope_scaling is {show(kind)}, not linear, llama3 or yarn")
    if rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)) != 1.0:
        c.objections.append("partial_rotary_factor is not 1")
    values: dict[str, Any] = {"model.rope_theta": float(rope.get("rope_theta", c.get("rope_theta", 10000.0)))}
    if kind == "default":
        return values
    before = rope.get("original_max_position_embeddings") or positions
    values |= {"model.rope_scaling": kind, "model.rope_factor": float(rope.get("factor") or positions / before)}
    if kind in ("llama3", "yarn"):
        values["model.rope_original_positions"] = before
    if kind == "llama3":
        values |= {f"model.rope_{end}_frequency": float(rope[f"{end}_freq_factor"]) for end in ("low", "high")}
    if kind == "yarn":
        values["model.rope_beta_fast"] = float(rope.get("beta_fast") or 32)
        values["model.rope_beta_slow"] = float(rope.get("beta_slow") or 1)
        values["model.rope_attention_factor"] = _attention_factor(rope, values["model.rope_factor"])
        if not rope.get("truncate", True):
            c.objections.append("truncate of rope_scaling is false")
    return values


def _attention_factor(rope: Mapping[str, Any], factor: float) -> float | None:
    """DeepSeek states it by two multipliers of its logarithm."""
    stated, above, below = (rope.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if stated is None and above and below and factor > 1:
        return (0.1 * above * log(factor) + 1) / (0.1 * below * log(factor) + 1)
    return None if stated is None else float(stated)


def _mistral(c: HfConfig) -> dict[str, Any]:
    c.config = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072, **c.config}
    return _like_llama(c) | {"model.sliding_window": c.get("sliding_window", 4096)}


def _qwen2(c: HfConfig) -> dict[str, Any]:
    c.config = {"intermediate_size": 22016, "max_position_embeddings": 32768, **c.config}
    return _like_llama(c) | {"model.qkv_bias": True, "model.sliding_window": _window_of_all_layers(c)}


def _qwen3(c: HfConfig) -> dict[str, Any]:
    c.config = {"intermediate_size": 22016, "max_position_embeddings": 32768, "head_dim": 128, **c.config}
    c.must_be("attention_bias", False, False)
    return _like_llama(c) | {"model.qk_norm": True, "model.sliding_window": _window_of_all_layers(c)}


def _window_of_all_layers(c: HfConfig) -> int | None:
    """Some layers with a window and some without are not built in."""
    window = c.get("sliding_window", 4096)
    if not c.get("use_sliding_window", False) or window is None:
        return None
    layers, first = c.get("num_hidden_layers", 32), c.get("max_window_layers", 28)
    kinds = c.get("layer_types", None) or ["sliding_attention" if at >= first else "" for at in range(layers)]
    have_one = [kind == "sliding_attention" for kind in kinds]
    if any(have_one) and not all(have_one):
        c.objections.append(f"sliding_window applies to {sum(have_one)} of {layers} layers")
    return window if all(have_one) else None


def _bert(c: HfConfig) -> dict[str, Any]:
    width, heads = c.get("hidden_size", 768), c.get("num_attention_heads", 12)
    c.must_be("position_embedding_type", "absolute", "absolute")
    c.must_be("is_decoder", False, False)
    c.must_be("add_cross_attention", False, False)
    return {
        "model.type": "bert",
        "model.num_hidden_layers": c.get("num_hidden_layers", 12),
        "model.hidden_size": width,
        "model.intermediate_size": c.get("intermediate_size", 3072),
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": heads,
        "model.head_width": c.head_width(width, heads),
        "model.bias": True,
        "model.norm": "layernorm",
        "model.norm_epsilon": float(c.get("layer_norm_eps", 1e-12)),
        "model.norm_position": "post",
        "model.activation": c.translate("hidden_act", PLAIN, "gelu"),
        "model.position": "learned",
        "model.token_types": c.get("type_vocab_size", 2),
        "model.tie_embeddings": c.get("tie_word_embeddings", True),
        LENGTH: c.get("max_position_embeddings", 512),
    }


def _t5(c: HfConfig) -> dict[str, Any]:
    layers, heads = c.get("num_layers", 6), c.get("num_heads", 8)
    c.must_be("relative_attention_num_buckets", 32, 32)
    c.must_be("relative_attention_max_distance", 128, 128)
    c.must_be("is_encoder_decoder", True, True)
    # Newer files name what older ones only meant: a head of its own reads hidden states as they are.
    shares_the_embedding = c.get("scale_decoder_outputs", c.get("tie_word_embeddings", True))
    return {
        "model.type": "t5",
        "model.num_hidden_layers": layers,
        "model.num_decoder_layers": c.get("num_decoder_layers", None) or layers,
        "model.hidden_size": c.get("d_model", 512),
        "model.intermediate_size": c.get("d_ff", 2048),
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": heads,
        "model.head_width": c.get("d_kv", 64),
        "model.bias": False,
        "model.norm": "rmsnorm",
        "model.norm_epsilon": float(c.get("layer_norm_epsilon", 1e-6)),
        "model.activation": c.translate("feed_forward_proj", OF_T5, "relu"),
        "model.position": "relative",
        "model.attention_scale": "none",
        "model.tie_embeddings": bool(shares_the_embedding),
        "model.num_positions": c.get("n_positions", None),
    }


READERS: dict[str, Callable[[HfConfig], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "bert": _bert,
    "t5": _t5,
}

# Rows of the embedding where config.json leaves them out: the defaults of transformers.
VOCABULARIES = {
    "gpt2": 50257,
    "llama": 32000,
    "mistral": 32000,
    "qwen2": 151936,
    "qwen3": 151936,
    "bert": 30522,
    "t5": 32128,
}


# What Hugging Face calls the linear layers of the built-in models: the names of LoRA targets. Imports no torch. A
# layer that is one matrix here may be several there: queries, keys and values of a Llama, but not of a GPT-2.


GATED_LINEARS = ("swiglu", "geglu", "geglu_tanh")

# By family and by the name of our layer, without the block that it is in; several names: its rows, from first to last.
NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gpt2": {
        "attention.query_key_value": ("attn.c_attn",),
        "attention.output": ("attn.c_proj",),
        "feed_forward.up": ("mlp.c_fc",),
        "feed_forward.down": ("mlp.c_proj",),
    },
    "llama": {
        "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": ("self_attn.o_proj",),
        "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.down": ("mlp.down_proj",),
    },
    "bert": {
        "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "feed_forward.up": ("intermediate.dense",),
        "feed_forward.down": ("output.dense",),
        "pooler": ("pooler.dense",),
        "transform": ("transform.dense",),
    },
    "t5": {
        "attention.query_key_value": ("SelfAttention.q", "SelfAttention.k", "SelfAttention.v"),
        "attention.output": ("SelfAttention.o",),
        "cross_attention.query": ("EncDecAttention.q",),
        "cross_attention.key_value": ("EncDecAttention.k", "EncDecAttention.v"),
        "cross_attention.output": ("EncDecAttention.o",),
        "feed_forward.up": ("DenseReluDense.wi_0", "DenseReluDense.wi_1"),
        "feed_forward.down": ("DenseReluDense.wo",),
    },
}
UNGATED = {"llama": ("mlp.up_proj",), "t5": ("DenseReluDense.wi",)}  # of a feed-forward without a gate


def family(config: Config) -> str | None:
    """Whose names a built-in model has; None for a model that is not built in."""
    if config.model.type == "gpt":
        return "llama" if config.model.position == "rotary" else "gpt2"
    return config.model.type if config.model.type in NAMES else None


def names_of(config: Config, layer: str) -> tuple[str, ...]:
    """The names of a layer of ours, by the end of its path; empty for one that Hugging Face does not have."""
    kind = family(config)
    if kind is None:
        return ()
    names = next((names for own, names in NAMES[kind].items() if ends_with(layer, own)), ())
    if ends_with(layer, "feed_forward.up") and config.model.activation not in GATED_LINEARS:
        return UNGATED.get(kind, names)
    return names


def row_parts(config: Config, layer: str) -> tuple[int, ...]:
    """Rows of each matrix that our layer holds; empty where it is one matrix."""
    keys = key_value_heads(config) * head_width(config)
    if ends_with(layer, "attention.query_key_value"):
        return (config.model.num_attention_heads * head_width(config), keys, keys)
    if ends_with(layer, "cross_attention.key_value"):
        return (keys, keys)
    if ends_with(layer, "feed_forward.up") and config.model.activation in GATED_LINEARS:
        return (intermediate_size(config),) * 2
    return ()


def is_split(config: Config, layer: str) -> bool:
    """Whether each matrix of our layer gets an adapter of its own, as it has in peft."""
    return len(names_of(config, layer)) == len(row_parts(config, layer)) > 1


def is_targeted(layer: str, names: Sequence[str], targets: Sequence[str] | None) -> bool:
    """Whether a target is the end of our name or of one of theirs."""
    return targets is None or any(ends_with(name, target) for target in targets for name in (layer, *names))


def ends_with(name: str, ending: str) -> bool:
    return name == ending or name.endswith(f".{ending}")


def unknown_target(target: str, known: Sequence[str]) -> str:
    """The message for a target that is the end of no layer's name."""
    last = sorted({name.rpartition(".")[2] for name in known})
    hint = did_you_mean(target, last)
    return (
        f"model.lora_targets: no linear layer has a name that ends with '{target}'. The names end with "
        f"{', '.join(last)}.{hint}"
    )
