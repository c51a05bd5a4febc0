"""Atomic writes: a crash leaves the old file or the new one, and a full disk gives a clear message."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainbook.contained import create_anew
from trainbook.errors import RunError


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunError that says which file could not be written and why."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text_atomically(path: Path, text: str) -> None:
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    write_parts_atomically(path, [content])


def write_parts_atomically(path: Path, parts: Iterable[bytes]) -> None:
    with naming_the_file(path):
        if not path.name:  # "." or "/", which have no file beside them
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(create_anew(temporary), "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync_folder(path.parent)  # without it a power cut may forget the rename


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
