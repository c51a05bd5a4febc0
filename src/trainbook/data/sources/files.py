"""Reading files: what they contain as bytes, lines and text, and how to say what is wrong with one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from trainbook.errors import DataError


@dataclass(frozen=True)
class File:
    """One file of a source."""

    path: Path
    name: str  # relative to the root of its source, with "/"
    shown: str  # as messages name it
    knob: str  # "data.source" or "data.validation", for messages

    @contextmanager
    def open(self) -> Iterator[BufferedReader]:
        try:
            stream = self.path.open("rb")
        except OSError as error:
            raise self.unreadable(error) from None
        with stream:
            try:
                yield stream
            except OSError as error:
                raise self.unreadable(error) from None

    def facts(self) -> list[Any]:
        """What the file contains, and neither when it was written nor where it lies."""
        with self.open() as stream:
            return [self.name, os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest()]

    def unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self.knob}: '{self.shown}' cannot be read: {error.strerror or error}.")


def decode(content: bytes, shown: str, line: int = 1) -> str:
    """Text from UTF-8. A byte order mark belongs to the file, not to the text; it can only stand at its beginning."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shown}: must be UTF-8 text, but has the byte 0x{error.object[error.start]:02x} "
            f"at position {error.start}. Convert it first, for example with iconv."
        ) from None
