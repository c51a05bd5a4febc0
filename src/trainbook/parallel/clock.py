"""The compute time of a rank without its waiting time, when every block waits for other ranks before it begins.

A block is timed from when its weights have arrived until its gradients are sent: the time between is this rank's own
work. On a GPU the times are CUDA events, which the host never waits for during a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

Moment = float | torch.cuda.Event


class BlockClock:
    def __init__(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        """Call it after sharding the blocks: hooks run in the order in which they were registered."""
        self.device = device
        self._spans: list[tuple[Moment, Moment]] = []
        self._begun: dict[nn.Module, Moment] = {}
        self._going_back: set[nn.Module] = set()  # in their backward pass, which may compute the forward one again
        for block in blocks:
            block.register_forward_pre_hook(self._before, with_kwargs=True)
            block.register_forward_hook(self._after)

    def begin_step(self) -> None:
        self._spans, self._begun, self._going_back = [], {}, set()

    def seconds(self) -> float | None:
        """Seconds of the last step, forward and backward; None before the first step."""
        if not self._spans:
            return None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sum(_between(begin, end) for begin, end in self._spans)

    def _now(self) -> Moment:
        if self.device.type != "cuda":
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    def _before(self, block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or block in self._going_back:
            return
        self._begun[block] = self._now()
        if (entry := _first_trained((*inputs, *named.values()))) is not None:
            entry.register_hook(lambda gradient: self._gone_back(block))

    def _after(self, block: nn.Module, inputs: tuple[Any, ...], answer: Any) -> None:
        if not torch.is_grad_enabled() or block in self._going_back:
            return
        self._end(block)
        if (answered := _first_trained(answer if isinstance(answer, (tuple, list)) else (answer,))) is not None:
            answered.register_hook(lambda gradient: self._goes_back(block))

    def _goes_back(self, block: nn.Module) -> None:
        self._going_back.add(block)
        self._begun[block] = self._now()

    def _gone_back(self, block: nn.Module) -> None:
        self._going_back.discard(block)
        self._end(block)

    def _end(self, block: nn.Module) -> None:
        if (begun := self._begun.pop(block, None)) is not None:
            self._spans.append((begun, self._now()))


def _between(begin: Moment, end: Moment) -> float:
    if isinstance(begin, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return begin.elapsed_time(end) / 1000
    assert not isinstance(end, torch.cuda.Event)
    return end - begin


def _first_trained(values: Iterable[Any]) -> Tensor | None:
    return next((value for value in values if isinstance(value, Tensor) and value.requires_grad), None)
