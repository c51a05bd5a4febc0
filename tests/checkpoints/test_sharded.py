"""Slices that several ranks wrote are one state, for any number of readers."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import errno
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from trainbook.bounded.arrays import open_tensors
from trainbook.checkpoints import CheckpointStore, reading
from trainbook.checkpoints.catalogue import Addition
from trainbook.checkpoints.encoding import encode_state, snapshot_parts
from trainbook.checkpoints.reading import share_of
from trainbook.checkpoints.sliced import SlicedCheckpoint, SlicePlanner, SliceWriter, file_names
from trainbook.errors import CheckpointError
from trainbook.parallel.ranks import RankEnv, Ranks
from trainbook.parallel.strategy import Slice

FIRST_FEW = ["model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors"]
FILES = [*FIRST_FEW, "optimizer-00002-of-00004.safetensors", "loop.safetensors", "state.json", "complete.json"]
SHAPES = {"embedding": [7, 6], "blocks.0.matrix": [8, 3, 2], "blocks.0.bias": [2], "nothing": [0, 3]}


def whole_state(step: int = 1) -> dict[str, Any]:
    """Of a model with tied weights, a bias shorter than there are ranks, and an average that no rank has in slices."""
    weight = torch.arange(7 * 6).view(7, 6) * 0.5 + step
    model = {
        "embedding": weight,
        "head": weight,
        "blocks.0.matrix": torch.arange(8 * 3 * 2).view(8, 3, 2).to(torch.bfloat16) - step,
        "blocks.0.bias": torch.tensor([float("nan"), -0.0]),
        "nothing": torch.empty(0, 3),
        "count": torch.tensor(step),
        "rotation": torch.tensor([1 + 2j, 3 - 1j]) * step,
    }
    kept = {name: {"step": torch.tensor(float(step)), "exp_avg": value / 3} for name, value in list(model.items())[1:4]}
    return {"model": model, "optimizer": kept, "loop": {"applied": torch.tensor(step), "kept_out": [step, 2]}}


def chunk(tensor: Tensor, rank: int, world: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes as FSDP2 cuts: by rows, as many as fit, and for the last ranks perhaps none."""
    rows = math.ceil(len(tensor) / world) if len(tensor) else 0
    start = min(rank * rows, len(tensor))
    rest = [0] * (tensor.ndim - 1)
    return (start, *rest), (min(rows, len(tensor) - start), *tensor.shape[1:])


def slice_of(tensor: Tensor, rank: int, world: int) -> Slice:
    (start, *rest), (rows, *_) = chunk(tensor, rank, world)
    return Slice(tensor[start : start + rows], (start, *rest), tensor.shape)


def held_by(rank: int, world: int, state: dict[str, Any]) -> dict[str, Any]:
    """What a rank has of a state: slices of what is trained, and its own numbers where there are no slices."""

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: cut(each) for name, each in value.items()}
        is_cut = isinstance(value, Tensor) and value.ndim and not value.is_complex()
        return slice_of(value, rank, world) if is_cut else value if rank == 0 else value * 0 - 9

    return {**state, "model": cut(state["model"]), "optimizer": cut(state["optimizer"])}


def write(folder: Path, step: int, of_ranks: Sequence[dict[str, Any]], check_room: Callable[[], None] = lambda: None):
    """As `dcp.save` leads through it, with all ranks in one process."""
    folder.mkdir(exist_ok=True)
    addition = Addition(folder, step, is_best=False)
    news = [SlicedCheckpoint(step, encode_state(state), {"dict": {}}, not rank) for rank, state in enumerate(of_ranks)]
    writers = [SliceWriter(new, addition, check_room) for new in news]
    planners = [SlicePlanner(new) for new in news]
    for rank, planner in enumerate(planners):
        planner.set_up_planner({}, is_coordinator=not rank)
    plans, metadata = planners[0].create_global_plan([planner.create_local_plan() for planner in planners])
    plans = writers[0].prepare_global_plan(plans)
    with_all = zip(writers, planners, plans, strict=True)
    results = [writer.write_data(planner.finish_plan(plan), planner).value() for writer, planner, plan in with_all]
    writers[0].finish(metadata, results)
    return addition.path


