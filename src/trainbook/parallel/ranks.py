"""The processes of a run, and how they exchange values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trainbook.errors import RunError, UserError
from trainbook.knobs.sections.distributed import DistributedKnobs

# Rank and world size of this process, from the environment variables of its launcher.


DEFAULT_PORT = 29500


@dataclass(frozen=True)
class RankEnv:
    rank: int = 0
    local_rank: int = 0  # among those of this machine: which of its GPUs is ours
    world: int = 1
    local_world: int = 1  # of them on this machine: they share its memory
    address: str | None = None  # of the first one, where it cannot be found in MASTER_ADDR
    port: int | None = None


def find_rank_env(environment: Mapping[str, str] = os.environ) -> RankEnv:
    """torchrun, Kubeflow's PyTorchJob and Ray Train set RANK and WORLD_SIZE; Slurm's srun has its own names.

    A Slurm job with a single task, such as an interactive shell, counts as one process.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        # One process in each pod or machine need not say that it is the first there.
        local = _number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else 0
        here = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else 1
        return _checked(RankEnv(rank, local, world, here), "RANK", "WORLD_SIZE")
    if "SLURM_PROCID" in environment and (world := slurm_tasks(environment)) > 1:
        rank = _number(environment, "SLURM_PROCID")
        first = first_host(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
        # Jobs that share a machine must not meet at one port.
        port = DEFAULT_PORT + (_number(environment, "SLURM_JOB_ID") if "SLURM_JOB_ID" in environment else 0) % 10_000
        here = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as 4(x2),1
        local_world = int(here[0]) if here else world
        place = RankEnv(rank, _number(environment, "SLURM_LOCALID"), world, local_world, first, port)
        return _checked(place, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return RankEnv()


def slurm_tasks(environment: Mapping[str, str] = os.environ) -> int:
    """How many tasks srun has started beside this one, with it; 1 where it has started none."""
    return _number(environment, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in environment else 1


def first_host(nodes: str) -> str:
    """The first of a Slurm node list: `gpu[07-09,12],login1` begins with gpu07."""
    found = re.match(r"(?:[^\[,]|\[[^\]]*\])+", nodes.strip())  # up to a comma that is not in brackets
    if found is None:
        return "localhost"
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", found[0])


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdecimal():
        raise UserError(f"the environment variable {name} must be a whole number >= 0, but got {value!r}.")
    return int(value)


def _checked(place: RankEnv, rank: str, world: str) -> RankEnv:
    if not place.rank < place.world:
        raise UserError(f"the environment variable {rank} must be < {world}, but got {place.rank} of {place.world}.")
    return place


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
