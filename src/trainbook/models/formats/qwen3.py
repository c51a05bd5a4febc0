"""Qwen3: a Llama whose queries and keys are normalized in each head."""

from __future__ import annotations

from typing import Any

from trainbook.knobs.config import Config
from trainbook.models.formats import llama
from trainbook.models.formats.llama import HEAD, canonical, ignored, rules
from trainbook.models.formats.qwen2 import windows
from trainbook.models.shape import Shape

__all__ = ["ARCHITECTURES", "HEAD", "canonical", "config_json", "ignored", "rules"]

ARCHITECTURES = {"causal": "Qwen3ForCausalLM"}


def config_json(config: Config, shape: Shape) -> dict[str, Any]:
    about = llama.config_json(config, shape)
    del about["mlp_bias"]
    return about | {"model_type": "qwen3", **windows(shape)}
