"""Bytes and text of a regular file, up to a size. What is missing or no file is an OSError, as with `open`."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

from trainbook.errors import BeyondBounds

MOST_BYTES = 256 << 20  # of a file that is read as a whole
_MORE_BYTES = 1 << 20
KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def open_bytes(path: str | os.PathLike[str]) -> BufferedReader:
    """As `open(path, "rb")`, of a regular file only: a pipe would be waited for, and a device has no end."""
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        must_be_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def must_be_regular(file: int | str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    mode = os.stat(file).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in KINDS if is_kind(mode)), "of an unknown kind")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(size + 1)  # no more: that much is allocated before it is read
        while size < len(content) <= most and (more := file.read(_MORE_BYTES)):  # the file has grown
            content += more
    if max(size, len(content)) > most:
        raise BeyondBounds(f"{os.fspath(path)}: must have at most {most:,} bytes, but has {max(size, len(content)):,}.")
    return content


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """With any of the three line ends as one, as `open` gives it."""
    text = read_bytes(path, most).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
