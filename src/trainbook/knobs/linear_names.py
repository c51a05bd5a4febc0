"""What Hugging Face calls the linear layers of the built-in models: the names of LoRA targets. Imports no torch.

A layer that is one matrix here may be several there: queries, keys and values of a Llama, but not of a GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size, key_value_heads
from trainbook.knobs.scaling import head_width
from trainbook.nearest import nearest

GATED = ("swiglu", "geglu", "geglu_tanh")

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
    if ends_with(layer, "feed_forward.up") and config.model.activation not in GATED:
        return UNGATED.get(kind, names)
    return names


def row_parts(config: Config, layer: str) -> tuple[int, ...]:
    """Rows of each matrix that our layer holds; empty where it is one matrix."""
    keys = key_value_heads(config) * head_width(config)
    if ends_with(layer, "attention.query_key_value"):
        return (config.model.num_attention_heads * head_width(config), keys, keys)
    if ends_with(layer, "cross_attention.key_value"):
        return (keys, keys)
    if ends_with(layer, "feed_forward.up") and config.model.activation in GATED:
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
    near = nearest(target, last)
    hint = f" Did you mean '{near}'?" if near else ""
    return (
        f"model.lora_targets: no linear layer has a name that ends with '{target}'. The names end with "
        f"{', '.join(last)}.{hint}"
    )
