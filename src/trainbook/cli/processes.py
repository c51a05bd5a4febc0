"""--nproc and --max-restarts: the same command as several processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from trainbook.errors import UserError

Nproc = Annotated[
    int,
    typer.Option(
        "--nproc",
        min=1,
        metavar="N",
        help="Train with N processes on this machine, one per GPU. They share the global batch.",
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        metavar="N",
        help="If a process dies, restart all of them from the newest checkpoint, up to N times.",
    ),
]


def are_to_be_started(nproc: int, max_restarts: int) -> bool:
    """Whether this process only starts others. A rank of somebody else's launch must not."""
    if nproc == 1 and max_restarts == 0:
        return False
    option = "--nproc" if nproc > 1 else "--max-restarts"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        raise UserError(
            f"{option}: must not be given to a process that is already one of several, but the environment has "
            f"RANK={rank} and WORLD_SIZE={world}. Leave {option} out: a launcher started this process."
        )
    from trainbook.parallel.ranks import slurm_tasks

    if (tasks := slurm_tasks()) > 1:
        raise UserError(
            f"{option}: must not be given to a process that is already one of several, but srun has started {tasks} "
            f"tasks. Leave {option} out, or start one task."
        )
    return True


def is_restarted() -> bool:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def start(arguments: Sequence[str], nproc: int, max_restarts: int) -> None:
    """Never returns: the exit code is that of the processes."""
    from trainbook.parallel.launcher import run_processes
    from trainbook.supervisor import python_module

    command = [*python_module("trainbook.cli.worker"), *arguments]
    raise typer.Exit(run_processes(command, nproc, max_restarts=max_restarts))
