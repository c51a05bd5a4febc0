"""Messages about checkpoints that could not be written or read."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainbook.checkpoints import catalogue
from trainbook.checkpoints.folder import free_bytes, human_bytes, is_full_disk, plain_words
from trainbook.errors import CheckpointError


class New(Protocol):
    """A checkpoint about to be written."""

    step: int
    bytes_needed: int


def refuse_if_too_large(folder: Path, new: New) -> None:
    try:
        free = free_bytes(folder)
    except OSError as error:
        raise not_written(folder, new, error) from error
    if free is not None and free < new.bytes_needed:
        raise not_written(folder, new, OSError(errno.ENOSPC, "nothing was written"))


def not_written(folder: Path, new: New, error: BaseException, rank: int = 0) -> CheckpointError:
    """`rank` is the one that met the error, if several write together."""
    if isinstance(error, CheckpointError):
        return error
    cause = plain_words(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    if rank:
        cause = f"on rank {rank}, {cause}"
    if isinstance(error, OSError) and is_full_disk(error):
        cause = f"{cause}: it needs {human_bytes(new.bytes_needed)} and {_room(folder)} free"
    path = folder / catalogue.step_name(new.step)
    return CheckpointError(
        f"The checkpoint of step {new.step} could not be written to {path}: {cause}. {last_complete(folder)}"
    )


def _room(folder: Path) -> str:
    try:
        free = free_bytes(folder)
    except OSError:
        free = None
    return "an unknown amount is" if free is None else f"{human_bytes(free)} is"


def last_complete(folder: Path) -> str:
    whole = catalogue.complete(catalogue.scan(folder))
    if not whole:
        return f"There is no complete checkpoint in {folder}."
    return f"The last complete checkpoint is that of step {whole[0].step}, {whole[0].path}."


def absent(folder: Path, step: int, entries: Sequence[catalogue.CheckpointEntry]) -> str:
    damaged = next((entry for entry in entries if entry.step == step), None)
    if damaged is not None:
        return f"{damaged.path} is damaged: {damaged.damage}."
    steps = ", ".join(str(entry.step) for entry in sorted(entries, key=lambda e: e.step)) or "no checkpoints"
    return f"{folder} has no checkpoint of this step; it has {steps}."


def all_damaged(which: str | int, damaged: Mapping[Path, str]) -> str:
    listed = "\n".join(f"  {path}: {reason}" for path, reason in damaged.items())
    if which == "latest":
        return f"No checkpoint can be loaded: all are damaged:\n{listed}"
    return f"The requested checkpoint ({which}) is damaged:\n{listed}"


def warn(kind: str, facts: Mapping[str, Any]) -> None:
    if kind == "checkpoint_damaged":
        warnings.warn(f"The checkpoint {facts['path']} is damaged and not used: {facts['reason']}", stacklevel=3)
    elif kind == "checkpoint_upkeep_failed":
        warnings.warn(f"Cleaning up the checkpoints in {facts['path']} failed: {facts['reason']}", stacklevel=3)
