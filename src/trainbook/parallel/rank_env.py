"""Rank and world size of this process, from the environment variables of its launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainbook.errors import UserError

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
