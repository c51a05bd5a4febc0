"""The cache of a reader: the columns of blocks of metrics.jsonl, in files beside it.

It is made by whoever reads a long file, and can be deleted at any time. Each file holds the hash of the bytes that it
was made from, and a checksum of each part: where either differs, or the format is another, the block is parsed again.
Where the folder cannot be written to, the files lie in a temporary folder of this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes
from trainbook.contained import create_anew, replacing
from trainbook.runs.blocks import RowBlock
from trainbook.runs.columns import Column, Texts
from trainbook.runs.schema import COLUMNS_FOLDER

FORMAT = 1
MAGIC = b"trainbook columns\n"
SETTLED = 2_000_000_000  # nanoseconds: a file changed later than so long ago may change again within one tick
MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredBlock:
    """A block whose columns are read when they are asked for."""

    files: ColumnFiles  # as long as a block is in use, so are its files
    path: Path
    data: int  # where the parts begin
    start: int
    end: int
    lines: int
    rows: int
    texts: Texts
    told: list[tuple[int, str]]
    parts: dict[str, list[int]]  # name -> offset, bytes, checksum
    columns: dict[str, list[str | None]]  # name -> the parts that hold its rows and its values

    @property
    def names(self) -> set[str]:
        return set(self.columns)

    def starts_of_rows(self) -> np.ndarray:
        return self._read("starts", np.uint32, self.rows)

    @property
    def skipped(self) -> np.ndarray:
        return self._read("skipped", np.uint32)

    def column(self, name: str) -> Column | None:
        if name not in self.columns:
            return None
        try:
            at, values = self.columns[name]
        except (ValueError, TypeError):
            raise DamagedCache(self.path) from None
        rows = None if at is None else self._read(at, np.uint32)
        if rows is not None and len(rows) and (int(rows[-1]) >= self.rows or (rows[1:] <= rows[:-1]).any()):
            raise DamagedCache(self.path)
        count = self.rows if rows is None else len(rows)
        found = self._read(values, np.float64)
        is_placed = name not in ("step", "segment") or bool(np.isfinite(found).all())
        if len(found) not in (1, count) or not is_placed or (name == "step" and at is not None):
            raise DamagedCache(self.path)
        return Column(rows, np.repeat(found, count) if len(found) != count else found)

    def _read(self, part: str | None, dtype: Any, count: int | None = None) -> np.ndarray:
        try:
            offset, size, checksum = self.parts[str(part)]
            with open_bytes(self.path) as file:
                if size > os.fstat(file.fileno()).st_size:
                    raise DamagedCache(self.path)
                file.seek(self.data + offset)
                content = file.read(size)
            if len(content) != size or zlib.crc32(content) != checksum:
                raise DamagedCache(self.path)
            found = np.frombuffer(content, dtype)
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            raise DamagedCache(self.path) from None
        if count is not None and len(found) != count:
            raise DamagedCache(self.path)
        return found


class DamagedCache(Exception):
    """A file of the cache does not hold what was written to it."""


class ColumnFiles:
    def __init__(self, beside: Path) -> None:
        self.folder = beside / COLUMNS_FOLDER
        self._is_aside = False

    def known_as(self, file: Path) -> bool:
        """Whether the blocks were made from this very file, which has not been written to since."""
        try:
            known = json_text.read(self.folder / "file.json", most=4096)
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(known, dict) and known == {"format": FORMAT, **identity(file)}

    def remember(self, file: Path, before: dict[str, int]) -> None:
        """`before` is what `identity` said before the first block was read."""
        if identity(file) == before and time.time_ns() - before["changed"] > SETTLED and self.folder.is_dir():
            with suppress(OSError):
                _replace(self.folder / "file.json", json.dumps({"format": FORMAT, **before}).encode())

    def load(self, number: int, start: int) -> tuple[StoredBlock, str] | None:
        """The block of that number with the hash of the bytes that it was made from; None if it is not there."""
        path = self._path(number)
        try:
            if self.folder.is_symlink() or path.is_symlink():
                return None
            with open_bytes(path) as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return None
                size, checksum = (int.from_bytes(file.read(8), "little") for _ in range(2))
                header = file.read(size) if size <= MOST_HEADER_BYTES else b""
            if zlib.crc32(header) != checksum:
                return None
            known = json_text.loads(header)
            if known["format"] != FORMAT or known["start"] != start:
                return None
            end, lines, rows = (known[name] for name in ("end", "lines", "rows"))
            if {type(end), type(lines), type(rows)} != {int} or not 0 <= rows <= lines <= end - start:
                return None
            told = [(int(number), str(law)) for number, law in known["told"]]
            texts = Texts([str(text) for text in known["texts"]])
            data = len(MAGIC) + 16 + size
            parts, columns = dict(known["parts"]), dict(known["columns"])
            block = StoredBlock(self, path, data, start, end, lines, rows, texts, told, parts, columns)
            return (block, str(known["hash"])) if "step" in columns or not rows else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def store(self, number: int, block: RowBlock, content: bytes) -> StoredBlock | RowBlock:
        """The block as it is where it can be kept nowhere."""
        parts: dict[str, np.ndarray] = {"starts": block.starts, "skipped": block.skipped}
        columns: dict[str, list[str | None]] = {}
        for place, (name, column) in enumerate(block.columns.items()):
            at = None
            if column.at is not None:
                at = f"at {place}"
                parts[at] = column.at
            bits = column.values.view(np.uint64)
            is_constant = len(bits) > 0 and bool((bits == bits[0]).all())
            parts[f"values {place}"] = column.values[:1] if is_constant else column.values
            columns[name] = [at, f"values {place}"]
        header: dict[str, Any] = {"format": FORMAT, "hash": hash_of(content), "texts": block.texts.known}
        header |= {name: getattr(block, name) for name in ("start", "end", "lines", "rows", "told")}
        written = {name: part.tobytes() for name, part in parts.items()}
        ends = np.cumsum([len(part) for part in written.values()]).tolist()
        header["parts"] = {
            name: [end - len(part), len(part), zlib.crc32(part)]
            for (name, part), end in zip(written.items(), ends, strict=True)
        }
        head = json.dumps({**header, "columns": columns}).encode()
        if len(head) > MOST_HEADER_BYTES:
            return block
        lead = MAGIC + len(head).to_bytes(8, "little") + zlib.crc32(head).to_bytes(8, "little")
        for _ in range(2):
            try:
                self._must_be_ours()
                _replace(self._path(number), lead, head, *written.values())
            except OSError:
                if self._is_aside or not self._go_aside():
                    return block
            else:
                loaded = self.load(number, block.start)
                return loaded[0] if loaded is not None else block
        return block

    def _go_aside(self) -> bool:
        """Into a temporary folder that is removed with the last block, or at the end of the process."""
        try:
            folder = tempfile.mkdtemp(prefix="trainbook-columns-")
        except OSError:
            return False
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder, self._is_aside = Path(folder), True
        return True

    def drop_from(self, number: int) -> None:
        """Blocks that the file no longer has."""
        with suppress(OSError):
            while self._path(number).is_file():
                self._path(number).unlink()
                number += 1

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _must_be_ours(self) -> None:
        """A link may lead anywhere: nothing is written through it."""
        if self.folder.is_symlink():
            raise NotADirectoryError(self.folder)
        self.folder.mkdir(exist_ok=True)


def hash_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=20).hexdigest()


def identity(file: Path) -> dict[str, int]:
    """What changes whenever a file is written to or replaced."""
    seen = os.stat(file)
    return {"inode": seen.st_ino, "size": seen.st_size, "modified": seen.st_mtime_ns, "changed": seen.st_ctime_ns}


def _replace(path: Path, *parts: bytes) -> None:
    """Whole or not at all. After a power cut its content may be lost, which its checksums show."""
    with replacing(path) as temporary, open(create_anew(temporary), "wb") as file:
        file.writelines(parts)
