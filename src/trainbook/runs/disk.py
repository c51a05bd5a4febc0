"""Writing to disk so that a crash leaves the old file or the new one, and a full disk leaves a clear message."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainbook.errors import RunError


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into a RunError that says which file and why."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text_atomically(path: Path, text: str) -> None:
    with naming_the_file(path):
        if not path.name:  # "." or "/", which have no file beside them
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
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
