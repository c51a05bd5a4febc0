"""What a person may do to a run, where the board was started with --allow-actions."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainbook.board.answers import Refused
from trainbook.board.board import Board
from trainbook.board.finding_runs import Place
from trainbook.runs import RunFolder, disk
from trainbook.runs.labels import change_labels
from trainbook.runs.removal import delete_run, extent_of, find_deletable

MOST_TRIES = 2  # remedies that are tried at once

Facts = dict[str, Any]


def act(board: Board, place: Place, name: str, asked: Facts) -> Facts:
    if place.kind != "run":
        raise Refused(400, "only runs of Trainbook can be changed.")
    action = ACTIONS.get(name)
    if action is None:
        raise Refused(404, f"there is no action {name[:40]!r}.")
    told = action(board, place, asked)
    board.records.forget(place.id)
    board.index.look_again()
    return told


def _stop(board: Board, place: Place, asked: Facts) -> Facts:
    """As Ctrl-C there: the run finishes its step, saves a checkpoint and ends."""
    folder = RunFolder(place.path)
    holder = disk.read_holder(folder.lock_file)
    if holder is None:
        raise Refused(409, "no process trains this run.")
    if holder.host != socket.gethostname():
        raise Refused(409, f"this run is trained by {holder}: stop it there.")
    interrupt_holder(folder, holder.pid)
    return {"done": f"process {holder.pid} was asked to stop: it finishes its step and saves a checkpoint."}


def interrupt_holder(folder: RunFolder, pid: int) -> None:
    """The process is named before it is looked at, so that another that takes over its number is not meant."""
    if not hasattr(os, "pidfd_open"):
        raise Refused(409, "on this system a process cannot be told for sure: stop it with Ctrl-C where it runs.")
    try:
        process = os.pidfd_open(pid)
    except OSError:
        raise Refused(409, "the process of this run is gone.") from None
    try:
        if pid == os.getpid() or not _holds(pid, folder):
            raise Refused(
                409, f"process {pid} does not train this run: its lock says so, but the file is not open there."
            )
        with suppress(OSError, ValueError):  # then the run says Ctrl-C
            disk.note_who_stops(folder.lock_file, "the board")
        signal.pidfd_send_signal(process, signal.SIGINT)
    except ProcessLookupError:
        raise Refused(409, "the process of this run is gone.") from None
    except PermissionError:
        raise Refused(403, f"process {pid} belongs to another user.") from None
    finally:
        os.close(process)


def _holds(pid: int, folder: RunFolder) -> bool:
    """Whether the process has the run's lock file open."""
    lock = os.stat(folder.lock_file)
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return False
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (lock.st_dev, lock.st_ino):
            return True
    return False


def _tag(board: Board, place: Place, asked: Facts) -> Facts:
    labels = change_labels(place.path, add=_texts(asked, "add"), remove=_texts(asked, "remove"))
    return {"tags": list(labels.tags)}


def _note(board: Board, place: Place, asked: Facts) -> Facts:
    return {"note": change_labels(place.path, note=_note_in(asked)).note}


def _label(board: Board, place: Place, asked: Facts) -> Facts:
    """Tags and note at once: all of them, or none."""
    add, remove, note = _texts(asked, "add"), _texts(asked, "remove"), _note_in(asked)
    labels = change_labels(place.path, add=add, remove=remove, note=note)
    return {"tags": list(labels.tags), "note": labels.note}


def _note_in(asked: Facts) -> str:
    note = asked.get("note")
    if not isinstance(note, str):
        raise Refused(400, "note: must be a text.")
    return note


def _archive(board: Board, place: Place, asked: Facts) -> Facts:
    archived = asked.get("archived", True)
    if not isinstance(archived, bool):
        raise Refused(400, "archived: must be true or false.")
    return {"archived": change_labels(place.path, archived=archived).archived}


def _delete(board: Board, place: Place, asked: Facts) -> Facts:
    """The name has to be repeated. Without it: what would be deleted."""
    folder = find_deletable(place.path)
    extent = extent_of(folder)
    if asked.get("confirm") != folder.name:
        raise Refused(
            409,
            f"to delete {folder.name} with {extent.files:,} files, confirm with its name.",
            confirm=folder.name,
            files=extent.files,
            bytes=extent.bytes,
        )
    delete_run(folder)
    return {"deleted": folder.name, "files": extent.files, "bytes": extent.bytes}


def _try(board: Board, place: Place, asked: Facts) -> Facts:
    """`trainbook doctor RUN --try` in a process of its own; its runs appear beside this one."""
    rule = asked.get("rule")
    if rule is not None and (not isinstance(rule, str) or not rule.replace("-", "").isalnum()):
        raise Refused(400, "rule: must be the name of a rule.")
    board.tries = [each for each in board.tries if each.poll() is None]
    if len(board.tries) >= MOST_TRIES:
        raise Refused(409, f"{MOST_TRIES} remedies are being tried already: wait for one of them to end.")
    words = ["doctor", str(place.path), "--try", *(["--finding", rule] if rule else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainbook", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    board.tries.append(process)
    return {"started": shlex.join(["trainbook", *words]), "process": process.pid}


def _texts(asked: Facts, name: str) -> list[str]:
    found = asked.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Refused(400, f"{name}: must be a list of texts.")
    return found


ACTIONS: Mapping[str, Callable[[Board, Place, Facts], Facts]] = {
    "stop": _stop,
    "tag": _tag,
    "note": _note,
    "label": _label,
    "archive": _archive,
    "delete": _delete,
    "try": _try,
}
