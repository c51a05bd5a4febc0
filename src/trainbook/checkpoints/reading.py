"""Reads a checkpoint's folder back into a state: whole tensors or the requested slices, however it was saved."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from trainbook.bounded import json_text
from trainbook.bounded.arrays import open_tensors
from trainbook.checkpoints.encoding import NATIVE_DTYPES, OFFSETS, SLICES, decode
from trainbook.checkpoints.folder import MARKER, STATE, Damaged, FileFact, Marker, read_file, verify
from trainbook.errors import CheckpointError

MOST_VALUES = 50_000_000  # of state.json: it is sealed by hashes, and holds whatever a run has to remember
DTYPES = {name: dtype for dtype, name in NATIVE_DTYPES.items()}


@dataclass(frozen=True)
class ReadSpec:
    """What is read of a checkpoint, and by whom."""

    parts: Sequence[str] | None = None  # None: all
    unread: Sequence[str] = ()  # those whose tensors stay on the disk until each is asked for
    device: torch.device | str = "cpu"
    rank: int = 0  # of so many that read it together: each verifies its share of the files
    world: int = 1


@dataclass(frozen=True)
class Contents:
    """What `state.json` says of a checkpoint."""

    parts: dict[str, Any]  # those wanted, as they are stored
    metrics: Any

    @property
    def files(self) -> list[str]:
        return [file for stored in self.parts.values() for file in _files_of(stored)]


def verified(folder: Path, marker: Marker, wanted: ReadSpec) -> Contents:
    """This rank's share of the files; those that are not needed are not opened."""
    content = read_file(folder / STATE)
    if FileFact(len(content), hashlib.sha256(content).hexdigest()) != marker.files.get(STATE):
        raise Damaged(f"{STATE} has changed since it was written (its size or sha256 differs)")
    stored, metrics = _stored(content)
    unknown = [name for name in wanted.parts or () if name not in stored]
    if unknown:
        missing, present = ", ".join(map(repr, unknown)), ", ".join(stored) or "none"
        raise CheckpointError(f"The checkpoint {folder} has no part {missing}; it has: {present}.")
    names = stored if wanted.parts is None else [name for name in stored if name in wanted.parts]
    contents = Contents({name: stored[name] for name in names}, metrics)
    for file in contents.files:
        if file not in marker.files:
            raise Damaged(f"{file} is not listed in {MARKER}")
    for file in share_of({file: marker.files[file].size for file in contents.files}, wanted.rank, wanted.world):
        verify(folder / file, marker.files[file])
    return contents


def _stored(content: bytes) -> tuple[dict[str, Any], Any]:
    """The parts as they are stored, and the metrics."""
    try:
        fields = json_text.loads(content, most_values=MOST_VALUES)
        parts: dict[str, Any] = dict(fields["parts"])
        for stored in parts.values():
            names, _ = _files_of(stored), stored["tree"]
            shapes = stored.get("shapes", {})
            sizes = [size for shape in shapes.values() for size in shape]
            if not all(isinstance(name, str) for name in names) or not all(type(size) is int for size in sizes):
                raise TypeError("a name or a size is none")
        return parts, fields["metrics"]
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{STATE} is not valid JSON of the expected form") from error


def read_state(folder: Path, contents: Contents, wanted: ReadSpec) -> tuple[dict[str, Any], dict[str, float]]:
    """State and metrics, once every file is verified, by this rank or by another."""
    state = {
        name: _read_part(folder, stored, wanted.device, name in wanted.unread)
        for name, stored in contents.parts.items()
    }
    return state, _decoded(contents.metrics, _no_tensor)


