from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch


def _assert_same(left: Any, right: Any, place: str = "state") -> None:
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor), place
        assert (left.dtype, left.shape) == (right.dtype, right.shape), place
        assert _bits(left) == _bits(right), place
    elif isinstance(left, dict):
        assert isinstance(right, dict) and list(left) == list(right), place
        assert [type(key) for key in left] == [type(key) for key in right], place
        for key in left:
            _assert_same(left[key], right[key], f"{place}.{key}")
    elif isinstance(left, (list, tuple)):
        assert isinstance(right, tuple if isinstance(left, tuple) else list) and len(left) == len(right), place
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            _assert_same(one, other, f"{place}.{index}")
    elif isinstance(left, float):
        assert type(right) is float and struct.pack("d", left) == struct.pack("d", right), place
    else:
        assert type(left) is type(right) and left == right, place


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def assert_same() -> Callable[[Any, Any], None]:
    """Equal in structure, key types, tensor types and every bit."""
    return _assert_same


@pytest.fixture
def state_of() -> Callable[..., dict[str, Any]]:
    """A small state that differs for each step (and variant), so that a mixture of two would show."""

    def make(step: int, variant: float = 0.0) -> dict[str, Any]:
        return {
            "model": {"weight": torch.full((4, 3), step + variant), "bias": torch.full((3,), -float(step))},
            "optimizer": {"state": {0: {"exp_avg": torch.full((4, 3), step / 2 + variant)}}, "param_groups": []},
            "loop": {"step": step, "variant": variant},
        }

    return make


@pytest.fixture
def events() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def on_event(events: list[tuple[str, dict[str, Any]]]) -> Callable[[str, dict[str, Any]], None]:
    return lambda kind, facts: events.append((kind, facts))
