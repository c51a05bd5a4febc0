"""One checkpoint's folder: `<part>.safetensors`, `state.json`, and last `complete.json`, which vouches for them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainbook.checkpoints.encoding import EncodedPart, decode
from trainbook.checkpoints.files import FileFact, fact_of, fsync_folder, plain_words, write_file
from trainbook.checkpoints.tensors import TensorFile
from trainbook.errors import CheckpointError

FORMAT = 1
STATE = "state.json"
MARKER = "complete.json"
SLACK_BYTES = 64 * 2**10  # the marker, the index, and what the file system needs for a new folder
BLOCK_BYTES = 4096


class Damaged(Exception):
    """A checkpoint that must not be believed; the message says why."""


@dataclass(frozen=True)
class Marker:
    step: int
    save_number: int  # rises with every save: the order in which checkpoints were written, whatever their steps
    files: dict[str, FileFact]

    @property
    def size(self) -> int:
        return sum(fact.size for fact in self.files.values())


class NewCheckpoint:
    """Everything that goes into a folder, sized before a byte of it is written."""

    def __init__(self, step: int, parts: Mapping[str, EncodedPart], metrics: Mapping[str, Any]) -> None:
        self.step = step
        self._tensor_files = {f"{name}.safetensors": TensorFile(p.tensors) for name, p in parts.items() if p.tensors}
        self._state = json.dumps(
            {
                "format": FORMAT,
                "step": step,
                "metrics": metrics,
                "parts": {
                    name: {"file": f"{name}.safetensors" if part.tensors else None, "tree": part.tree}
                    for name, part in parts.items()
                },
            },
            allow_nan=False,
        ).encode()
        sizes = [len(self._state), *(file.size for file in self._tensor_files.values())]
        self.bytes_needed = sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes) + SLACK_BYTES

    def write(self, folder: Path, save_number: int) -> Marker:
        """On return the folder is complete and on the disk, under the name it was given here."""
        files = {name: write_file(folder / name, file.pieces()) for name, file in self._tensor_files.items()}
        files[STATE] = write_file(folder / STATE, [self._state])
        marker = Marker(self.step, save_number, files)
        write_file(folder / MARKER, [_marker_bytes(marker)])
        fsync_folder(folder)
        return marker


def read_marker(folder: Path) -> Marker:
    """The marker is written in one way only and holds its own hash, so no changed bit of it goes unseen."""
    if not folder.is_dir():
        raise Damaged("it is not a folder")
    content = _read(folder / MARKER)
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise Damaged(f"{MARKER} has format {fields['format']!r}, but this version reads format {FORMAT}")
        files = {name: FileFact(fact["bytes"], fact["sha256"]) for name, fact in fields["files"].items()}
        marker = Marker(fields["step"], fields["save_number"], files)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MARKER} is not readable as JSON of the expected form") from error
    if content != _marker_bytes(marker):
        raise Damaged(f"{MARKER} has changed since it was written")
    return marker


def check_sizes(folder: Path, marker: Marker) -> None:
    """The cheap half of the verification: reads no file."""
    for name, fact in marker.files.items():
        _check_size(folder / name, fact)


def read_state(
    folder: Path, marker: Marker, parts: Sequence[str] | None, device: torch.device | str
) -> tuple[dict[str, Any], dict[str, float]]:
    """State and metrics; every file is verified before it is used, and one that is not needed is not opened."""
    content = _read(folder / STATE)
    if FileFact(len(content), hashlib.sha256(content).hexdigest()) != marker.files.get(STATE):
        raise Damaged(f"{STATE} has changed since it was written (its size or sha256 differs)")
    try:
        fields = json.loads(content)
        stored: dict[str, Any] = fields["parts"]
    except (ValueError, LookupError, TypeError) as error:
        raise Damaged(f"{STATE} is not readable as JSON of the expected form") from error
    unknown = [name for name in parts or () if name not in stored]
    if unknown:
        missing, present = ", ".join(map(repr, unknown)), ", ".join(stored) or "none"
        raise CheckpointError(f"The checkpoint {folder} has no part {missing}; it has: {present}.")
    names = list(stored) if parts is None else [name for name in stored if name in parts]
    state = {name: _read_part(folder, marker, stored[name], device) for name in names}
    return state, decode(fields["metrics"], _no_tensor)


def _read_part(folder: Path, marker: Marker, stored: Mapping[str, Any], device: torch.device | str) -> Any:
    if stored["file"] is None:
        return decode(stored["tree"], _no_tensor)
    path = folder / stored["file"]
    _verify(path, marker.files.get(path.name))
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                # A copy: the tensor must not hang on a mapped file that rotation deletes or someone overwrites.
                tensors[name] = file.get_tensor(name).to(device, copy=True)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path.name} cannot be read: {error}") from error
    return decode(stored["tree"], tensors.__getitem__)


def _no_tensor(name: str) -> torch.Tensor:
    raise Damaged(f"{STATE} names the tensor {name!r} in a place that has no tensors")


def _verify(path: Path, fact: FileFact | None) -> None:
    if fact is None:
        raise Damaged(f"{path.name} is not vouched for by {MARKER}")
    _check_size(path, fact)
    try:
        found = fact_of(path)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error
    if found != fact:
        raise Damaged(f"{path.name} has changed since it was written (its sha256 differs)")


def _check_size(path: Path, fact: FileFact) -> None:
    try:
        size = os.stat(path).st_size
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error
    if size != fact.size:
        raise Damaged(f"{path.name} has {size} bytes instead of {fact.size}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} is missing") from error
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {plain_words(error)}") from error


def _marker_bytes(marker: Marker) -> bytes:
    fields: dict[str, Any] = {
        "format": FORMAT,
        "step": marker.step,
        "save_number": marker.save_number,
        "files": {name: {"bytes": fact.size, "sha256": fact.sha256} for name, fact in marker.files.items()},
    }
    return _json_bytes({**fields, "sha256": hashlib.sha256(_json_bytes(fields)).hexdigest()})


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
