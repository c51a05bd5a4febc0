"""Samples that a plan keeps out: no batch has them, and nothing else about the batches changes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.batches.feed import prefetch
from trainbook.data.batches.filling import Batch
from trainbook.data.batches.plan import BatchPlan, Padding
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.errors import DataError

PADDINGS: list[Padding] = ["longest", "max_length", "bucketed", "packed"]


def windows(count: int = 8 * 30 + 5, shift: int = 1, **knobs: Any) -> TokenWindows:
    return TokenWindows(np.arange(count, dtype=np.uint32), Frame(8, shift=shift), seed=11, **{"shuffle": True, **knobs})


def of_lengths(lengths: Any, frame: Frame, **knobs: Any) -> TokenDocuments:
    lengths = np.asarray(lengths)
    table = DocumentTable(
        np.cumsum(lengths) - lengths, lengths, np.ones_like(lengths), [str(i) for i in range(len(lengths))]
    )
    return TokenDocuments(np.arange(1, lengths.sum() + 1, dtype=np.uint32), table, frame, **knobs)


def documents(count: int = 23) -> TokenDocuments:
    return of_lengths([1 + number * 7 % 8 for number in range(count)], Frame(8, prefix=(0,), keep_suffix=False))


def batches(plan: BatchPlan, steps: int) -> list[Batch]:
    return [plan.batch(step) for step in range(steps)]


def in_rows(batch: Batch) -> list[list[int]]:
    """The ids of each row."""
    return [batch.ids[batch.rows == row].tolist() for row in range(batch.num_rows)]


def bad_windows(ids: np.ndarray, kept_out: set[int]) -> np.ndarray:
    """Those that read a token which one of the others reads."""
    return np.array([any(abs(start - bad) < 8 for bad in kept_out) for start in ids.tolist()], dtype=bool)


@settings(max_examples=60, deadline=None)
@given(
    kept_out=st.sets(st.integers(0, 22), max_size=20),
    padding=st.sampled_from(["longest", "max_length", "bucketed"]),
    size=st.integers(1, 9),
    shift=st.integers(0, 30),
    world=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_a_document_that_is_kept_out_never_comes_and_all_other_places_stay(
    kept_out: set[int], padding: Padding, size: int, shift: int, world: int, shuffle: bool
) -> None:
    def plan() -> BatchPlan:
        made = BatchPlan(documents(), size, 3, shuffle, total_samples=4 * 23 + 5, padding=padding, micro_batch=2)
        made.shift = shift
        return made

    before, after = plan(), plan()
    after.keep_out(kept_out)
    for step in range(-(-4 * 23 // size)):
        old, new = before.batch(step), after.batch(step)
        assert kept_out.isdisjoint(new.ids.tolist())
        stays = ~np.isin(old.ids, list(kept_out))
        assert new.ids[stays].tolist() == old.ids[stays].tolist()
        same = ("num_rows", "width", "epoch", "step", "packed")
        assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
        assert new.epochs.tolist() == old.epochs.tolist() and new.rows.tolist() == old.rows.tolist()
        shares = [after.batch(step, rank, world).ids for rank in range(world)]
        assert np.concatenate(shares).tolist() == new.ids.tolist()
    assert (after.steps_per_epoch, after.num_samples) == (before.steps_per_epoch, before.num_samples)


@settings(max_examples=40, deadline=None)
@given(
    # Windows of any epoch, so at any start.
    kept_out=st.sets(st.integers(0, 8 * 30 - 5), max_size=6),
    size=st.integers(1, 9),
    shift=st.sampled_from([0, 1]),
    padding=st.sampled_from(["longest", "max_length"]),
)
def test_a_window_is_kept_out_in_every_epoch_that_cuts_through_it(
    kept_out: set[int], size: int, shift: int, padding: Padding
) -> None:
    dataset = windows(shift=shift)
    before, after = (BatchPlan(dataset, size, 3, True, padding=padding) for _ in range(2))
    after.keep_out(kept_out)
    for step in range(-(-5 * after.num_samples // size)):
        old, new = before.batch(step), after.batch(step)
        is_bad = bad_windows(old.ids, kept_out)
        assert not bad_windows(new.ids, kept_out).any()
        assert new.ids[~is_bad].tolist() == old.ids[~is_bad].tolist()
        assert new.tokens.lengths.tolist() == old.tokens.lengths.tolist()
        offsets = np.array([dataset.offset(int(epoch)) for epoch in new.epochs])
        assert ((new.ids - offsets) % 8 == 0).all()  # another window of the same epoch


def test_the_neighbours_of_a_window_stay_though_they_share_its_last_token() -> None:
    """The last token of a causal window is only predicted, and the first that the next one reads."""
    plan = BatchPlan(windows(shuffle=False), 1, 3, False)
    before = [batch.ids.item() for batch in batches(plan, 30)]
    assert before[4:7] == [32, 40, 48]
    plan.keep_out([40])
    after = [batch.ids.item() for batch in batches(plan, 30)]
    assert [number for number, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [5]


@settings(max_examples=40, deadline=None)
@given(kept_out=st.sets(st.integers(0, 22), max_size=22), size=st.integers(1, 5), shuffle=st.booleans())
def test_packed_rows_lose_what_is_kept_out_and_keep_the_rest(kept_out: set[int], size: int, shuffle: bool) -> None:
    before, after = (BatchPlan(documents(), size, 3, shuffle, padding="packed") for _ in range(2))
    after.keep_out(kept_out)
    assert after.num_samples == before.num_samples
    rows = [tuple(row) for batch in batches(before, before.steps_per_epoch) for row in in_rows(batch)]
    left = {tuple(sample for sample in row if sample not in kept_out) for row in rows} - {()}
    for step in range(3 * before.steps_per_epoch):
        old, new = before.batch(step), after.batch(step)
        assert (new.num_rows, new.width, new.packed) == (old.num_rows, 8, True)
        for before_row, row in zip(in_rows(old), in_rows(new), strict=True):
            expected = [sample for sample in before_row if sample not in kept_out]
            assert row == expected if expected else tuple(row) in left
        assert np.bincount(new.rows, new.tokens.lengths, minlength=new.num_rows).max() <= 8
        assert (np.bincount(new.rows, minlength=new.num_rows) > 0).all()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", [windows, documents])
def test_batches_without_anything_kept_out_are_what_they_always_were(make, padding: Padding) -> None:
    never, emptied = (BatchPlan(make(), 4, 5, True, padding=padding, micro_batch=2) for _ in range(2))
    emptied.keep_out([1, 2, 3])
    emptied.keep_out([])
    for old, new in zip(batches(never, 40), batches(emptied, 40), strict=True):
        assert old.ids.tolist() == new.ids.tolist() and old.tokens.values.tolist() == new.tokens.values.tolist()


def test_the_order_of_samples_is_the_one_of_earlier_versions() -> None:
    """What a run of an earlier version trained on, it goes on with."""
    ids = [batch.ids.tolist() for batch in batches(BatchPlan(windows(), 4, 5, True), 3)]
    assert ids == [[176, 40, 88, 224], [72, 168, 80, 104], [200, 160, 152, 120]]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", [windows, documents])
def test_a_batch_is_a_function_of_seed_step_and_what_is_kept_out(make, padding: Padding) -> None:
    """Not of when it was said, in which order, or of what was asked for before."""

    def plan() -> BatchPlan:
        return BatchPlan(make(), 4, 5, True, padding=padding, micro_batch=2)

    in_order, late, pickled = plan(), plan(), plan()
    in_order.keep_out([0, 9, 16])
    expected = batches(in_order, 40)
    late.batch(17)
    late.keep_out([3])
    late.batch(2)
    late.keep_out(np.array([16, 0, 9, 9]))
    pickled.keep_out(sample for sample in (9, 16, 0))
    pickled = pickle.loads(pickle.dumps(pickled))
    for step in (39, 3, 17, 0):
        for other in (late, pickled):
            assert other.batch(step).ids.tolist() == expected[step].ids.tolist()
            assert other.batch(step).tokens.values.tolist() == expected[step].tokens.values.tolist()


def test_a_place_keeps_its_substitute_when_more_is_kept_out() -> None:
    plan = BatchPlan(documents(), 1, 5, True)
    ids = []
    for kept_out in ([], [4, 9], [4, 9, 13]):
        plan.keep_out(kept_out)
        ids.append(np.concatenate([batch.ids for batch in batches(plan, 8 * 23)]))
    moved = np.isin(ids[0], [4, 9])
    assert 0 < (ids[1] != ids[0]).sum() == moved.sum() == 16
    stays = ids[1] != 13
    assert (ids[1][stays] == ids[2][stays]).all() and (ids[1][~stays] != ids[2][~stays]).all()
    assert len(set(ids[1][moved])) > 4  # not always the same one


def test_substitutes_are_drawn_evenly_for_each_place_and_epoch() -> None:
    plan = BatchPlan(documents(8), 1, 5, True)
    plan.keep_out(range(1, 8, 2))
    drawn = [plan._another(epoch, position) for epoch in range(50) for position in range(8)]
    counts = np.bincount(drawn, minlength=8)
    assert len(set(drawn[:8])) > 1  # of one epoch
    assert (counts[1::2] == 0).all() and counts[::2].min() > 70


@pytest.mark.parametrize("padding", ["longest", "bucketed", "packed"])
def test_the_last_sample_that_is_left_takes_every_place(padding: Padding) -> None:
    plan = BatchPlan(documents(400), 4, 5, True, padding=padding, micro_batch=2)
    plan.keep_out(sample for sample in range(400) if sample != 123)
    assert {sample for batch in batches(plan, 20) for sample in batch.ids.tolist()} == {123}
    assert all(batch.num_rows == 4 for batch in batches(plan, 20))


@pytest.mark.parametrize("padding", PADDINGS)
def test_keeping_everything_out_is_an_error_that_says_so(padding: Padding) -> None:
    plan = BatchPlan(documents(), 4, 5, True, padding=padding)
    with pytest.raises(DataError, match="nothing is left to train on: every sample is quarantined"):
        plan.keep_out(range(23))
    stream = BatchPlan(windows(), 4, 5, True)
    with pytest.raises(DataError, match=r"quarantine\.jsonl"):
        stream.keep_out(range(0, 245, 8))


def test_an_epoch_of_which_nothing_is_left_is_an_error_too() -> None:
    """Each epoch cuts elsewhere: one window may be left in the first, and none in a later one."""
    dataset = windows()
    free = int(dataset.ids(np.array([10]), np.array([0]))[0])
    plan = BatchPlan(dataset, 4, 5, True)
    plan.keep_out([*range(0, free - 7, 8), free - 8, *range(free + 8, 245, 8)])
    assert plan.batch(0).ids.tolist() == [free] * 4
    other = next(epoch for epoch in range(1, 9) if (dataset.offset(epoch) - dataset.offset(0)) % 8)
    with pytest.raises(DataError, match="nothing is left to train on"):
        plan.batch(-(-other * plan.num_samples // 4))


def test_an_id_below_zero_is_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="ids must be >= 0, but got -1"):
        BatchPlan(documents(), 4, 5, True).keep_out([3, -1])


def ids_of(batch: Batch) -> list[int]:
    return batch.ids.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_keep_out_the_same_samples(workers: int) -> None:
    plan = BatchPlan(documents(), 4, 5, True, padding="packed")
    plan.keep_out([0, 5, 11])
    expected = [ids_of(batch) for batch in batches(plan, 6)]
    feed = prefetch(plan, ids_of, 0, 6, num_workers=workers)
    assert list(feed) == expected


# Alone


@pytest.mark.parametrize(
    ("padding", "width"), [("longest", None), ("bucketed", None), ("max_length", 8), ("packed", 8)]
)
def test_samples_alone_have_a_row_each_in_the_asked_order(padding: Padding, width: int | None) -> None:
    dataset = of_lengths([3, 1, 6, 4], Frame(8), labels=np.arange(4) * 10)
    plan = BatchPlan(dataset, 2, 5, True, padding=padding)
    plan.keep_out([2])  # what is kept out can still be looked at
    batch = plan.alone(np.array([2, 0, 2]), np.array([4, 1, 5]))
    assert batch.ids.tolist() == [2, 0, 2] and batch.epochs.tolist() == [4, 1, 5]
    assert (batch.rows.tolist(), batch.num_rows, batch.width) == ([0, 1, 2], 3, width)
    assert [row.tolist() for row in batch.tokens.split()] == [[*range(5, 11)], [1, 2, 3], [*range(5, 11)]]
    assert batch.labels is not None and batch.labels.tolist() == [20, 0, 20]
    assert batch.packed == (padding == "packed")


def test_windows_alone_are_read_at_their_own_start() -> None:
    plan = BatchPlan(windows(), 4, 5, True)
    batch = plan.alone(np.array([13, 100]), np.array([0, 3]))
    assert [row.tolist() for row in batch.tokens.split()] == [[*range(13, 22)], [*range(100, 109)]]
    assert batch.equally_long
