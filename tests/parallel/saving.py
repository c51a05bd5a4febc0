"""What is put into a rank to see how its checkpoints are written and read."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainbook.checkpoints import CheckpointStore
from trainbook.checkpoints.sliced import SlicedCheckpoint
from trainbook.loop import guard_actions
from trainbook.loop.train import Training
from trainbook.parallel.strategy import Slice


@contextmanager
def put_in(case: dict[str, Any], ranks: Any, runs: Path, seen: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as held:
        if "full_disk_at" in case and ranks.rank == ranks.world - 1:
            held.enter_context(_when_it_writes(case["full_disk_at"], _find_no_room))
        if "die_at" in case and ranks.rank == ranks.world - 1:
            held.enter_context(_when_it_writes(case["die_at"], _die))
        if "flip" in case and ranks.is_first:
            flip_a_bit(runs / case["run"] / "checkpoints" / case["flip"])
        if "no_snapshots" in case:
            held.enter_context(_changed(guard_actions, "SHARE_OF_HOST", 0.0))
        if "weigh_saves" in case:
            held.enter_context(_weighed(seen))
        yield


@contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[Any]:
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield real
    finally:
        setattr(owner, name, real)


@contextmanager
def _when_it_writes(step: int, happen: Callable[[], None]) -> Iterator[None]:
    real = SlicedCheckpoint.write

    def write(self: SlicedCheckpoint, *given: Any) -> Any:
        if self.step == step:
            happen()
        return real(self, *given)

    with _changed(SlicedCheckpoint, "write", write):
        yield


def _find_no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@contextmanager
def _weighed(seen: dict[str, Any]) -> Iterator[None]:
    """Bytes of this rank's largest save; and tensors are exchanged by none of them."""
    seen["saved"] = 0
    save, store = Training.save, CheckpointStore.save

    def no_exchange(*given: Any, **named: Any) -> Any:
        raise AssertionError("a save brings no tensors together")

    def alone(self: Training) -> None:
        with ExitStack() as held:
            held.enter_context(_changed(DTensor, "full_tensor", no_exchange))
            held.enter_context(_changed(DTensor, "redistribute", no_exchange))
            for name in ("all_gather_into_tensor", "all_gather", "broadcast", "gather"):
                held.enter_context(_changed(dist, name, no_exchange))
            save(self)

    def weigh(self: CheckpointStore, step: int, state: Mapping[str, Any], **named: Any) -> None:
        seen["saved"] = max(seen["saved"], _size(state["model"]) + _size(state["optimizer"]))
        store(self, step, state, **named)

    with _changed(Training, "save", alone), _changed(CheckpointStore, "save", weigh):
        yield


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    tensor = value.values if isinstance(value, Slice) else value
    return tensor.nbytes if isinstance(tensor, Tensor) else 0
