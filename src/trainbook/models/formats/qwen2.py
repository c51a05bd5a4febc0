"""Qwen2: a Llama with biases where queries, keys and values are made, and nowhere else."""

from __future__ import annotations

from typing import Any

from trainbook.knobs.config import Config
from trainbook.models.formats import llama
from trainbook.models.formats.llama import HEAD, canonical, ignored, rules
from trainbook.models.shape import Shape

__all__ = ["ARCHITECTURES", "HEAD", "canonical", "config_json", "ignored", "rules"]

ARCHITECTURES = {"causal": "Qwen2ForCausalLM"}


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    about = llama.config_json(config, shape)
    del about["attention_bias"], about["mlp_bias"]
    return about | {"model_type": "qwen2", **windows(shape)}


def windows(shape: Shape) -> dict[str, Any]:
    """Where there is a window, all layers have it."""
    has_one = shape.sliding_window is not None
    kind = "sliding_attention" if has_one else "full_attention"
    return {
        "use_sliding_window": has_one,
        "sliding_window": shape.sliding_window,
        "max_window_layers": 0 if has_one else shape.num_hidden_layers,
        "layer_types": [kind] * shape.num_hidden_layers,
    }
