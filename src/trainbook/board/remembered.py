"""What the index knew when it was last asked, so that thousands of runs need not be read again at each start.

In a file of the user's own, in $XDG_CACHE_HOME/trainbook/board; it can be deleted at any time. A row is used only if
all files of its run are as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainbook.board.answers import plain
from trainbook.board.finding_runs import Stamp
from trainbook.bounded.files import read_bytes
from trainbook.contained import create_anew, replacing
from trainbook.errors import TrainbookError
from trainbook.runs.jsonl import loads

FORMAT = 6
MOST_BYTES = 256 << 20

Rows = dict[str, tuple[Stamp, dict[str, Any]]]


def folder() -> Path | None:
    """None: there is no place that is known to be the user's own."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "trainbook" / "board"
    home = os.environ.get("HOME", "")
    return Path(home) / ".cache" / "trainbook" / "board" if os.path.isabs(home) else None


def recall(source: Path) -> Rows:
    """The rows of a source, by the ids that its runs had."""
    path = _path(source)
    if path is None:
        return {}
    try:
        found = loads(read_bytes(path, MOST_BYTES))["rows"]
        return {id: (_stamp(stamp), row) for id, (stamp, row) in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TrainbookError):
        return {}


def remember(source: Path, rows: Mapping[str, tuple[Stamp, dict[str, Any]]]) -> None:
    """What cannot be written is read again next time."""
    path = _path(source)
    if path is None or not rows:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as temporary, open(create_anew(temporary), "w", encoding="utf-8") as file:
            json.dump({"rows": plain(rows)}, file, allow_nan=False)


def _path(source: Path) -> Path | None:
    place = folder()
    name = hashlib.sha256(f"{FORMAT} {os.fspath(source)}".encode(errors="surrogateescape")).hexdigest()[:24]
    return None if place is None else place / f"{name}.json"


def _stamp(found: Any) -> Stamp:
    return tuple(None if each is None else (int(each[0]), int(each[1]), int(each[2])) for each in found)
