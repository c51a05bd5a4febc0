"""Short trainings that answer a question: what a configuration takes here, which batches are worth having, which values
are good. Names are loaded when they are first used: most workers of a study never need all of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainbook.study.batch import Search, Trial, flattens_at
    from trainbook.study.measure import measure
    from trainbook.study.noise import NoiseScale, noise_scale

_HOMES = {
    "NoiseScale": "trainbook.study.noise",
    "Search": "trainbook.study.batch",
    "Trial": "trainbook.study.batch",
    "flattens_at": "trainbook.study.batch",
    "measure": "trainbook.study.measure",
    "noise_scale": "trainbook.study.noise",
}

__all__ = ["NoiseScale", "Search", "Trial", "flattens_at", "measure", "noise_scale"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trainbook.study' has no attribute {name!r}")
