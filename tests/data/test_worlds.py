"""Many shards on several devices: a step has the same batch on any number of them, and each reads its own rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import BatchPlan, DataBundle, eval_batches
from trainbook.data.batches.filling import Batch, Ragged
from trainbook.data.prepare.cached import ConcatMemmap

KINDS: dict[str, dict[str, Any]] = {
    "windows": {"samples": "windows"},
    "documents": {"samples": "documents", "padding": "longest"},
    "bucketed": {"samples": "documents", "padding": "bucketed"},
    "packed": {"samples": "documents", "padding": "packed"},
    "pairs": {"records": "pairs", "padding": "packed"},
    "tagged": {"records": "tagged", "padding": "bucketed"},
}
STEPS = range(12)


@pytest.fixture(params=list(KINDS))
def bundle(
    request: pytest.FixtureRequest, build_from: Callable[..., DataBundle], tmp_path: Path, monkeypatch: Any
) -> DataBundle:
    monkeypatch.setattr("trainbook.data.prepare.folder_cache.SMALL_BYTES", 0)
    folder = tmp_path / "shards"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for shard in range(9):
        with (folder / f"{shard}.jsonl").open("w") as stream:
            for line in range(12):
                words = [f"w{shard}{line}{number}" for number in range(draw.integers(1, 9))]
                record = {"text": " ".join(words), "target": " ".join(words[::-1]), "words": words}
                stream.write(json.dumps({**record, "tags": ["AB"[len(word) % 2] for word in words]}) + "\n")
    return build_from(folder, max_seq_length=24, **KINDS[request.param])


def plan_of(bundle: DataBundle, kind: dict[str, Any], size: int = 6) -> BatchPlan:
    return BatchPlan(bundle.train, size, 5, True, padding=kind.get("padding", "longest"), micro_batch=2)


def parts_of(batch: Batch) -> dict[str, Any]:
    ragged = {"tokens": batch.tokens, "targets": batch.targets, "marks": batch.marks}
    found: dict[str, Any] = {"ids": batch.ids, "epochs": batch.epochs}
    for name, part in ragged.items():
        if isinstance(part, Ragged):
            found |= {name: part.values, f"{name} lengths": part.lengths}
    return found


def joined(batches: list[Batch]) -> dict[str, Any]:
    """The shares in order of rank as one batch, and the row of each sample in the whole."""
    found = {name: np.concatenate([parts_of(batch)[name] for batch in batches]) for name in parts_of(batches[0])}
    first = np.cumsum([0, *(batch.num_rows for batch in batches)])
    return {**found, "rows": np.concatenate([batch.rows + at for batch, at in zip(batches, first, strict=False)])}


def test_the_shares_of_any_world_are_the_batch_of_one_device(
    bundle: DataBundle, request: pytest.FixtureRequest
) -> None:
    kind = KINDS[request.node.callspec.params["bundle"]]
    assert isinstance(bundle.train.tokens, ConcatMemmap)
    for step in STEPS:
        alone = joined([plan_of(bundle, kind).batch(step)])
        for world in (2, 4):
            # A plan of its own for each rank, as each process has one.
            shares = [plan_of(bundle, kind).batch(step, rank, world) for rank in range(world)]
            together = joined(shares)
            for name, values in alone.items():
                assert values.tobytes() == together[name].tobytes(), (name, step, world)
            assert len({share.epoch for share in shares}) == 1


def test_the_shares_of_an_evaluation_are_the_whole_of_it(bundle: DataBundle) -> None:
    assert bundle.validation is not None
    whole = [joined([batch]) for batch in eval_batches(bundle.validation, 4)]
    for world in (2, 4):
        shares = zip(*(eval_batches(bundle.validation, 4, None, rank, world) for rank in range(world)), strict=True)
        for alone, batches in zip(whole, shares, strict=True):
            together = joined(list(batches))
            assert all(values.tobytes() == together[name].tobytes() for name, values in alone.items())


def test_a_rank_reads_the_rows_that_are_its_own_and_nothing_else(
    bundle: DataBundle, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[request.node.callspec.params["bundle"]]
    read: list[np.ndarray] = []
    real = ConcatMemmap._read

    def spy(self: ConcatMemmap, file: int, places: Any) -> np.ndarray:
        if self is bundle.train.tokens:
            assert isinstance(places, np.ndarray), "rows are read place by place"
            read.append(places + self.bounds[file])
        return real(self, file, places)

    monkeypatch.setattr(ConcatMemmap, "_read", spy)
    for world in (1, 2, 4):
        everybodys: list[np.ndarray] = []
        for rank in range(world):
            plan = plan_of(bundle, kind)
            read.clear()
            batch = plan.batch(3, rank, world)
            places = np.concatenate([*read, np.empty(0, dtype=np.int64)])
            # As many as the rows have tokens, without what is put around them: nothing is read for another's sake.
            assert len(places) == len(batch.tokens.values) - around(bundle, batch)
            everybodys.append(places)
        if world == 1:
            alone = np.sort(everybodys[0])
        assert np.sort(np.concatenate(everybodys)).tolist() == alone.tolist()


def around(bundle: DataBundle, batch: Batch) -> int:
    """Tokens that a frame puts at the end of samples; the frames here begin with none."""
    end = bundle.tokenizer.end_of_text
    assert bundle.train.frame.prefix == ()
    if not bundle.train.frame.suffix:
        return 0
    return int(sum(part[-1] == end for part in batch.tokens.split()))
