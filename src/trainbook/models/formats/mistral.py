"""Mistral: a Llama without biases, of which each token may see a window only."""

from __future__ import annotations

from typing import Any

from trainbook.knobs.config import Config
from trainbook.models.formats import llama
from trainbook.models.formats.llama import HEAD, canonical, ignored, rules
from trainbook.models.shape import Shape

__all__ = ["ARCHITECTURES", "HEAD", "canonical", "config_json", "ignored", "rules"]

ARCHITECTURES = {"causal": "MistralForCausalLM"}


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    about = llama.config_json(config, shape)
    del about["attention_bias"], about["mlp_bias"]
    return about | {"model_type": "mistral", "sliding_window": shape.sliding_window}
