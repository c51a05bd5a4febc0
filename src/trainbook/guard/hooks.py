"""Hooks of somebody's model that a copy of the model does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """Calls a function. A copy or a pickle of it does nothing: what `copy.deepcopy` makes of a guarded or watched
    model, as for a moving average of its weights, is neither, and `torch.save` of the model takes no run folder along.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(*arguments, **keywords)

    def __deepcopy__(self, _: dict[int, Any]) -> Callable[..., None]:
        return nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def nothing(*_: Any, **__: Any) -> None:
    return None


def _nothing() -> Callable[..., None]:
    return nothing
