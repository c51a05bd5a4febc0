"""A nested state as JSON and named tensors, and back, bit for bit.

JSON alone loses what a state dict needs: integer keys, tuples, NaN, tensors. So every object in the JSON is one of

    {"dict": {"lr": …}}           a dict whose keys are all strings
    {"items": [[0, …], …]}        any other dict
    {"tuple": […]}                a tuple; a list is a JSON array
    {"float": "7ff8000000000000"} NaN or an infinity, by its bits; a finite float is a JSON number, which is exact
    {"tensor": "state.0.exp_avg"} a tensor in the part's safetensors file
    {"tensor": …, "dtype": "complex128", "shape": […]}  one of a type that safetensors lacks, kept as raw bytes

A slice, of which other ranks have the rest, is a tensor here like any other.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainbook.bounded.json_text import MOST_DIGITS
from trainbook.errors import CheckpointError
from trainbook.parallel.strategy import Slice, Unread

# Tensors as bytes: writing safetensors files tensor by tensor, and snapshots in host memory.


NATIVE_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
RAW_DTYPES = {  # not in the format, or only in its newest version: kept as a row of bytes
    getattr(torch, name): name
    for name in (
        "complex128",
        "complex64",
        "complex32",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    )
    if hasattr(torch, name)
}
# Where the slices of a file belong: PyTorch's own readers of such files (HuggingFaceStorageReader) know it by this.
SLICES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


class TensorFile:
    """A safetensors file that is about to be written; its size is known before."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str] | None = None) -> None:
        """`about`: words for the header, which readers that do not know them pass over."""
        # Wide types first: then each tensor starts at a multiple of its own width.
        self._tensors = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
        header: dict[str, object] = {} if about is None else {"__metadata__": dict(about)}
        offset = 0
        for name, tensor in self._tensors:
            end = offset + tensor.nbytes
            native = NATIVE_DTYPES.get(tensor.dtype)
            header[name] = {
                "dtype": native or "U8",
                "shape": list(tensor.shape) if native else [tensor.nbytes],
                "data_offsets": [offset, end],
            }
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = struct.pack("<Q", len(text)) + text
        self.size = len(self._header) + offset

    def pieces(self) -> Iterator[bytes | memoryview]:
        yield self._header
        for _, tensor in self._tensors:
            if tensor.numel():
                yield _bytes_of(tensor)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def snapshot(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in host memory that later changes cannot reach.

    CUDA copies are queued on the current stream of each device, into pinned memory, and waited for once at the end.
    """
    copies: list[torch.Tensor] = []
    devices: set[torch.device] = set()
    for tensor in tensors:
        if tensor.is_cuda:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copy.copy_(tensor.detach(), non_blocking=True)
            devices.add(tensor.device)
        else:
            copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        copies.append(copy)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return copies


MOST_NESTED = 32  # each level is up to three of JSON's, of which json_text reads MOST_DEPTH
PART_NAME = re.compile(r"[a-z][a-z0-9_-]*")  # lower case: a file name that means the same on every file system


@dataclass(frozen=True)
class EncodedPart:
    tree: Any
    tensors: dict[str, torch.Tensor | Slice]

    @property
    def slices(self) -> dict[str, Slice]:
        return {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, Slice)}

    @property
    def plain(self) -> dict[str, torch.Tensor]:
        """Those that every rank has whole."""
        return {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, torch.Tensor)}


def encode_state(state: Mapping[str, Any]) -> dict[str, EncodedPart]:
    parts: dict[str, EncodedPart] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not PART_NAME.fullmatch(name):
            raise CheckpointError(
                f"The name of a part must consist of lower-case letters, digits, '-' and '_', but got {name!r}."
            )
        encoder = _Encoder(name)
        parts[name] = EncodedPart(encoder.node(value, ()), encoder.tensors)
    return parts


def snapshot_parts(parts: Mapping[str, EncodedPart]) -> dict[str, EncodedPart]:
    """The same parts with tensors of their own in host memory; returns when the copies are finished."""
    flat = {(part, name): tensor for part, encoded in parts.items() for name, tensor in encoded.tensors.items()}
    values = [tensor.values if isinstance(tensor, Slice) else tensor for tensor in flat.values()]
    copies = dict(zip(flat, snapshot(values), strict=True))

    def copied(part: str, name: str, tensor: torch.Tensor | Slice) -> torch.Tensor | Slice:
        copy = copies[part, name]
        return replace(tensor, values=copy) if isinstance(tensor, Slice) else copy

    return {
        part: EncodedPart(encoded.tree, {name: copied(part, name, tensor) for name, tensor in encoded.tensors.items()})
        for part, encoded in parts.items()
    }


class _Encoder:
    def __init__(self, part: str) -> None:
        self.part = part
        self.tensors: dict[str, torch.Tensor | Slice] = {}
        self._name_of_view: dict[tuple[Any, ...], str] = {}

    def node(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > MOST_NESTED:
            raise self._refusal(path, f"is nested deeper than {MOST_NESTED} levels.")
        if isinstance(value, (torch.Tensor, Slice)):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, (list, tuple)):
            nodes = [self.node(item, (*path, str(index))) for index, item in enumerate(value)]
            return {"tuple": nodes} if isinstance(value, tuple) else nodes
        return self._scalar(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        nodes = [(key, self.node(item, (*path, str(key)))) for key, item in value.items()]
        if all(isinstance(key, str) for key in value):
            return {"dict": dict(nodes)}
        return {"items": [[self._scalar(key, (*path, f"key {key!r}")), node] for key, node in nodes]}

    def _scalar(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise self._refusal(path, f"is a whole number of more than {MOST_DIGITS} digits.")
        if value is None or isinstance(value, (bool, int, str)):
            return value
        raise self._refusal(
            path,
            f"is of type {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, "
            "booleans, strings, None, lists, tuples and mappings of these.",
        )

    def _tensor(self, given: torch.Tensor | Slice, path: tuple[str, ...]) -> dict[str, Any]:
        tensor = given.values if isinstance(given, Slice) else given
        self._must_be_storable(tensor, path)
        if isinstance(given, Slice) and tensor.dtype not in NATIVE_DTYPES:
            raise self._refusal(path, f"is a slice of type {tensor.dtype}, which safetensors does not support.")
        # Tied tensors are stored once and come back tied. Views that only overlap are stored each on its own.
        view = (
            (given.offsets, given.whole) if isinstance(given, Slice) else None,
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )
        name = self._name_of_view.get(view)
        if name is None:
            name = self._new_name(path)
            self._name_of_view[view] = name
            plain = tensor.detach()
            self.tensors[name] = replace(given, values=plain) if isinstance(given, Slice) else plain
        if tensor.dtype in NATIVE_DTYPES:
            return {"tensor": name}
        return {"tensor": name, "dtype": RAW_DTYPES[tensor.dtype], "shape": list(tensor.shape)}

    def _new_name(self, path: tuple[str, ...]) -> str:
        """The path joined by dots, so a model's file has the names of its parameters."""
        plain = ".".join(path) or self.part
        name, number = plain, 1
        while name in self.tensors or name == "__metadata__":  # {"a.b": …, "a": {"b": …}}; the format's own key
            number += 1
            name = f"{plain}#{number}"
        return name

    def _must_be_storable(self, tensor: torch.Tensor, path: tuple[str, ...]) -> None:
        if hasattr(tensor, "__tensor_flatten__"):
            raise self._refusal(path, f"is a {type(tensor).__name__}; gather it into a plain tensor first.")
        if tensor.is_meta:
            raise self._refusal(path, "is on the meta device: it has a shape but no values.")
        if tensor.layout != torch.strided:
            raise self._refusal(path, f"has the layout {tensor.layout}; make it dense first.")
        if tensor.dtype not in NATIVE_DTYPES and tensor.dtype not in RAW_DTYPES:
            raise self._refusal(path, f"has the type {tensor.dtype}, which cannot be stored as bytes.")

    def _refusal(self, path: tuple[str, ...], what: str) -> CheckpointError:
        return CheckpointError(f"The state cannot be saved: {'.'.join((self.part, *path))} {what}")


def decode(node: Any, tensor_named: Callable[[str], torch.Tensor | Unread]) -> Any:
    if isinstance(node, list):
        return [decode(item, tensor_named) for item in node]
    if not isinstance(node, dict):
        return node
    if "dict" in node:
        return {key: decode(item, tensor_named) for key, item in node["dict"].items()}
    if "items" in node:
        return {decode(key, tensor_named): decode(item, tensor_named) for key, item in node["items"]}
    if "tuple" in node:
        return tuple(decode(item, tensor_named) for item in node["tuple"])
    if "float" in node:
        return struct.unpack(">d", bytes.fromhex(node["float"]))[0]
    tensor = tensor_named(node["tensor"])
    if "dtype" not in node:
        return tensor
    raw = tensor if isinstance(tensor, torch.Tensor) else tensor.read()
    return raw.view(getattr(torch, node["dtype"])).reshape(node["shape"])
