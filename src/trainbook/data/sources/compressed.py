"""Files that are compressed as a whole, read as what is inside."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from trainbook.errors import MissingExtra

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
# What a broken file raises, beside an OSError.
BROKEN = (EOFError, zlib.error, lzma.LZMAError)


def inner_name(name: str) -> str:
    """The name without what says how it is compressed: of a.jsonl.gz, a.jsonl."""
    return name[: -len(suffix)] if (suffix := Path(name).suffix).lower() in SUFFIXES else name


def is_compressed(name: str) -> bool:
    return inner_name(name) != name


def open_inner(stream: BinaryIO, name: str, shown: str) -> Any:
    """The content of an open file, decompressed as it is read."""
    suffix = Path(name).suffix.lower()
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
    return io.BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"))
