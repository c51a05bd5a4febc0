"""Trainbook: the training playbook you can run.

Names are loaded when they are first used, so that `import trainbook` and the torch-free commands stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainbook.api import Result, explain, fit, generate, open_run, resume, train
    from trainbook.guard import Guard
    from trainbook.knobs import load
    from trainbook.watching import watch

_HOMES = {
    "Guard": "trainbook.guard",
    "Result": "trainbook.api",
    "explain": "trainbook.api",
    "fit": "trainbook.api",
    "generate": "trainbook.api",
    "load": "trainbook.knobs",
    "open_run": "trainbook.api",
    "resume": "trainbook.api",
    "train": "trainbook.api",
    "watch": "trainbook.watching",
}

__all__ = [
    "Guard",
    "Result",
    "__version__",
    "explain",
    "fit",
    "generate",
    "load",
    "open_run",
    "resume",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trainbook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
