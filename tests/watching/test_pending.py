"""Numbers on their way to the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainbook.watching import pending
from trainbook.watching.pending import CopyAtOnce, CopyFromCuda, Moment, PendingNumbers

CUDA = torch.device("cuda", 0)


def test_numbers_come_back_under_their_names_whatever_their_type():
    values = {
        "loss": torch.tensor(1.5, dtype=torch.bfloat16),
        "layers": {"a": torch.tensor(3.0), "b": torch.tensor(0.1, dtype=torch.double)},
        "is_left_over": torch.tensor(True),
        "counts": torch.tensor([2**40 + 1, 5]),
        "nothing": {},
        "norm": torch.tensor(2.5, requires_grad=True),
    }
    numbers = PendingNumbers(values)
    assert numbers.have_arrived()
    expected = {"loss": 1.5, "layers": {"a": 3.0, "b": 0.1}, "is_left_over": 1.0, "counts": [2**40 + 1, 5]}
    assert numbers.read() == expected | {"nothing": {}, "norm": 2.5}
    assert PendingNumbers({}).have_arrived() and PendingNumbers({}).read() == {}


def test_numbers_are_those_of_the_moment(late_device: Any):
    loss = torch.tensor(1.0)
    numbers = PendingNumbers({"loss": loss})
    loss.fill_(2.0)
    assert not numbers.have_arrived()
    late_device.catch_up()
    assert numbers.have_arrived() and numbers.read() == {"loss": 1.0} and late_device.waits == 0


# CUDA's events and pinned memory, played by others


class Event:
    clock = 0.0
    log: list[str] = []  # noqa: RUF012

    def __init__(self, enable_timing: bool = False) -> None:
        self.is_timing, self.is_complete = enable_timing, False

    def record(self, stream: Any) -> None:
        self.log.append(f"record on {stream}")
        self.at = Event.clock

    def query(self) -> bool:
        return self.is_complete

    def synchronize(self) -> None:
        self.log.append("wait")
        self.is_complete = True

    def elapsed_time(self, later: Event) -> float:
        assert self.is_timing and later.is_timing and self.is_complete and later.is_complete
        return later.at - self.at


class Pinned:
    def copy_(self, source: Any, non_blocking: bool = False) -> None:
        assert non_blocking
        Event.log.append("copy")

    def tolist(self) -> list[float]:
        Event.log.append("read")
        return [7.0]


class OnCuda:
    device = CUDA


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(pending, "_pinned", lambda source: Pinned())
    monkeypatch.setattr(Event, "log", [])
    return Event.log


def test_the_event_is_behind_the_copy_and_pinned_memory_is_read_behind_the_event(cuda: list[str]):
    source: Any = OnCuda()
    copy = pending.start_copy(source)
    assert isinstance(copy, CopyFromCuda) and not copy.is_complete()
    assert cuda == ["copy", "record on stream of cuda:0"]
    assert copy.numbers() == [7.0] and copy.is_complete()
    assert cuda[2:] == ["wait", "read"]


def test_seconds_are_those_of_the_device(cuda: list[str], monkeypatch: pytest.MonkeyPatch):
    earlier = Moment(CUDA)
    monkeypatch.setattr(Event, "clock", 250.0)  # milliseconds
    later = Moment(CUDA)
    assert not later.has_come()
    assert later.seconds_since(earlier) == 0.25 and later.has_come()


def test_what_lies_on_the_host_is_read_at_once(cuda: list[str]):
    assert isinstance(pending.start_copy(torch.ones(2)), CopyAtOnce)
    assert Moment(torch.device("cpu")).has_come() and cuda == []


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_nothing_is_waited_for():
    def values() -> dict[str, Tensor]:
        return {name: torch.full((), float(place), device="cuda") for place, name in enumerate("abc")}

    PendingNumbers(values()).read()  # the first one allocates
    busy = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        began = Moment(busy.device)
        for _ in range(20):
            torch.mm(busy, busy)
        numbers, ended = PendingNumbers({**values(), "host": torch.tensor(9.0)}), Moment(busy.device)
        assert not numbers.have_arrived() and not ended.has_come()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert numbers.read() == {"a": 0.0, "b": 1.0, "c": 2.0, "host": 9.0}
    assert ended.seconds_since(began) > 1e-3
