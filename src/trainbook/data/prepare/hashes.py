"""What files contain, as hashes that are remembered: a file that was not touched is not read again to be known."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.contained import replacing

# A file that was written this shortly before it was read may be written again without its time changing.
SETTLED_NANOSECONDS = 2_000_000_000

Facts = list  # size, time of writing, time of the last change of any kind, inode, hash


class Hashes:
    """Kept in books, such as one for the files of a folder; `save` writes what is new, each writer into files of its
    own, and all of them are read.

    A hash is believed while size, times and inode of its file are what they were. To lose some of them costs a reading
    and no more.
    """

    def __init__(self, folder: Path, writer: int = 0) -> None:
        self.folder, self.writer = folder, writer
        self._known: dict[str, dict[str, Facts]] = {}
        self._new: dict[str, dict[str, Facts]] = defaultdict(dict)

    def of(self, path: Path, book: str) -> tuple[int, str]:
        """The size of a file and the SHA-256 of its contents."""
        name = os.path.abspath(path)
        facts = self._in(book).get(name)
        if facts is not None and facts[:-1] == _state(os.stat(path)):
            return facts[0], facts[-1]
        began = time.time_ns()
        with open_bytes(path) as stream:
            state = _state(os.fstat(stream.fileno()))
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            after = _state(os.fstat(stream.fileno()))
        if state == after and max(state[1], state[2]) < began - SETTLED_NANOSECONDS:
            self._in(book)[name] = self._new[book][name] = [*state, digest]
        return state[0], digest

    def save(self) -> None:
        for book, found in self._new.items():
            path = self.folder / f"{_file_name(book)}-{self.writer}.json"
            with suppress(OSError):  # where the cache cannot be written, the cache itself says so
                self.folder.mkdir(parents=True, exist_ok=True)
                with replacing(path, shared=True) as partial:
                    partial.write_text(json.dumps({**_read(path), **found}), encoding="utf-8")
        self._new.clear()

    def _in(self, book: str) -> dict[str, Facts]:
        if book not in self._known:
            self._known[book] = {}
            for path in sorted(self.folder.glob(f"{_file_name(book)}-*.json")):
                self._known[book] |= _read(path)
        return self._known[book]


def _file_name(book: str) -> str:
    return hashlib.sha256(book.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _read(path: Path) -> dict[str, Facts]:
    try:
        found = json_text.read(path)
        return {name: facts for name, facts in found.items() if len(facts) == 5}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _state(found: os.stat_result) -> Facts:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


# Random numbers that depend on names and numbers alone, never on what was drawn before.


def generator(purpose: str, *numbers: int) -> np.random.Generator:
    """A generator of its own for each purpose and tuple of numbers, such as ("order", seed, epoch)."""
    name = ":".join([purpose, *map(str, numbers)])
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little"))
    )
