"""Logs that somebody drops on the page: kept in a temporary folder, and served as any run."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from starlette.requests import Request

from trainbook.board.answers import Refused, text_of
from trainbook.board.index import BROKEN, Index
from trainbook.runs.foreign import LOOKED_FOR, read_foreign
from trainbook.runs.foreign.huggingface import STATE
from trainbook.runs.foreign.tensorboard import MARK

MOST_BYTES = 512 << 20
MOST_FILES = 50
SOURCE = "dropped files"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class Uploads:
    """A folder of folders: one for each file, which is a run of another tool."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._root: Path | None = None

    def close(self) -> None:
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def new_place(self, given: str) -> Path:
        """The file to write to. Its name is made of harmless letters of the one that was given."""
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="trainbook-board-")).resolve()
            self._index.add_source(SOURCE, self._root)
        if len(list(self._root.iterdir())) >= MOST_FILES:
            raise Refused(413, f"at most {MOST_FILES} files can be dropped; start the board again for more.")
        name, stem = stored_name(given), _stem(given)
        free = (stem if number == 1 else f"{stem}-{number}" for number in range(1, MOST_FILES + 2))
        folder = next(self._root / each for each in free if not (self._root / each).exists())
        folder.mkdir()
        return folder / name

    def id_of(self, file: Path, given: str) -> str:
        """Refused: it is no log that can be read, and is removed. The message has the name under which it was given."""
        name = shown_name(given)
        try:
            problem = None if read_foreign(file.parent) is not None else f"{name} is no {LOOKED_FOR}."
        except BROKEN as error:
            problem = str(error).replace(f"{file}", name).replace(f"{file.parent}", name)
        if problem is not None:
            shutil.rmtree(file.parent, ignore_errors=True)
            raise Refused(400, problem if problem.startswith(name) else f"{name} cannot be read: {problem}")
        self._index.look_again()
        return next(row["id"] for row in self._index.summaries() if Path(row["path"]) == file.parent)


def shown_name(given: str) -> str:
    return text_of(_base_name(given), 100) or "the file"


def _base_name(given: str) -> str:
    return given.rpartition("/")[2].rpartition("\\")[2]


def stored_name(given: str) -> str:
    """As the readers look for them, whatever the file was called."""
    name = _base_name(given)
    if name.endswith(".json"):
        return STATE
    if name.endswith((".csv", ".tsv", ".txt")):
        return "metrics.csv"
    if name.endswith(".wandb"):
        return "run-dropped.wandb"
    if MARK in name:
        return f"events.out.{MARK}.0.dropped"
    raise Refused(400, f"{name[:80]!r} is no log that is known by its name. Looked for {LOOKED_FOR}.")


def _stem(given: str) -> str:
    name = _base_name(given)
    return _NOT_IN_NAMES.sub("-", name.rpartition(".")[0] or name).strip("-.")[:60] or "log"


async def receive(request: Request, uploads: Uploads) -> Path:
    """Written as it comes; what is too long is refused before it fills the disk."""
    given = request.query_params.get("name", "")
    too_long = Refused(413, f"{shown_name(given)}: must have at most {MOST_BYTES >> 20} MB.")
    if int(request.headers.get("content-length") or 0) > MOST_BYTES:
        raise too_long
    file = uploads.new_place(given)
    written = 0
    try:
        with open(file, "xb") as target:
            async for chunk in request.stream():
                written += len(chunk)
                if written > MOST_BYTES:
                    raise too_long
                target.write(chunk)
        if not written:
            raise Refused(400, f"{shown_name(given)}: the file is empty.")
    except BaseException:
        shutil.rmtree(file.parent, ignore_errors=True)
        raise
    return file
