"""Durable files: when these functions return, the data is on disk; errors are described in plain words."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainbook.contained import open_no_link

WRITE_BYTES = 16 * 2**20  # hashed and written piece by piece: the second pass finds the piece in the processor's cache


@dataclass(frozen=True)
class FileFact:
    """The size and hash that a file must have."""

    size: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileFact:
    """The hash is of the bytes to be written, not of those read back, so it detects a faulty write as well."""
    digest, size = hashlib.sha256(), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), WRITE_BYTES):
                part = view[start : start + WRITE_BYTES]
                digest.update(part)
                size += len(part)
                while part:  # a write may take less than it was given
                    part = part[os.write(file, part) :]
        os.fsync(file)
    finally:
        os.close(file)
    return FileFact(size, digest.hexdigest())


def replace_file(path: Path, temporary: Path, content: bytes) -> None:
    """Readers of `path` see the old content or the new, never a mixture."""
    try:
        write_file(temporary, [content])
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            remove(temporary)
        raise
    fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Makes the names in a folder durable; fsync of a file alone does not."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such operation
            raise
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    """A file or a whole folder; one that is already gone is no error."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise


def fact_of(path: Path) -> FileFact:
    with open(open_no_link(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would be waited for
        return FileFact(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def free_bytes(folder: Path) -> int | None:
    """None if the file system does not report it."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else None


def is_full_disk(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def plain_words(error: OSError) -> str:
    words = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is exceeded",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.EROFS: "the file system is mounted read-only",
        errno.ENOENT: "the folder does not exist (any more)",
        errno.ENOTDIR: "part of the path is a file, not a folder",
        errno.EEXIST: "something else has this name already",
        errno.EIO: "the disk reported an input/output error",
        errno.ESTALE: "the network file system lost the folder",
    }
    system = error.strerror or str(error)
    known = words.get(error.errno or 0)
    place = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
    return f"{known} ({system}{place})" if known else f"{system}{place}"


def human_bytes(count: int) -> str:
    if count < 10_000:
        return f"{count} bytes"
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit} ({count} bytes)"
    raise AssertionError("unreachable: 10,000 bytes are kilobytes")
