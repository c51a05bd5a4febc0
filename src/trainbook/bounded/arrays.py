"""Arrays on disk: numpy's files, and weights in safetensors. Nothing is unpickled, and no header is believed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import must_be_regular, open_bytes
from trainbook.errors import BeyondBounds

MOST_HEADER_BYTES = 64 << 20  # of a safetensors file: the names and shapes of a million tensors


def load_array(path: str | os.PathLike[str]) -> np.ndarray:
    """A .npy file. Numpy allocates what the header says before it reads: that must lie in the file."""
    with open_bytes(path) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{os.fspath(path)}: is of an unknown version of numpy's format.")
        shape, _, dtype = read(file)
        needed, left = int(np.prod([int(size) for size in shape], dtype=object)) * dtype.itemsize, 0
        left = os.fstat(file.fileno()).st_size - file.tell()
        if needed > left:
            raise BeyondBounds(f"{os.fspath(path)}: its header asks for {needed:,} bytes, but {left:,} follow.")
        file.seek(0)
        return np.load(file, allow_pickle=False)


@contextmanager
def opened_arrays(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A .npz archive as `numpy.savez` writes it: without compression, so nothing in it expands."""
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            inside = sum(entry.file_size for entry in archive.infolist())
        if inside > size:
            raise BeyondBounds(f"{os.fspath(path)}: must not expand, but {size:,} bytes hold {inside:,}.")
        file.seek(0)
        with np.load(file, allow_pickle=False) as found:
            yield found


def open_tensors(path: str | os.PathLike[str], **options: Any) -> Any:
    """As safetensors.safe_open: the file is mapped, and its tensors are read when each is asked for."""
    from safetensors import safe_open

    must_be_regular(path, path)
    with open_bytes(path) as file:
        _header_bytes(file, path)
    return safe_open(path, framework="pt", **options)  # pyright: ignore[reportArgumentType]


def tensor_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[str, list[int]]]:
    """Of a safetensors file, by name: the type and the shape of each tensor, from its header alone. A ValueError for
    what is none."""
    with open_bytes(path) as file:
        header = json_text.loads(file.read(_header_bytes(file, path)), os.fspath(path))
    found = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
            found[name] = str(entry.get("dtype")), shape
    return found


def _header_bytes(file: BinaryIO, path: str | os.PathLike[str]) -> int:
    header = int.from_bytes(file.read(8), "little")
    most = min(MOST_HEADER_BYTES, max(os.fstat(file.fileno()).st_size - 8, 0))
    if header > most:
        law = f"must have a header of at most {most:,} bytes"
        raise BeyondBounds(f"{os.fspath(path)}: {law}, but says that it has {header:,}.")
    return header
