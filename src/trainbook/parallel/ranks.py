"""The processes of a run, and how they exchange values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainbook.errors import RunError, UserError
from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.parallel.rank_env import RankEnv

Value = TypeVar("Value")
SIDE_GROUP_LIMIT = timedelta(minutes=30)


class Ranks:
    """The first rank is the only one that writes files. With one process there is no communication."""

    def __init__(
        self, place: RankEnv, group: dist.ProcessGroup | None = None, limit: timedelta = SIDE_GROUP_LIMIT
    ) -> None:
        """`group` is the process group; None: that of training. `limit` is its timeout in seconds."""
        self.rank, self.local_rank, self.world = place.rank, place.local_rank, place.world
        self.local_world = place.local_world
        self.group = group
        self._place, self._limit = place, limit

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        return self.world > 1

    @cached_property
    def side_group(self) -> Ranks:
        """The same ranks over a group of their own, for what goes on beside the training. All must ask together."""
        if not self.are_several:
            return self
        # Disks differ more than devices: a rank that still writes is given longer than one that computes.
        limit = max(self._limit, SIDE_GROUP_LIMIT)
        group = dist.new_group(backend="gloo", timeout=limit)
        return Ranks(self._place, cast(dist.ProcessGroup, group), limit)

    def add_up(self, tensor: Tensor) -> Tensor:
        """In place, over all ranks. The host does not wait for it."""
        if self.are_several:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, value: Value) -> list[Value]:
        """Each rank's value, in order of rank. Any picklable thing; the hosts wait for each other."""
        if not self.are_several:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, value: Value) -> Value:
        """The first rank's value."""
        if not self.are_several:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0, group=self.group)
        return told[0]


ALONE = Ranks(RankEnv())


@contextmanager
def joined(place: RankEnv, knobs: DistributedKnobs, device: str) -> Iterator[Ranks]:
    """All processes of the run, joined. A single process joins no group, unless its strategy needs one."""
    if place.world == 1 and knobs.strategy in ("auto", "single"):
        yield Ranks(place)
        return
    if device == "cuda":
        here = torch.cuda.device_count()
        if place.local_rank >= here:
            raise UserError(
                f"distributed.strategy: needs a GPU for each process of a machine, but this is process "
                f"{place.local_rank + 1} and PyTorch sees {here}."
            )
        torch.cuda.set_device(place.local_rank)
    store = dist.HashStore() if place.world == 1 else None  # nobody has to be met, and perhaps nobody said where
    if place.address is not None:
        os.environ.setdefault("MASTER_ADDR", place.address)
        os.environ.setdefault("MASTER_PORT", str(place.port))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    limit = timedelta(seconds=knobs.timeout)
    try:
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world, timeout=limit)
    except (ValueError, RuntimeError) as error:
        raise RunError(
            f"the {place.world} processes of this run could not connect: {str(error).splitlines()[0]} Whoever starts "
            "them must set MASTER_ADDR and MASTER_PORT, as torchrun and trainbook --nproc do."
        ) from error
    try:
        yield Ranks(place, limit=limit)
    finally:
        _leave()


def _leave() -> None:
    """By way of DeepSpeed where it has joined too: it remembers groups, which the next run would be given."""
    engine = sys.modules.get("deepspeed.comm")
    (engine if engine is not None and engine.is_initialized() else dist).destroy_process_group()


def is_timeout(error: BaseException) -> bool:
    """Whether a collective timed out because a rank did not take part."""
    said = str(error).lower()
    return isinstance(error, RuntimeError) and ("timed out" in said or "timeout" in said)
