"""Tensors as bytes: writing safetensors files tensor by tensor, and snapshots in host memory.

The library's own writer wants every tensor in host memory at once and the file read again for its hash; here one tensor
at a time goes from the device through the hash to the disk. Reading is the library's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence

import torch

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
