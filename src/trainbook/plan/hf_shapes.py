"""Models of Hugging Face, as knobs of ours: their config.json says what they are made of.

Only shapes count here, so that also what our networks would not compute as they do (scaled rotary positions, sliding
windows) can be planned. transformers computes them with about the same tensors as our own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.architectures import LENGTH, shape_of_pretrained
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name


def as_ours(config: Config) -> Config:
    """A configuration of model.type hf with the knobs of the built-in model that has the same shapes; any other as it
    is."""
    if config.model.type != "hf":
        return config
    name = config.model.pretrained
    if name is None:
        raise UserError(
            "plan: model.type hf needs model.pretrained: the folder of a model, or its name on the Hugging Face hub."
        )
    values = _values(name)
    knobs: dict[str, Any] = {path.removeprefix("model."): value for path, value in values.items() if path != LENGTH}
    knobs["vocab_multiple"] = 1  # their heads have as many rows as their config.json says
    update: dict[str, Any] = {
        "model": config.model.model_copy(update=knobs),
        "training": config.training.model_copy(update={"task": task_name(config)}),
    }
    return config.model_copy(update=update)


def learned_positions(config: Config) -> int | None:
    """Of a model of Hugging Face all are there, also those that are never reached."""
    return (
        _values(config.model.pretrained).get(LENGTH) if config.model.type == "hf" and config.model.pretrained else None
    )


@lru_cache(maxsize=8)
def _values(name: str) -> dict[str, Any]:
    return shape_of_pretrained(name)
