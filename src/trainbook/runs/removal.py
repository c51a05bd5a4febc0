"""Deleting a run: a run folder that no process writes in, with all that lies in it and nothing else.

Links are removed, never followed. The manifest goes last, so that what an interruption leaves is still a run and can be
deleted again.
"""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from trainbook.errors import RunError, RunFolderError, RunInUse
from trainbook.runs import disk
from trainbook.runs.folder import RunFolder

KEPT_LONGEST = ("manifest.json", "lock")


@dataclass(frozen=True)
class Extent:
    """What would be deleted."""

    files: int
    bytes: int


def find_deletable(run: str | Path, runs_dir: str | Path | None = None) -> RunFolder:
    """The run at this place, or of that name in `runs_dir`; RunFolderError: it must not be deleted."""
    folder = RunFolder.find(run, runs_dir)
    if folder.path.is_symlink():
        raise RunFolderError(f"{folder.path} is a link to {folder.path.resolve()}: delete the run there.")
    if folder.path.name != folder.name:  # as of `.`
        folder = RunFolder(os.path.abspath(folder.path))
    if nested := _nested_run(folder.path):
        raise RunFolderError(f"{folder.path} is not deleted, because it holds another run: {nested}.")
    _must_be_idle(folder)
    return folder


def extent_of(folder: RunFolder) -> Extent:
    sizes = [os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder.path) for name in names]
    return Extent(len(sizes), sum(sizes))


def delete_run(folder: RunFolder) -> None:
    """Of a folder that `find_deletable` has found."""
    path = folder.path
    try:
        with folder.lock():
            entries = sorted(os.scandir(path), key=lambda entry: entry.name in KEPT_LONGEST)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            os.rmdir(path)
    except OSError as error:
        told = f"{error.filename or path}: {error.strerror or error}"
        raise RunError(f"{path} was not deleted completely: {told}. Repeat the command when this is mended.") from None


def _must_be_idle(folder: RunFolder) -> None:
    """Also where a file system knows no locks, or the process is on another machine."""
    holder = disk.read_holder(folder.lock_file)
    if holder is not None and not holder.is_known_dead:
        is_elsewhere = holder.host != socket.gethostname()
        gone = f" If it is gone, remove {folder.lock_file} first." if is_elsewhere else ""
        raise RunInUse(f"{folder.path} is in use by {holder}: stop the run before it is deleted.{gone}")


def _nested_run(path: Path) -> str | None:
    """Another run inside, or a study."""
    for place, folders, names in os.walk(path):
        if place != str(path) and ("manifest.json" in names or "base.yaml" in names):
            return place
        if Path(place).parent == path and Path(place).name == "checkpoints":
            folders.clear()
    return None