def write_by(world: int, folder: Path, step: int = 1) -> Path:
    return write(folder, step, [held_by(rank, world, whole_state(step)) for rank in range(world)])


class Crew:
    """Ranks that are threads of this process."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier, self.told = world, threading.Barrier(world), [None] * world

    def member(self, rank: int) -> Ranks:
        workers = self

        class Member(Ranks):
            def gather(self, value: Any) -> list[Any]:
                workers.told[self.rank] = value
                workers.barrier.wait(60)
                found = list(workers.told)
                workers.barrier.wait(60)
                return found

            def broadcast(self, value: Any) -> Any:
                return self.gather(value)[0]

        return Member(RankEnv(rank=rank, world=self.world))

    def each(self, work: Callable[[Ranks], Any]) -> list[Any]:
        results: list[Any] = [None] * self.world

        def run(rank: int) -> None:
            try:
                results[rank] = work(self.member(rank))
            except CheckpointError as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def load_by(readers: int, folder: Path, heard: list[dict[str, Any]], which: Any = "latest", **how: Any) -> list[Any]:
    """What each of so many ranks finds, or its error; `heard` is what they tell of damage."""

    def hear(kind: str, facts: dict[str, Any]) -> None:
        heard.append(facts)

    def load(ranks: Ranks) -> Any:
        return CheckpointStore(folder, read_only=True, on_event=hear, ranks=ranks).load(which, **how)

    return Crew(readers).each(load)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_one_reader_finds_the_state_that_so_many_wrote(tmp_path, world, assert_same):
    path = write_by(world, tmp_path)
    loaded = CheckpointStore(tmp_path, read_only=True).load()
    assert_same(loaded.state, whole_state())
    assert loaded.state["model"]["head"] is loaded.state["model"]["embedding"]
    names = sorted(each.name for each in path.iterdir())
    assert names == sorted(
        [f"{part}-{n + 1:05d}-of-{w:05d}.safetensors" for part, w in writers_of(world).items() for n in range(w)]
        + ["loop.safetensors", "state.json", "complete.json"]
    )


def writers_of(world: int) -> dict[str, int]:
    """How many have a row of anything: of nine, the largest matrix has rows for eight."""
    return {"model": min(world, 8), "optimizer": min(world, 8)}


@pytest.mark.parametrize(("saved", "read"), [(4, 1), (4, 2), (4, 3), (2, 4), (3, 2), (1, 3)])
def test_so_many_readers_find_each_its_own_slices(tmp_path, saved, read, assert_same):
    if saved == 1:  # the file of one device, as it always was
        CheckpointStore(tmp_path).save(1, whole_state())
    else:
        write_by(saved, tmp_path)
    wanted = whole_state()["model"]
    for rank in range(read):
        loaded = CheckpointStore(tmp_path, read_only=True).load(unread=("model",))
        assert_same(loaded.state["optimizer"], whole_state()["optimizer"])
        for name, tensor in wanted.items():
            found = loaded.state["model"][name]
            if tensor.is_complex():
                assert_same(found, tensor)  # of a type that the format lacks: never in parts
                continue
            assert found.shape == tensor.shape
            if tensor.ndim:
                own = slice_of(tensor, rank, read)
                assert_same(found.read(own.offsets, own.values.shape), own.values)


def test_any_box_can_be_read(tmp_path, assert_same):
    write_by(3, tmp_path)
    wanted = whole_state()["model"]["blocks.0.matrix"]
    found = CheckpointStore(tmp_path, read_only=True).load(unread=("model",)).state["model"]["blocks.0.matrix"]
    for start in range(8):
        for stop in range(start, 9):
            assert_same(found.read((start, 1, 0), (stop - start, 2, 2)), wanted[start:stop, 1:3])
    assert_same(found.read(), wanted)


def test_a_reader_looks_into_no_file_that_has_nothing_of_its_slice(tmp_path, monkeypatch):
    write_by(4, tmp_path)
    looked: list[str] = []

    class Watched:
        def __init__(self, path: Path, **how: Any) -> None:
            self.path, self.file = path, open_tensors(path, **how)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def get_tensor(self, name: str) -> Tensor:
            looked.append(self.path.name)
            return self.file.get_tensor(name)

    monkeypatch.setattr(reading, "open_tensors", Watched)
    loaded = CheckpointStore(tmp_path, read_only=True).load(parts=("model",), unread=("model",))
    looked.clear()  # what is stored as raw bytes is read at once
    loaded.state["model"]["blocks.0.matrix"].read((3, 0, 0), (2, 3, 2))
    assert looked == ["model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors"]


def test_of_copies_each_slice_is_written_once_and_all_ranks_write(tmp_path, assert_same):
    """Two copies over two ranks each, as hybrid sharding has them."""
    path = write(tmp_path, 1, [held_by(rank % 2, 2, whole_state()) for rank in range(4)])
    assert_same(CheckpointStore(tmp_path, read_only=True).load().state, whole_state())
    found: Counter[tuple[str, str]] = Counter()
    sizes = []
    for file in sorted(path.glob("model-*")):
        with safe_open(file, "pt") as opened:
            sizes.append(sum(opened.get_tensor(name).nbytes for name in opened.keys()))  # noqa: SIM118
            found.update((name, str(opened.get_tensor(name).tolist())) for name in opened.keys())  # noqa: SIM118
    assert set(found.values()) == {1}
    assert len(sizes) == 4 and max(sizes) < sum(sizes) / 2


def test_what_is_no_slice_is_that_of_the_first_rank(tmp_path):
    """`held_by` gives the others different numbers."""
    write_by(3, tmp_path)
    state = CheckpointStore(tmp_path, read_only=True).load().state
    assert state["model"]["count"] == 1 and state["optimizer"]["head"]["step"] == 1.0


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_seen_by_any_number_of_readers(tmp_path, name, assert_same):
    write_by(4, tmp_path, step=1)
    newest = write_by(4, tmp_path, step=2)
    path = newest / name
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    for readers, place in [(1, 3), (1, len(content) // 2), (3, len(content) // 2), (3, len(content) - 1)]:
        content[:] = whole
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        heard: list[dict[str, Any]] = []
        found = load_by(readers, tmp_path, heard, unread=("model",))
        assert [each.step for each in found] == [1] * readers
        assert [facts["path"] for facts in heard] == [str(newest)] * readers
        assert len({facts["reason"] for facts in heard}) == 1 and name in heard[0]["reason"]
        assert_same(found[-1].state["optimizer"], whole_state(1)["optimizer"])


def test_one_reader_that_cannot_read_a_file_is_enough_and_named(tmp_path, monkeypatch):
    write_by(2, tmp_path)
    real = reading.verify

    def verify(path: Path, fact: Any) -> None:
        if path.name == "optimizer-00002-of-00002.safetensors":
            fact = replace(fact, sha256="0" * 64)
        real(path, fact)

    monkeypatch.setattr(reading, "verify", verify)
    errors = load_by(3, tmp_path, [])
    assert all(isinstance(error, CheckpointError) for error in errors) and len({str(each) for each in errors}) == 1
    assert "optimizer-00002-of-00002.safetensors has changed" in str(errors[0])


def test_a_step_that_is_not_there_is_an_error_for_all(tmp_path):
    write_by(2, tmp_path)
    errors = load_by(2, tmp_path, [], which=7)
    assert [str(error) for error in errors] == [
        f"Step 7 cannot be loaded: {tmp_path} has no checkpoint of this step; it has 1."
    ] * 2


def test_a_missing_slice_is_seen_though_every_file_is_vouched_for(tmp_path):
    states = [held_by(rank, 2, whole_state()) for rank in range(2)]
    del states[1]["model"]["blocks.0.bias"]
    with pytest.raises(ValueError, match=r"model/blocks\.0\.bias invalid fill"):
        write(tmp_path, 1, states)
    other = tmp_path / "other"
    path = write_by(2, other)
    with pytest.raises(reading.Damaged, match="only 42 of the 54 values of embedding are present"):
        reading._open(
            path, [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)], {**SHAPES, "embedding": [9, 6]}, "cpu"
        )
    with pytest.raises(reading.Damaged, match="no file holds the tensor head"):
        reading._open(path, [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)], {**SHAPES, "head": [7, 6]}, "cpu")


def test_files_to_verify_are_shared_out_evenly():
    sizes = {f"file-{n}": size for n, size in enumerate([100, 60, 50, 50, 40, 1])}
    shares = [share_of(sizes, rank, 3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert max(sum(sizes[name] for name in share) for share in shares) <= 110
    assert share_of(sizes, 0, 1) == sorted(sizes, key=lambda name: -sizes[name])
    assert share_of({"file": 3}, 1, 2) == []


def test_files_are_numbered_among_those_who_have_something():
    named = file_names([["model/a", "model/b.c/d"], [], ["model/a", "ema-model/a"]])
    assert named == [
        {"model-00001-of-00002.safetensors": ["model/a", "model/b.c/d"]},
        {},
        {"model-00002-of-00002.safetensors": ["model/a"], "ema-model-00001-of-00001.safetensors": ["ema-model/a"]},
    ]


def test_a_part_may_be_called_as_another_begins(tmp_path, assert_same):
    tensor = torch.arange(6.0)
    states = [
        {"model": {"a": slice_of(tensor, rank, 2)}, "model-ema": {"a": slice_of(-tensor, rank, 2)}} for rank in (0, 1)
    ]
    write(tmp_path, 1, states)
    state = CheckpointStore(tmp_path, read_only=True).load().state
    assert_same(state, {"model": {"a": tensor}, "model-ema": {"a": -tensor}})


def test_pytorchs_own_reader_of_such_files_finds_the_weights(tmp_path):
    path = write_by(4, tmp_path)
    wanted = {name: whole_state()["model"][name] for name in ("embedding", "blocks.0.matrix")}
    found = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    for file in ("optimizer", "loop"):  # it takes every file of a folder
        for each in path.glob(f"{file}*.safetensors"):
            each.unlink()
    with pytest.warns(UserWarning, match="disabled, unavailable or uninitialized"):
        dcp.load(cast(Any, found), storage_reader=HuggingFaceStorageReader(str(path)))
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor)


def test_a_copy_of_slices_is_not_reached_by_later_changes():
    tensor = torch.arange(6.0)
    parts = encode_state({"model": {"a": slice_of(tensor, 1, 2)}})
    copied = snapshot_parts(parts)["model"].slices["a"]
    tensor.zero_()
    assert copied.values.tolist() == [3.0, 4.0, 5.0] and (copied.offsets, copied.whole) == ((3,), torch.Size([6]))


def test_a_slice_of_a_type_that_the_format_lacks_is_refused():
    with pytest.raises(
        CheckpointError, match=r"model\.a is a slice of type torch\.complex64, which safetensors does not support"
    ):
        encode_state({"model": {"a": Slice(torch.zeros(2, dtype=torch.complex64), (0,), torch.Size([4]))}})


def test_too_little_room_is_seen_before_anything_is_written(tmp_path):
    def full() -> None:
        raise OSError(errno.ENOSPC, "nothing was written")

    with pytest.raises(OSError, match="nothing was written"):
        write(tmp_path, 1, [held_by(rank, 2, whole_state()) for rank in range(2)], check_room=full)
    assert os.listdir(tmp_path) == []


def test_the_room_that_is_asked_for_is_that_of_the_whole(tmp_path):
    of_ranks = [SlicedCheckpoint(1, encode_state(held_by(rank, 4, whole_state())), {}, not rank) for rank in range(4)]
    path = write_by(4, tmp_path)
    assert {new.bytes_needed for new in of_ranks} == {of_ranks[0].bytes_needed}
    assert of_ranks[0].bytes_needed > sum(os.path.getsize(each) for each in path.iterdir())
