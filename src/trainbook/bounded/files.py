"""Bytes and text of a regular file, up to a size. What is missing or no file is an OSError, as with `open`."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from trainbook.errors import BeyondBounds, MissingExtra

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


# Files that are compressed as a whole, decompressed as they are read, up to an expansion. Text shrinks to a third or
# a tenth, logs to a hundredth. What expands further was made to fill a memory or a disk.


SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# What a broken file raises, beside an OSError.
BROKEN = (EOFError, zlib.error, lzma.LZMAError)
MOST_EXPANSION = 200  # bytes that come out for each byte of the file …
FREE_BYTES = 64 << 20  # … behind these, which any file may expand to


def must_not_expand(comes_out: int, lies_in_the_file: int, shown: str) -> None:
    if comes_out > FREE_BYTES and comes_out > MOST_EXPANSION * lies_in_the_file:
        raise BeyondBounds(
            f"{shown}: must expand to at most {MOST_EXPANSION} times its size ({FREE_BYTES:,} bytes are always "
            f"allowed), but {lies_in_the_file:,} bytes expand to at least {comes_out:,}."
        )


def open_inner(stream: BinaryIO, name: str, shown: str) -> io.BufferedReader:
    """The content of an open file, decompressed as it is read."""
    return io.BufferedReader(_Expanding(_decompressor(stream, Path(name).suffix.lower(), shown), stream, shown))


def _decompressor(stream: BinaryIO, suffix: str, shown: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=stream)
    if suffix == ".bz2":
        return bz2.BZ2File(stream)
    if suffix == ".xz":
        return lzma.LZMAFile(stream)
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra(f"reading '{shown}'", "pyarrow", "data") from None
    return pyarrow.CompressedInputStream(stream, "zstd")


class _Expanding(io.RawIOBase):
    def __init__(self, inner: Any, compressed: BinaryIO, shown: str) -> None:
        self._inner, self._compressed, self._shown = inner, compressed, shown
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._inner.read(len(buffer))
        buffer[: len(content)] = content
        self._read += len(content)
        must_not_expand(self._read, self._compressed.tell(), self._shown)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
