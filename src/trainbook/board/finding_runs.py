"""Which folders below a source hold runs and studies: found once, and again where a folder has changed.

No link is followed, so that nothing outside of the sources is shown.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainbook.runs.foreign.huggingface import STATE
from trainbook.runs.foreign.tensorboard import MARK

MOST_DEPTH = 6  # folders below a source
MOST_RUNS = 20_000
SETTLED = 2.0  # seconds: a folder changed later than so long ago may change again within one tick of its clock
LABELS = "board.json"
OWN_FILES = ("manifest.json", "metrics.jsonl", "events.jsonl", LABELS)
ANSWERS = ("study.json", "ablation.json", "transfer.json", "answer.json")
STUDY_FILES = ("base.yaml", "question.json", *ANSWERS)
OF_A_STUDY = {"question.json", "study.db", "trials", *ANSWERS}
NEVER_RUNS = ("checkpoints", "tokenizer", "network", "tensorboard", "__pycache__")

_IN_NUMBERS = re.compile("[\x00-\x20~!%/\\\\?#&+;\x7f-\xa0\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")

Kind = Literal["run", "foreign", "study"]
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Place:
    """A run or study: where it lies, and what it is called in addresses."""

    id: str
    kind: Kind
    path: Path
    source: int
    study: str | None = None  # the id of the study that it belongs to
    logs: tuple[str, ...] = ()  # of a run of another tool: the files that grow

    def stamp(self) -> Stamp:
        """What changes whenever one of its files does."""
        names = {"run": OWN_FILES, "study": STUDY_FILES, "foreign": self.logs}[self.kind]
        return tuple(_stamp(os.path.join(self.path, name) if name else str(self.path)) for name in names)


def judged_stamp(place: Place, stamp: Stamp) -> Stamp:
    """Without tags and notes, which the doctor does not read."""
    return (
        tuple(each for name, each in zip(OWN_FILES, stamp, strict=True) if name != LABELS)
        if place.kind == "run"
        else stamp
    )


@dataclass
class _Folder:
    modified: int
    looked: float
    kind: Kind | None
    children: list[str] = field(default_factory=list)
    logs: tuple[str, ...] = ()


class Places:
    """The runs and studies of a source."""

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.number = root, number
        self._folders: dict[str, _Folder] = {}

    def look(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        if self.root.is_file():
            place = Place(f"{self.number}~{part_of_id(self.root.name)}", "foreign", self.root, self.number, logs=("",))
            return {place.id: place}
        seen: set[str] = set()
        for place in self._visit(str(self.root), str(self.number), 0, None, seen):
            if len(found) >= MOST_RUNS:
                break
            found.setdefault(place.id, place)
        for gone in self._folders.keys() - seen:
            del self._folders[gone]
        return found

    def _visit(self, path: str, name: str, depth: int, study: str | None, seen: set[str]) -> Iterator[Place]:
        folder = self._folder(path)
        if folder is None:
            return
        seen.add(path)
        if folder.kind is not None:
            yield Place(name, folder.kind, Path(path), self.number, study, folder.logs)
        if folder.kind == "study":
            study = name
        if folder.kind in ("run", "foreign") or depth == MOST_DEPTH:
            return
        for child in folder.children:
            yield from self._visit(os.path.join(path, child), f"{name}~{part_of_id(child)}", depth + 1, study, seen)

    def _folder(self, path: str) -> _Folder | None:
        try:
            modified = os.stat(path, follow_symlinks=path == str(self.root)).st_mtime_ns
        except OSError:
            return None
        known = self._folders.get(path)
        if known is not None and known.modified == modified and known.looked - modified / 1e9 > SETTLED:
            return known
        try:
            entries = list(os.scandir(path))
        except OSError:
            return None
        folder = _Folder(modified, time.time(), *_what_is_in(entries))
        self._folders[path] = folder
        return folder


def holds_one_run(path: Path) -> bool:
    """Or one study: whether the folder is itself what is shown."""
    return path.is_dir() and _what_is_in(list(os.scandir(path)))[0] is not None


def _what_is_in(entries: list[os.DirEntry[str]]) -> tuple[Kind | None, list[str], tuple[str, ...]]:
    files = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    if "manifest.json" in files or {"config.yaml", "metrics.jsonl"} <= files:
        return "run", [], ()
    children = [name for name in folders if not name.startswith(".") and name not in NEVER_RUNS]
    if "base.yaml" in files and OF_A_STUDY & (files | set(folders)):
        return "study", children, ()
    if logs := _foreign_logs(files, children):
        return "foreign", [], logs
    return None, children, ()


def _foreign_logs(files: set[str], folders: list[str]) -> tuple[str, ...]:
    """As `runs.foreign` looks for them: what tells most comes first."""
    if STATE in files:
        return (STATE,)
    if states := [f"{name}/{STATE}" for name in folders if name.startswith("checkpoint-")]:
        return tuple(states)
    if "metrics.csv" in files:
        return ("metrics.csv",)
    if logs := sorted(name for name in files if name.endswith(".wandb")):
        return tuple(logs)
    return tuple(sorted(name for name in files if MARK in name))


def part_of_id(name: str) -> str:
    """A name as a part of an id, in which ~ stands between folders. What addresses or browsers treat in their own way
    is written as the numbers of its bytes."""
    return _IN_NUMBERS.sub(lambda found: "".join(f"!{byte:02X}" for byte in os.fsencode(found[0])), name)


def _stamp(path: str) -> tuple[int, int, int] | None:
    """None: it is not there, or is no regular file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
