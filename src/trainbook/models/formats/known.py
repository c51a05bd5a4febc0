"""The formats by name, and which of them a task has a place in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import nn

from trainbook.knobs.config import Config
from trainbook.models.formats import bert, gpt2, llama, mistral, qwen2, qwen3, t5
from trainbook.models.formats.rules import WeightRule
from trainbook.models.shape import Shape


class Format(Protocol):
    """What the module of a format has."""

    ARCHITECTURES: dict[str, str]  # by the kind of task
    HEAD: str

    def canonical(self, name: str) -> str: ...

    def rules(self, shape: Shape, kind: str, tied: bool) -> Iterator[WeightRule]: ...

    def ignored(self, name: str, kind: str, tied: bool) -> bool: ...

    def config_json(self, config: Config, shape: Shape) -> dict[str, Any]: ...


# By the `model_type` of a config.json.
FORMATS: dict[str, Format] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "bert": bert,
    "t5": t5,
}


def kind_of(task: nn.Module, config: Config) -> str:
    """What the head is for: causal, seq2seq, masked, classify or tag."""
    if config.model.type != "bert":
        return {"gpt": "causal", "t5": "seq2seq"}[config.model.type]
    names = dict(task.named_parameters())
    if "transform.weight" in names:
        return "masked"
    return "classify" if "pooler.weight" in names else "tag"
