"""Reading files: what they contain as bytes, lines and text, and how to say what is wrong with one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainbook.bounded.compressed import BROKEN, open_inner
from trainbook.bounded.files import open_bytes
from trainbook.data.sources.compressed import inner_name, is_compressed
from trainbook.data.sources.kinds import HEAD_BYTES, looks_binary, why_not_text
from trainbook.errors import DataError

LONGEST_LINE_BYTES = 64 << 20
HashOf = Callable[[Path], tuple[int, str]]  # the size of a file and a hash of its contents


def hashed(path: Path) -> tuple[int, str]:
    with open_bytes(path) as stream:
        return os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class File:
    """One file of a source."""

    path: Path
    name: str  # relative to the root of its source, with "/"
    shown: str  # as messages name it
    knob: str  # "data.source" or "data.validation", for messages

    @contextmanager
    def open(self) -> Iterator[BufferedReader]:
        """The text that the file contains, as bytes; of a compressed file, the text inside. A file that cannot be text
        is refused and named for what it is."""
        with self.open_bytes() as stream:
            if problem := why_not_text(stream.peek(HEAD_BYTES), inner_name(self.shown)):
                inside = "its compressed content " if is_compressed(self.name) else ""
                raise DataError(f"{self.knob}: '{self.shown}' cannot be read: {inside or 'it '}{problem}")
            yield stream

    @contextmanager
    def open_bytes(self) -> Iterator[BufferedReader]:
        """The same of any content."""
        try:
            stream = open_bytes(self.path)
        except OSError as error:
            raise self.unreadable(error) from None
        with stream:
            try:
                # An empty file is not even a compressed nothing.
                is_packed = is_compressed(self.name) and os.fstat(stream.fileno()).st_size > 0
                yield open_inner(stream, self.name, self.shown) if is_packed else stream
            except (OSError, *BROKEN) as error:
                raise self.unreadable(error) from None

    def facts(self, hash_of: HashOf = hashed) -> list[Any]:
        """What the file contains, and neither when it was written nor where it lies."""
        try:
            return [self.name, *hash_of(self.path)]
        except OSError as error:
            raise self.unreadable(error) from None

    def unreadable(self, error: Exception) -> DataError:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
        return DataError(f"{self.knob}: '{self.shown}' cannot be read: {reason}.")


def bounded_lines(stream: BufferedReader, file: File, complain: Callable[[str], None]) -> Iterator[bytes]:
    """Each line. One that is longer than a line may be is complained about, and takes no more memory than others."""
    number = 0
    while line := stream.readline(LONGEST_LINE_BYTES):
        number += 1
        if len(line) < LONGEST_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (more := stream.readline(LONGEST_LINE_BYTES)) and not more.endswith(b"\n"):
            pass
        complain(
            f"{file.shown}:{number}: a line must be at most {LONGEST_LINE_BYTES >> 20} MB long, because it is held in "
            "memory as a whole. Split the text into several records, or write it to a text file of its own (.txt), "
            "which is read piece by piece."
        )
        yield b"\n"


def decode(content: bytes, shown: str, line: int = 1) -> str:
    """Text from UTF-8. A byte order mark belongs to the file, not to the text; it can only stand at its beginning."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(content, error.start, shown) from None


def not_utf8(content: bytes, position: int, shown: str, before: int = 0) -> DataError:
    """`content` is what stands around the byte, or more; `before` bytes of the file lie before it."""
    near = content[max(0, position - 256) : position + 256]
    hint = "The bytes around it are not text either: this may be a binary file."
    if not looks_binary(near):
        hint = "Convert the file first, for example from Windows-1252 with iconv -f WINDOWS-1252 -t UTF-8."
    return DataError(
        f"{shown}: must be UTF-8 text, but has the byte 0x{content[position]:02x} at position {before + position}. "
        f"{hint}"
    )
