"""The checkpoints folder: what it holds, which checkpoint is newest and best, which may be deleted.

    step-00000500/           a checkpoint; one that is complete never changes, but for its mark
    step-00000500/best-…     an empty file: this one is the best; the highest number counts
    index.json               latest, best and steps for other readers; never believed here
    .writing-NAME-PID        not finished: of no value
    .replaced-NAME-PID       the former NAME while a new one takes its place
    .deleting-NAME-PID       given up; some of it may be gone

Only one process may write to the folder at a time; the caller ensures that. Any number may read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainbook.bounded.files import read_bytes
from trainbook.checkpoints.folder import (
    Damaged,
    Marker,
    NewCheckpoint,
    check_sizes,
    read_marker,
    remove,
    replace_file,
    write_file,
)
from trainbook.contained import fsync_folder

INDEX = "index.json"
_STEP = re.compile(r"step-(\d{8,})")
_HIDDEN = re.compile(r"\.(writing|replaced|deleting)-(.+)-(\d+)")
_BEST = re.compile(r"best-(\d{8,})")


@dataclass(frozen=True)
class CheckpointEntry:
    step: int
    path: Path
    marker: Marker | None  # None: there is no telling what the folder holds
    damage: str  # "" when all files are there in their right sizes; their content is judged when it is read
    best_mark: int  # 0: never marked


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def hidden_path(folder: Path, what: str, name: str) -> Path:
    return folder / f".{what}-{name}-{os.getpid()}"


def scan(folder: Path) -> list[CheckpointEntry]:
    """Newest first, by the order of writing: after going back to an older step, its successors are the newest."""
    paths: dict[int, Path] = {}
    names = _names(folder)
    for name in names:
        hidden = _HIDDEN.fullmatch(name)
        # A writer that died between the two renames of a replacement left the former checkpoint under this name.
        visible = hidden.group(2) if hidden and hidden.group(1) == "replaced" else name
        match = _STEP.fullmatch(visible)
        if match and visible == step_name(int(match.group(1))) and (name == visible or visible not in names):
            paths[int(match.group(1))] = folder / name
    entries = [_entry(step, path) for step, path in paths.items()]
    unknown = max((entry.marker.save_number for entry in entries if entry.marker), default=0) + 1
    return sorted(entries, key=lambda e: (e.marker.save_number if e.marker else unknown, e.step), reverse=True)


def complete(entries: Iterable[CheckpointEntry]) -> list[CheckpointEntry]:
    return [entry for entry in entries if not entry.damage]


def has_changed(entry: CheckpointEntry) -> bool:
    """Whether a writer has removed the checkpoint or put another in its place since it was listed."""
    try:
        return read_marker(entry.path) != entry.marker
    except Damaged:
        return not entry.path.exists()


def best_of(entries: Iterable[CheckpointEntry]) -> CheckpointEntry | None:
    marked = [entry for entry in entries if entry.best_mark]
    return max(marked, key=lambda entry: entry.best_mark, default=None)


class Addition:
    """A checkpoint that is written beside the others and then gets its name. Before that, no reader can see it."""

    def __init__(self, folder: Path, step: int, *, is_best: bool) -> None:
        self.folder, self.step, self.is_best = folder, step, is_best
        self.path = folder / step_name(step)
        self._writing = hidden_path(folder, "writing", self.path.name)

    def begin(self) -> tuple[Path, int]:
        """An empty folder to write to, and the number of this save."""
        entries = scan(self.folder)
        remove(self._writing)
        os.mkdir(self._writing)
        former_best = best_of(entries)
        if self.is_best:
            _write_mark(self._writing, entries)
        elif former_best is not None and former_best.step == self.step:
            # The same step trained again is still the best one known.
            _write_mark(self._writing, [], former_best.best_mark)
        return self._writing, max((entry.marker.save_number for entry in entries if entry.marker), default=0) + 1

    def finish(self) -> None:
        _give_name(self._writing, self.path)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            remove(self._writing)


def add(addition: Addition, new: NewCheckpoint) -> Marker:
    try:
        marker = new.write(*addition.begin())
        addition.finish()
    except BaseException:
        addition.abandon()
        raise
    return marker


def mark_best(entry: CheckpointEntry, entries: Sequence[CheckpointEntry]) -> None:
    if best_of(entries) is not entry:
        _write_mark(entry.path, entries)
        fsync_folder(entry.path)


def drop_old_marks(folder: Path) -> None:
    entries = scan(folder)
    best = best_of(entries)
    for entry in entries:
        for number in _marks(entry.path):
            if (entry, number) != (best, entry.best_mark):
                os.unlink(entry.path / _mark_name(number))


def rotate(folder: Path, limit: int | None) -> list[int]:
    """Keeps the newest `limit` complete checkpoints and the best one; damaged ones are not deleted."""
    entries = scan(folder)
    spare = {entry.step for entry in complete(entries)[limit:]} if limit is not None else set()
    best = best_of(entries)
    removed = [entry for entry in entries if entry.step in spare and entry is not best]
    for entry in reversed(removed):
        deleting = hidden_path(folder, "deleting", step_name(entry.step))
        os.rename(entry.path, deleting)
        fsync_folder(folder)  # the name must be gone for good before the first file is
        remove(deleting)
    return sorted(entry.step for entry in removed)


def write_index(folder: Path) -> None:
    entries = scan(folder)
    whole = complete(entries)
    best = best_of(whole)
    content = {
        "latest": whole[0].step if whole else None,
        "best": best.step if best else None,
        "steps": sorted(entry.step for entry in whole),
    }
    wanted = (json.dumps(content) + "\n").encode()
    path = folder / INDEX
    if not path.is_file() or read_bytes(path) != wanted:
        temporary = hidden_path(folder, "writing", INDEX)
        remove(temporary)
        replace_file(path, temporary, wanted)


def clear_leftovers(folder: Path) -> None:
    """Cleans up after a writer that died. Files of another live process stay."""
    for name in _names(folder):
        hidden = _HIDDEN.fullmatch(name)
        if hidden is None or _is_another_process(int(hidden.group(3))):
            continue
        what, visible = hidden.group(1), folder / hidden.group(2)
        if what == "replaced" and not os.path.lexists(visible):
            os.rename(folder / name, visible)
            fsync_folder(folder)
        else:
            remove(folder / name)


def _entry(step: int, path: Path) -> CheckpointEntry:
    marker, damage = None, ""
    try:
        marker = read_marker(path)
        if marker.step != step:
            raise Damaged(f"it holds step {marker.step}, which does not match its name")
        check_sizes(path, marker)
    except Damaged as error:
        damage = str(error)
    return CheckpointEntry(step, path, marker, damage, max(_marks(path), default=0))


def _give_name(written: Path, final: Path) -> None:
    """A folder can't be renamed over another one, so the former one steps aside under a name that readers know.

    It is a leftover as soon as the new one has the name, and goes with the others.
    """
    aside = None
    if os.path.lexists(final):
        aside = hidden_path(final.parent, "replaced", final.name)
        remove(aside)
        os.rename(final, aside)
    try:
        os.rename(written, final)
    except BaseException:
        if aside is not None and not os.path.lexists(final):
            os.rename(aside, final)
        raise
    fsync_folder(final.parent)


def _write_mark(folder: Path, entries: Iterable[CheckpointEntry], number: int | None = None) -> None:
    if number is None:
        number = max((entry.best_mark for entry in entries), default=0) + 1
    write_file(folder / _mark_name(number), [])


def _marks(folder: Path) -> list[int]:
    return [int(match.group(1)) for match in map(_BEST.fullmatch, _names(folder)) if match]


def _mark_name(number: int) -> str:
    return f"best-{number:08d}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_another_process(pid: int) -> bool:
    if pid == os.getpid():  # process numbers repeat, in containers above all
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
