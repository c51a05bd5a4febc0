from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainbook.parallel import fsdp
from trainbook.parallel.fsdp import BlockClock

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each look at the clock is one later than the last; how many there were."""
    looks: list[int] = []
    ticks = count()

    def now() -> float:
        looks.append(next(ticks))
        return float(looks[-1])

    monkeypatch.setattr(fsdp.time, "perf_counter", now)
    return looks


def test_blocks_are_timed_forwards_and_backwards_and_what_lies_between_them_is_not(read: list[int]):
    blocks = [Block(), Block()]
    timed = BlockClock(blocks, CPU)
    assert timed.seconds() is None
    x = torch.ones(2, 3, requires_grad=True)
    for block in blocks:
        x = block(x * 1.0)  # a tensor of its own, as a sharded block gets one
        fsdp.time.perf_counter()  # somebody waits
    x.sum().backward()
    assert timed.seconds() == 4, "two passes of two blocks, one tick each"
    assert len(read) == 2 * 4 + 2
    timed.begin_step()
    assert timed.seconds() is None


def test_a_pass_that_is_computed_again_belongs_to_the_backward_one(read: list[int]):
    block = Block()
    timed = BlockClock([block], CPU)
    x = torch.ones(2, 3, requires_grad=True) * 1.0
    answer = checkpoint(block, x, use_reentrant=False)
    assert isinstance(answer, torch.Tensor)
    answer.sum().backward()
    assert timed.seconds() == 2 and len(read) == 4


def test_passes_without_gradients_are_not_timed(read: list[int]):
    block = Block()
    timed = BlockClock([block], CPU)
    with torch.no_grad():
        block(torch.ones(2, 3))
    assert timed.seconds() is None and not read
