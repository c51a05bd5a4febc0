"""Weights in a folder of Hugging Face format: read one tensor at a time, written as safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainbook.bounded import json_text
from trainbook.bounded.arrays import open_tensors
from trainbook.bounded.files import must_be_regular
from trainbook.contained import is_plain_name
from trainbook.errors import UserError

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
OLD, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class Weights:
    """Names, shapes and tensors, from however many files. A tensor is read when it is asked for."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files  # by the name of the tensor: an open safetensors file, or the mapping of an old one

    def names(self) -> list[str]:
        return sorted(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        file = self._files[name]
        return tuple(file[name].shape) if isinstance(file, dict) else tuple(file.get_slice(name).get_shape())

    def get(self, name: str) -> Tensor:
        file = self._files[name]
        return file[name] if isinstance(file, dict) else file.get_tensor(name)


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """The weights in safetensors; in the old format, only tensors are unpickled, and only where there is no other."""
    files = _files(folder)
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for path in files:
            if path.suffix == ".safetensors":
                try:
                    opened = stack.enter_context(open_tensors(path))
                except (SafetensorError, OSError, ValueError) as error:
                    raise UserError(f"{path} is not a complete safetensors file ({error}).") from None
                found |= dict.fromkeys(opened.keys(), opened)
            else:
                tensors = _unpickle(path)
                found |= dict.fromkeys(tensors, tensors)
        yield Weights(found)


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file(dict(tensors), folder / SAFE, metadata={"format": "pt"})


def _files(folder: Path) -> list[Path]:
    for single, index in ((SAFE, SAFE_INDEX), (OLD, OLD_INDEX)):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index)
    alone = sorted(folder.glob("*.safetensors"))
    if len(alone) == 1:
        return alone
    raise UserError(f"{folder} has no weights: neither {SAFE} (or its index) nor {OLD}.")


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json_text.read(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} cannot be read ({error}).") from None
    for name in names:
        if not is_plain_name(name):
            raise UserError(f"{index} names {name!r}, which is no file of its folder.")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise UserError(f"{index.parent} lacks {len(missing)} of the {len(names)} files in {index.name}: {missing[0]}.")
    return [index.parent / name for name in names]


def _unpickle(path: Path) -> dict[str, Tensor]:
    try:
        must_be_regular(path, path)
        read = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many kinds: a damaged pickle fails wherever its reader happens to be
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be loaded as plain tensors (weights_only) ({reason}).") from None
    if not isinstance(read, dict):
        raise UserError(f"{path} must hold tensors by their names, but holds a {type(read).__name__}.")
    return {name: tensor for name, tensor in read.items() if isinstance(tensor, Tensor)}
