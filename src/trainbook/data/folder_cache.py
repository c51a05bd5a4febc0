"""Folders that are made once, and believed only when they are whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.contained import is_plain_name, must_stay_inside
from trainbook.data.hashes import Hashes
from trainbook.data.sources.files import hashed
from trainbook.errors import LeadsOut

FACTS_FILE = "facts.json"

Files = dict[str, list[Any]]  # by name: size and hash


def digest_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


class FolderCache:
    """A folder for each key. What is on it says of each of its files how large it is and what it contains."""

    def __init__(self, folder: Path, hashes: Hashes) -> None:
        self.folder, self.hashes = folder, hashes

    def place(self, key: str) -> Path:
        return self.folder / key[:32]

    def find(self, key: str) -> dict[str, Any] | None:
        """What is said of it, or None where there is none or any file of it is not as it was written."""
        if self.place(key).is_symlink():
            return None
        found = read_checked(self.place(key) / FACTS_FILE)
        if found is None or found.get("key") != key or not self.is_whole(key, found["files"]):
            return None
        return found

    def is_whole(self, key: str, files: Files) -> bool:
        """Of files that lie in its own folder, and nowhere else."""
        place = self.place(key)
        if place.is_symlink() or not all(is_plain_name(name) for name in files):
            return False
        try:
            must_stay_inside(place)
            # Sizes first: they cost nothing.
            if any((place / name).stat().st_size != size for name, (size, _) in files.items()):
                return False
            return all(list(self.hashes.of(place / name, str(self.folder))) == facts for name, facts in files.items())
        except (OSError, LeadsOut):
            return False

    def make(self, key: str, scratch: Path, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Have it written, in a folder of its own until it is whole. What `write` answers is said of it."""
        partial = scratch / f"{key[:32]}.{uuid.uuid4().hex[:8]}"
        partial.mkdir(parents=True)
        try:
            said = write(partial)
            files = {
                path.relative_to(partial).as_posix(): list(hashed(path))
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            }
            found = {"key": key, **said, "files": files}
            write_checked(partial / FACTS_FILE, found)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._put(partial, key, scratch)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return found

    def _put(self, partial: Path, key: str, scratch: Path) -> None:
        place = self.place(key)
        try:
            os.replace(partial, place)
        except OSError:
            if not place.exists():
                raise
            if self.find(key) is not None:
                return  # somebody was faster
            damaged = scratch / f"damaged-{uuid.uuid4().hex[:8]}"
            os.replace(place, damaged)
            os.replace(partial, place)
            shutil.rmtree(damaged, ignore_errors=True)


def write_checked(path: Path, content: dict[str, Any]) -> None:
    """Under its name only when it is whole, with a checksum of what it says."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.write_text(json.dumps({**content, "checksum": digest_of(content)}, sort_keys=True), encoding="utf-8")
    os.replace(partial, path)


def read_checked(path: Path) -> dict[str, Any] | None:
    try:
        content = json_text.read(path)
        checksum = content.pop("checksum")
        return content if checksum == digest_of(content) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
