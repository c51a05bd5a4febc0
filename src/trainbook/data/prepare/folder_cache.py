"""Folders that are made once, and believed only when they are whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.contained import is_plain_name, must_stay_inside, replacing
from trainbook.data.prepare.hashes import Hashes
from trainbook.data.prepare.workers import DataWorkers, share_out
from trainbook.data.sources import Source
from trainbook.data.sources.fields import Fields
from trainbook.data.sources.files import File, hashed
from trainbook.data.sources.reader import FileReader, Reader
from trainbook.errors import DataError, LeadsOut

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
    with replacing(path, shared=True) as partial:
        partial.write_text(json.dumps({**content, "checksum": digest_of(content)}, sort_keys=True), encoding="utf-8")


def read_checked(path: Path) -> dict[str, Any] | None:
    try:
        content = json_text.read(path)
        checksum = content.pop("checksum")
        return content if checksum == digest_of(content) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# A source in parts that are prepared one by one: a file each, or a number of small files together.


# Each part costs some files of its own, so small ones are prepared with their neighbours, about so many together.
SMALL_BYTES = 1 << 18
SMALL_TOGETHER = 64


@dataclass(frozen=True)
class SourcePart:
    source: Source  # of these files alone
    contents: Any  # what they contain
    book: str  # of hashes

    @property
    def identity(self) -> Any:
        """What determines the documents, apart from the contents of other parts."""
        reader, source = self.source.reader, self.source
        formats = reader.formats if isinstance(reader, FileReader) else []
        settings = reader.settings if isinstance(reader, FileReader) else ""
        fields = source.fields or Fields({})
        asked = source.wanted.facts() if source.fields is not None else {"records": source.wanted.records}
        found = [dict(fields.roles), fields.separator, dict(fields.extras)]
        return [self.contents, formats, settings, asked, found]

    @property
    def num_bytes(self) -> int:
        """Of its files; 0 where it is no file."""
        return sum(facts[1] for facts in self.contents) if isinstance(self.source.reader, FileReader) else 0

    def by_file(self) -> Iterator[tuple[str | None, Source]]:
        """The same, file by file, and what each of them is called; None where it is no file."""
        reader = self.source.reader
        if not isinstance(reader, FileReader):
            yield None, self.source
            return
        for file in reader.files:
            yield file.shown, self.source.part(replace(reader, files=(file,)))

    def must_be_unchanged(self, hashes: Hashes) -> None:
        """What was made of a part is kept by what it contained before: it must be so still."""
        if _contents(self.source.reader, hashes, self.book) != self.contents:
            raise DataError(f"{self.source.knob}: '{self.source.name}' {self.source.reader.changed}")


def contents_of(source: Source, hashes: Hashes, workers: DataWorkers) -> list[Any]:
    """What each file contains; of anything else, what all of it does. Each process reads its share of the files."""
    reader, book = source.reader, _book(source)
    items: list[Any] = list(reader.files) if isinstance(reader, FileReader) else [reader]
    if isinstance(reader, FileReader):
        names = "\n".join(file.name for file in reader.files)
        listed = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()
        if len({*workers.meet(listed)}) > 1:
            raise DataError(
                f"{source.knob}: '{source.name}': the processes do not see the same files. Check whether files are "
                "still being written, and try again."
            )
    return share_out(workers, items, lambda item: _contents(item, hashes, book))


def divide(source: Source, contents: list[Any]) -> list[SourcePart]:
    """The order is that of the source, and which files go together depends on their names and sizes alone. A file that
    is added or taken away changes the part that it is in, and no other."""
    reader, book = source.reader, _book(source)
    if not isinstance(reader, FileReader):
        return [SourcePart(source, contents[0], book)]
    parts: list[SourcePart] = []
    waiting: list[tuple[File, Any]] = []

    def close() -> None:
        if waiting:
            files = tuple(file for file, _ in waiting)
            parts.append(SourcePart(source.part(replace(reader, files=files)), [facts for _, facts in waiting], book))
            waiting.clear()

    for file, facts in zip(reader.files, contents, strict=True):
        is_small = facts[1] < SMALL_BYTES
        if not is_small:
            close()
        waiting.append((file, facts))
        if not is_small or _ends_a_part(file.name):
            close()
    close()
    return parts


def _contents(item: File | Reader, hashes: Hashes, book: str) -> Any:
    if isinstance(item, File):
        return item.facts(lambda path: hashes.of(path, book))
    if isinstance(item, FileReader):
        return [_contents(file, hashes, book) for file in item.files]
    return item.fingerprint()


def _book(source: Source) -> str:
    """The folder that all of the files are in."""
    files = source.reader.files if isinstance(source.reader, FileReader) else ()
    return os.path.commonpath([os.path.abspath(file.path.parent) for file in files]) if files else ""


def _ends_a_part(name: str) -> bool:
    number = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:4], "big")
    return number % SMALL_TOGETHER == 0
