"""Whether the host waits for the device, as far as a CPU can show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    """Counts what is asked of the device, and refuses what can only be answered by waiting for it."""

    WAITING = frozenset(("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2"))

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.WAITING, f"{name} waits for the device"
        if name == "index":  # by a mask: how many there are is not known before
            assert not any(index is not None and index.dtype is torch.bool for index in args[1]), "a mask selects"
        self.operations += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the host reads a number of the device")

    with monkeypatch.context() as patch, Counted():
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "cpu", "__array__"):
            patch.setattr(Tensor, name, refuse)
        yield
