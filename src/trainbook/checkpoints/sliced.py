"""A checkpoint that several ranks write together, each its own slices: no rank ever holds the whole state.

PyTorch's distributed checkpoints (DCP) lead through it: who writes what, with one writer for what several ranks hold;
and what fails on one rank fails on all. What is written is a folder like any other, with a safetensors file of each
rank for each part. DCP's own writer of such files (HuggingFaceStorageWriter) is not used: it holds each file a second
time in memory, knows no hashes, and refuses tensors that are tied.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from trainbook.checkpoints.catalogue import Addition
from trainbook.checkpoints.encoding import NATIVE_DTYPES, OFFSETS, SLICES, EncodedPart, TensorFile
from trainbook.checkpoints.folder import SLICED_FORMAT, FileFact, Marker, room_for, seal, state_bytes, write_file
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.strategy import Slice


class SlicedCheckpoint:
    """What this rank has of a checkpoint. The first rank has what is no slice, and says what the whole looks like."""

    def __init__(self, step: int, parts: Mapping[str, EncodedPart], metrics: Mapping[str, Any], is_first: bool) -> None:
        self.step, self.metrics, self.is_first = step, metrics, is_first
        self.parts = parts
        self.sliced = [name for name, part in parts.items() if part.slices]
        sizes = [_whole_bytes(tensor) for part in parts.values() for tensor in part.tensors.values()]
        self.bytes_needed = room_for([sum(sizes), len(self._state({}))])

    def items(self) -> Iterator[WriteItem]:
        """What this rank could write of the parts that are sliced; a slice of nothing is not worth it."""
        for part in self.sliced:
            for name, tensor in self.parts[part].tensors.items():
                if isinstance(tensor, Slice):
                    if tensor.values.numel() or not tensor.whole.numel():
                        yield _item(part, name, tensor.values, tensor.offsets, tensor.whole)
                elif self.is_first:
                    yield _item(part, name, tensor, [0] * tensor.ndim, tensor.shape)

    def write(self, folder: Path, named: Mapping[str, Sequence[str]]) -> dict[str, FileFact]:
        """This rank's files. `named`: of each file, which tensors it is to hold, as `part/name`."""
        files: dict[str, TensorFile] = {}
        for file, names in named.items():
            held = {name: self.parts[part].tensors[name] for part, name in (each.split("/", 1) for each in names)}
            files[file] = _tensor_file(held)
        if self.is_first:
            for name, part in self.parts.items():
                if part.tensors and name not in self.sliced:
                    files[f"{name}.safetensors"] = TensorFile(part.plain)
        return {name: write_file(folder / name, file.pieces()) for name, file in files.items()}

    def seal(self, folder: Path, save_number: int, files: Mapping[str, FileFact]) -> Marker:
        of_parts: dict[str, list[str]] = defaultdict(list)
        for file in sorted(files):
            of_parts[file.rsplit("-", 3)[0]].append(file)
        marker = Marker(self.step, save_number, dict(files), SLICED_FORMAT)
        return seal(folder, self._state(of_parts), marker)

    def _state(self, files: Mapping[str, Sequence[str]]) -> bytes:
        stored: dict[str, dict[str, Any]] = {}
        for name, part in self.parts.items():
            if name in self.sliced:
                shapes = {each: list(held.whole) for each, held in part.slices.items()}
                stored[name] = {"files": list(files.get(name, ())), "shapes": shapes, "tree": part.tree}
            else:
                stored[name] = {"file": f"{name}.safetensors" if part.tensors else None, "tree": part.tree}
        return state_bytes(SLICED_FORMAT, self.step, self.metrics, stored)


def write_together(
    new: SlicedCheckpoint, addition: Addition, ranks: Ranks, check_room: Callable[[], None]
) -> Marker | None:
    """All ranks at once. The first one gets the marker of what is complete by then; any failure is raised by all."""
    writer = SliceWriter(new, addition, check_room)
    try:
        dcp.save({}, storage_writer=writer, planner=SlicePlanner(new), process_group=ranks.group)
    except BaseException:
        if ranks.is_first:
            addition.abandon()
        raise
    return writer.marker


class SlicePlanner(DefaultSavePlanner):
    """Of a slice that several ranks hold, one writes it: whoever has least to write."""

    def __init__(self, new: SlicedCheckpoint) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.new = new

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(list(self.new.items()))
        return self.plan


class SliceWriter(StorageWriter):
    """The first rank opens a folder and says who writes which files; all write; the first one seals the folder."""

    def __init__(self, new: SlicedCheckpoint, addition: Addition, check_room: Callable[[], None]) -> None:
        super().__init__()
        self.new, self.addition, self.check_room = new, addition, check_room
        self.marker: Marker | None = None
        self._folder, self._save_number = Path(), 0

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self.check_room()
        self._folder, self._save_number = self.addition.begin()
        named = file_names([[item.index.fqn for item in plan.items] for plan in plans])
        return [replace(plan, storage_data=(self._folder, files)) for plan, files in zip(plans, named, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = self.new.write(*plan.storage_data)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(name), fact.size, fact) for name, fact in written.items()])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files = {each.index.fqn: each.storage_data for of_rank in results for each in of_rank}
        self.marker = self.new.seal(self._folder, self._save_number, files)
        self.addition.finish()

    # What the interface asks for besides

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def storage_meta(self) -> StorageMeta | None:
        return None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def file_names(of_ranks: Sequence[Sequence[str]]) -> list[dict[str, list[str]]]:
    """The files of each rank, with the tensors in each: one for each part that it has anything of."""
    parts = [defaultdict(list) for _ in of_ranks]
    for names, found in zip(of_ranks, parts, strict=True):
        for name in names:
            found[name.split("/", 1)[0]].append(name)
    named: list[dict[str, list[str]]] = [{} for _ in of_ranks]
    for part in dict.fromkeys(part for found in parts for part in found):
        writers = [rank for rank, found in enumerate(parts) if part in found]
        for number, rank in enumerate(writers, start=1):
            named[rank][f"{part}-{number:05d}-of-{len(writers):05d}.safetensors"] = parts[rank][part]
    return named


def _item(part: str, name: str, values: torch.Tensor, offsets: Sequence[int], whole: torch.Size) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(offsets), values.shape)
    about = TensorWriteData(chunk, TensorProperties(dtype=values.dtype), whole)
    return WriteItem(MetadataIndex(f"{part}/{name}", chunk.offsets), WriteItemType.SHARD, tensor_data=about)


def _tensor_file(held: Mapping[str, torch.Tensor | Slice]) -> TensorFile:
    values = {name: tensor.values if isinstance(tensor, Slice) else tensor for name, tensor in held.items()}
    offsets = {name: {OFFSETS: _offsets(tensor)} for name, tensor in held.items()}
    # The names and the version are those of PyTorch's own files of this kind.
    return TensorFile(values, {SLICES: json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"})


def _offsets(tensor: torch.Tensor | Slice) -> list[int]:
    if isinstance(tensor, Slice):
        return list(tensor.offsets)
    return [0] * (tensor.ndim if tensor.dtype in NATIVE_DTYPES else 1)  # others are a row of bytes


def _whole_bytes(tensor: torch.Tensor | Slice) -> int:
    if isinstance(tensor, Slice):
        return tensor.whole.numel() * tensor.values.itemsize
    return tensor.nbytes