def share_of(sizes: Mapping[str, int], rank: int, world: int) -> list[str]:
    """Files that this rank of so many looks after: together they have all, and each about the same number of bytes."""
    loads: list[tuple[int, list[str]]] = [(0, []) for _ in range(world)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = min(range(world), key=lambda each: loads[each][0])
        loads[least] = (loads[least][0] + sizes[name], [*loads[least][1], name])
    return loads[rank][1]


@dataclass(frozen=True)
class Box:
    """A part of a tensor: where it begins in each dimension, and how long it is there."""

    offsets: torch.Size
    sizes: torch.Size


class StoredTensor:
    """A tensor on the disk, in one piece or several. It can be read for as long as it exists, even if rotated away."""

    def __init__(self, name: str, shape: torch.Size, device: torch.device | str) -> None:
        self.name, self.shape, self.device = name, shape, device
        self._chunks: list[Box] = []
        self._files: list[Any] = []  # of each chunk
        self._dtype: torch.dtype | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def add(self, file: Any, offsets: Sequence[int], sizes: Sequence[int], dtype: torch.dtype) -> None:
        if self._dtype not in (None, dtype):
            raise Damaged(f"the slices of {self.name} have different types")
        self._dtype = dtype
        self._chunks.append(Box(torch.Size(offsets), torch.Size(sizes)))
        self._files.append(file)

    def must_be_complete(self) -> None:
        held = sum(math.prod(chunk.sizes) for chunk in self._chunks)
        if not self._chunks or held != math.prod(self.shape):
            raise Damaged(f"only {held} of the {math.prod(self.shape)} values of {self.name} are present")

    def read(self, offsets: Sequence[int] | None = None, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """A copy: the tensor must not hang on a mapped file that rotation deletes or someone overwrites."""
        assert self._dtype is not None
        box = Box(torch.Size(offsets or [0] * self.ndim), torch.Size(sizes or self.shape))
        if len(self._chunks) == 1 and box == self._chunks[0]:
            return self._files[0].get_tensor(self.name).to(self.device, copy=True)
        found = torch.empty(box.sizes, dtype=self._dtype, device=self.device)
        if found.numel() == 0:
            return found
        for chunk, file in zip(self._chunks, self._files, strict=True):
            starts = [max(ours, theirs) for ours, theirs in zip(box.offsets, chunk.offsets, strict=True)]
            ends = [min(ours, theirs) for ours, theirs in zip(_ends(box), _ends(chunk), strict=True)]
            lengths = [end - start for start, end in zip(starts, ends, strict=True)]
            if min(lengths, default=1) > 0:
                there = file.get_tensor(self.name)  # mapped: what is not asked is not read
                part = _within(there, chunk.offsets, starts, lengths)
                _within(found, box.offsets, starts, lengths).copy_(part)
        return found


def _ends(box: Box) -> list[int]:
    return [start + size for start, size in zip(box.offsets, box.sizes, strict=True)]


def _within(tensor: torch.Tensor, begins: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    """Of a piece that begins there in the whole tensor, what lies from `starts` on."""
    inside = [start - begin for start, begin in zip(starts, begins, strict=True)]
    return tensor[tuple(slice(start, start + length) for start, length in zip(inside, lengths, strict=True))]


def _files_of(stored: Mapping[str, Any]) -> list[str]:
    if "files" in stored:
        return list(stored["files"])
    return [] if stored["file"] is None else [stored["file"]]


def _read_part(folder: Path, stored: Mapping[str, Any], device: torch.device | str, stays_unread: bool) -> Any:
    names = _files_of(stored)
    found = _open(folder, names, stored.get("shapes", {}), device) if names else {}
    tensors: Mapping[str, Any] = found if stays_unread else {name: tensor.read() for name, tensor in found.items()}
    return _decoded(stored["tree"], tensors.__getitem__ if names else _no_tensor)


def _decoded(tree: Any, tensor_named: Callable[[str], Any]) -> Any:
    try:
        return decode(tree, tensor_named)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
        raise Damaged(f"{STATE} is not of the expected form ({error!r})") from error


def _open(
    folder: Path, names: Sequence[str], shapes: Mapping[str, Sequence[int]], device: torch.device | str
) -> dict[str, StoredTensor]:
    """The tensors of these files; `shapes` are those of the ones that lie in slices."""
    found: dict[str, StoredTensor] = {}
    for file_name in names:
        try:
            file = open_tensors(folder / file_name, device="cpu")  # closed with the last of its tensors
            about = file.metadata() or {}
            offsets = {name: slices[OFFSETS] for name, slices in json_text.loads(about.get(SLICES, "{}")).items()}
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                there = file.get_slice(name)
                sizes = there.get_shape()
                shape = torch.Size(shapes.get(name, sizes))
                tensor = found.setdefault(name, StoredTensor(name, shape, device))
                tensor.add(file, offsets.get(name, [0] * len(sizes)), sizes, DTYPES[there.get_dtype()])
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise Damaged(f"{file_name} cannot be read: {error}") from error
    for name in shapes.keys() - found.keys():
        raise Damaged(f"no file holds the tensor {name}")
    for tensor in found.values():
        tensor.must_be_complete()
    return found


def _no_tensor(name: str) -> torch.Tensor:
    raise Damaged(f"{STATE} names the tensor {name!r} in a part that has no tensors")
