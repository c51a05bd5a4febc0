from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.batches import filling
from trainbook.data.batches.filling import PackedRows, pack


def contents(rows: PackedRows) -> list[list[int]]:
    return [rows.members[start:end].tolist() for start, end in zip(rows.starts, rows.starts[1:], strict=False)]


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), max_size=80),
    with_targets=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_document_is_in_one_row_and_no_row_is_too_full(
    pairs: list[tuple[int, int]], with_targets: bool, shuffle: bool, seed: int
) -> None:
    lengths, targets = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    limits = {"target_lengths": targets, "target_capacity": 12} if with_targets else {}
    rows = pack(lengths, 30, seed, shuffle=shuffle, **limits)
    held = contents(rows)
    assert sorted(rows.members.tolist()) == list(range(len(lengths)))
    assert all(held) and len(held) == len(rows)
    assert all(lengths[row].sum() <= 30 for row in held)
    if with_targets:
        assert all(targets[row].sum() <= 12 for row in held)
    assert rows.sizes(np.arange(len(rows))).tolist() == [len(row) for row in held]


def long_tail(count: int, capacity: int) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(capacity / 8), 1.0, count)
    return np.clip(drawn.astype(np.int64), 1, capacity)


@pytest.mark.parametrize("capacity", [64, 512, 100_000])
def test_hardly_anything_is_left_free(capacity: int) -> None:
    lengths = long_tail(5000, capacity)
    assert lengths.sum() / (len(pack(lengths, capacity, 0)) * capacity) > 0.98


def test_two_limits_are_used_up_to_the_tighter_one() -> None:
    lengths, targets = long_tail(5000, 512), long_tail(5000, 128)[::-1]
    rows = pack(lengths, 512, 0, target_lengths=targets, target_capacity=128)
    assert max(lengths.sum() / 512, targets.sum() / 128) / len(rows) > 0.8


def test_rows_stay_open_from_chunk_to_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "CHUNK", 16)
    lengths = long_tail(2000, 512)
    assert lengths.sum() / (len(pack(lengths, 512, 0)) * 512) > 0.95


def test_rows_follow_from_the_seed() -> None:
    lengths = long_tail(500, 512)
    same, again, other = (contents(pack(lengths, 512, seed)) for seed in (1, 1, 2))
    assert same == again != other


def test_the_smallest_room_that_is_enough_is_taken() -> None:
    # 7 and 6 open rows with room 3 and 4; 3 fits exactly beside the 7, 4 beside the 6.
    rows = contents(pack(np.array([7, 6, 4, 3]), 10, 0, shuffle=False))
    assert sorted(map(sorted, rows)) == [[0, 3], [1, 2]]


def test_a_full_document_has_a_row_of_its_own() -> None:
    assert contents(pack(np.array([10, 1, 10]), 10, 0, shuffle=False)) == [[0], [2], [1]]


def test_what_cannot_fit_is_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="lengths must be between 1 and 10, but are 1 to 11"):
        pack(np.array([1, 11]), 10, 0)
    with pytest.raises(ValueError, match="lengths must be between 1 and 10, but are 0 to 4"):
        pack(np.array([0, 4]), 10, 0)
    with pytest.raises(ValueError, match="target lengths must be at most 5, but reach 6"):
        pack(np.array([1]), 10, 0, target_lengths=np.array([6]), target_capacity=5)
