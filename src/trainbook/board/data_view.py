"""Reports on data that lie in the sources: what `trainbook data … --json` wrote to a file there."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainbook.board.answers import text_of
from trainbook.bounded import json_text
from trainbook.errors import TrainbookError

MOST_BYTES = 32 << 20
MOST_FILES = 200  # of a source, that are looked at
MOST_SAMPLES = 200
LONGEST = 4_000
IS_REPORT = {"source", "task", "sides", "findings"}

Facts = dict[str, Any]


class DataReports:
    """A file is read again only when it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], Facts | None]] = {}
        self._lock = threading.Lock()

    def all(self, sources: Sequence[tuple[str, Path]]) -> list[Facts]:
        with self._lock:
            found = [(name, path) for name, root in sources for path in _candidates(root)]
            self._known = {path: self._known[path] for _, path in found if path in self._known}
            told = [(name, path, self._report(path)) for name, path in found]
        return [_shown(name, path, facts) for name, path, facts in told if facts is not None]

    def _report(self, path: Path) -> Facts | None:
        seen = os.lstat(path)
        stamp = seen.st_mtime_ns, seen.st_size
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = stamp, _read(path)
        return known[1]


def _candidates(root: Path) -> Iterator[Path]:
    """JSON files of a source itself and of its folders; those of runs and studies are none."""
    if not root.is_dir():
        return
    count = 0
    for folder in [root, *_folders(root)]:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith(".json") and _is_small_file(entry):
                yield Path(entry.path)
                count += 1
                if count == MOST_FILES:
                    return


def _folders(root: Path) -> list[Path]:
    found = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            names = set(os.listdir(entry.path))
            if not names & {"manifest.json", "base.yaml"}:
                found.append(Path(entry.path))
    return found


def _is_small_file(entry: os.DirEntry[str]) -> bool:
    facts = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(facts.st_mode) and facts.st_size <= MOST_BYTES


def _read(path: Path) -> Facts | None:
    try:
        found = json_text.read(path, most=MOST_BYTES)
    except (OSError, ValueError, TrainbookError):
        return None
    return found if isinstance(found, dict) and found.keys() >= IS_REPORT else None


def _shown(source: str, path: Path, facts: Facts) -> Facts:
    return {
        "name": text_of(path.stem, 300),
        "source": source,
        "updated": datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds"),
        "facts": facts,
        "samples": list(_samples(facts)),
    }


def _samples(facts: Facts) -> Iterator[Facts]:
    """Every example that the report has with its text."""
    sides = facts.get("sides")
    count = 0
    for split, side in sides.items() if isinstance(sides, dict) else ():
        for what, example in _examples(side, ""):
            yield {
                "split": text_of(split, 60),
                "id": example.get("document"),
                "place": text_of(example.get("place"), 300),
                "reason": what,
                "text": text_of(example.get("text", example.get("example")), LONGEST),
            }
            count += 1
            if count == MOST_SAMPLES:
                return


def _examples(value: Any, what: str) -> Iterator[tuple[str, Facts]]:
    if isinstance(value, dict):
        if isinstance(value.get("text", value.get("example")), str):
            yield what, value
        for name, item in value.items():
            yield from _examples(item, what if name in ("examples", "others") else text_of(name, 60).replace("_", " "))
    elif isinstance(value, list):
        for item in value:
            yield from _examples(item, what)
