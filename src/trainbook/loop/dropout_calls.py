"""Whether dropout is applied: `nn.Dropout`, dropout written as a function, and that of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.jit import ScriptModule
from torch.overrides import TorchFunctionMode

ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # position of dropout_p


class DropoutCalls(TorchFunctionMode):
    """Sees the functions of PyTorch that are called meanwhile, and changes nothing. What a compiled model calls is not
    to be seen: then `seen` is None."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._is_compiled = any(_is_compiled(part) for part in model.modules())
        self._has_dropped = False

    @property
    def seen(self) -> bool | None:
        return None if self._is_compiled else self._has_dropped

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self._has_dropped = self._has_dropped or _drops(getattr(func, "__name__", ""), args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _is_compiled(part: nn.Module) -> bool:
    has_graph = hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
    return has_graph or isinstance(part, ScriptModule)


def _drops(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    def argument(named: str, position: int, default: Any) -> Any:
        return kwargs.get(named, args[position] if len(args) > position else default)

    if name in ATTENTION:
        is_training = kwargs.get("training", True)
        return bool(is_training and argument("dropout_p", ATTENTION[name], 0.0))
    if "dropout" not in name:
        return False
    is_training = kwargs.get("train", argument("training", 2, True))
    return bool(is_training and argument("p", 1, 0.5))
