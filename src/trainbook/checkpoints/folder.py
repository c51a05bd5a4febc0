"""One checkpoint's folder: `<part>.safetensors`, `state.json`, and last `complete.json` with their sizes and hashes.

A part of which each rank writes its slices is `<part>-00001-of-00004.safetensors` and so on instead: see sliced.py.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.bounded.files import must_be_regular
from trainbook.checkpoints.encoding import EncodedPart, TensorFile
from trainbook.contained import fsync_folder, is_plain_name, open_no_link, replacing
from trainbook.errors import LeadsOut

# Durable files: when these functions return, the data is on disk; errors are described in plain words.


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
    with replacing(path, temporary):
        write_file(temporary, [content])
    fsync_folder(path.parent)


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


FORMAT, SLICED_FORMAT = 1, 2  # a version that knows only whole files passes the others over
STATE = "state.json"
MARKER = "complete.json"
SLACK_BYTES = 64 * 2**10  # the marker, the index, and what the file system needs for a new folder
BLOCK_BYTES = 4096


class Damaged(Exception):
    """A damaged checkpoint; the message says why."""


@dataclass(frozen=True)
class Marker:
    step: int
    save_number: int  # rises with every save: the order in which checkpoints were written, whatever their steps
    files: dict[str, FileFact]
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(fact.size for fact in self.files.values())


class NewCheckpoint:
    """Everything that goes into a folder, sized before a byte of it is written."""

    def __init__(self, step: int, parts: Mapping[str, EncodedPart], metrics: Mapping[str, Any]) -> None:
        self.step = step
        self._tensor_files = {f"{name}.safetensors": TensorFile(p.plain) for name, p in parts.items() if p.tensors}
        stored = {
            name: {"file": f"{name}.safetensors" if part.tensors else None, "tree": part.tree}
            for name, part in parts.items()
        }
        self._state = state_bytes(FORMAT, step, metrics, stored)
        self.bytes_needed = room_for([len(self._state), *(file.size for file in self._tensor_files.values())])

    def write(self, folder: Path, save_number: int) -> Marker:
        """On return the folder is complete and on the disk, under the name it was given here."""
        files = {name: write_file(folder / name, file.pieces()) for name, file in self._tensor_files.items()}
        return seal(folder, self._state, Marker(self.step, save_number, files))


def state_bytes(format: int, step: int, metrics: Mapping[str, Any], stored: Mapping[str, Any]) -> bytes:
    """What is no tensor, and in which files those are."""
    content = {"format": format, "step": step, "metrics": metrics, "parts": stored}
    return json.dumps(content, allow_nan=False).encode()


def seal(folder: Path, state: bytes, marker: Marker) -> Marker:
    """The last of a folder's files; the marker is given those of the tensors."""
    files = {**marker.files, STATE: write_file(folder / STATE, [state])}
    marker = replace(marker, files=files)
    write_file(folder / MARKER, [_marker_bytes(marker)])
    fsync_folder(folder)
    return marker


def room_for(sizes: Iterable[int]) -> int:
    """Bytes of the disk that files of these sizes take."""
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes) + SLACK_BYTES


def read_marker(folder: Path) -> Marker:
    """The marker is written in one way only and holds its own hash, so no changed bit of it goes unseen."""
    if folder.is_symlink() or not folder.is_dir():
        raise Damaged("it is a link" if folder.is_symlink() else "it is not a folder")
    content = read_file(folder / MARKER)
    try:
        fields = json_text.loads(content)
        if fields["format"] not in (FORMAT, SLICED_FORMAT):
            known = f"{FORMAT} and {SLICED_FORMAT}"
            raise Damaged(f"{MARKER} has format {fields['format']!r}, but this version reads formats {known}")
        files = {name: FileFact(fact["bytes"], fact["sha256"]) for name, fact in fields["files"].items()}
        marker = Marker(fields["step"], fields["save_number"], files, fields["format"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MARKER} is not valid JSON of the expected form") from error
    if content != _marker_bytes(marker):
        raise Damaged(f"{MARKER} has changed since it was written")
    for name in marker.files:
        if not is_plain_name(name) or "/" in name:
            raise Damaged(f"{MARKER} names {name!r}, which is no file of this folder")
    return marker


def check_sizes(folder: Path, marker: Marker) -> None:
    """The cheap half of the verification: reads no file."""
    for name, fact in marker.files.items():
        _check_size(folder / name, fact)


def verify(path: Path, fact: FileFact | None) -> None:
    if fact is None:
        raise Damaged(f"{path.name} is not listed in {MARKER}")
    _check_size(path, fact)
    try:
        found = fact_of(path)
    except LeadsOut:
        raise Damaged(f"{path.name} is a link") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error
    if found != fact:
        raise Damaged(f"{path.name} has changed since it was written (its sha256 differs)")


def _check_size(path: Path, fact: FileFact) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is {'a link' if stat.S_ISLNK(found.st_mode) else 'no file'}")
    if found.st_size != fact.size:
        raise Damaged(f"{path.name} has {found.st_size} bytes instead of {fact.size}")


def read_file(path: Path) -> bytes:
    try:
        with open(open_no_link(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would be waited for
            must_be_regular(file.fileno(), path)
            return file.read()
    except LeadsOut:
        raise Damaged(f"{path.name} is a link") from None
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error


def _marker_bytes(marker: Marker) -> bytes:
    fields: dict[str, Any] = {
        "format": marker.format,
        "step": marker.step,
        "save_number": marker.save_number,
        "files": {name: {"bytes": fact.size, "sha256": fact.sha256} for name, fact in marker.files.items()},
    }
    return _json_bytes({**fields, "sha256": hashlib.sha256(_json_bytes(fields)).hexdigest()})


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
