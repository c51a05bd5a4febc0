"""Files that are compressed as a whole, decompressed as they are read, up to an expansion.

Text shrinks to a third or a tenth, logs to a hundredth. What expands further was made to fill a memory or a disk.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from trainbook.errors import BeyondBounds, MissingExtra

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
