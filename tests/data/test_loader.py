from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.data.batches.plan import BatchPlan, Padding, eval_batches, evaluation_order, samples_in_epochs
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame

PADDINGS: list[Padding] = ["longest", "max_length", "bucketed", "packed"]


def windows(count: int = 8 * 30 + 5, shuffle: bool = True) -> TokenWindows:
    return TokenWindows(np.arange(count, dtype=np.uint32), Frame(8, shift=1), shuffle=shuffle, seed=11)


def of_lengths(lengths: Any, frame: Frame, **knobs: Any) -> TokenDocuments:
    """Every token is its own position, from 1 on."""
    lengths = np.asarray(lengths)
    starts = np.cumsum(lengths) - lengths
    table = DocumentTable(starts, lengths, np.ones_like(lengths), [str(i) for i in range(len(lengths))])
    return TokenDocuments(np.arange(1, lengths.sum() + 1, dtype=np.uint32), table, frame, **knobs)


def documents() -> TokenDocuments:
    return of_lengths([3, 1, 6, 4, 2, 9, 5, 8, 7, 2, 3], Frame(6, suffix=(999,), keep_suffix=False, shift=1))


def long_tail(count: int, most: int = 512, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(np.log(most / 8), 1.0, count)
    return np.clip(drawn.astype(np.int64), 1, most)


DATASETS = [pytest.param(windows, id="windows"), pytest.param(documents, id="documents")]


def same(one: Batch, two: Batch) -> bool:
    return all(_equal(getattr(one, field.name), getattr(two, field.name)) for field in fields(Batch))


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Ragged):
        return np.array_equal(one.values, two.values) and np.array_equal(one.lengths, two.lengths)
    return np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two


@pytest.mark.parametrize("make", DATASETS)
@pytest.mark.parametrize("padding", PADDINGS)
def test_a_batch_is_a_function_of_seed_and_step_alone(make, padding: Padding) -> None:
    def plan(seed: int = 5) -> BatchPlan:
        return BatchPlan(make(), 4, seed=seed, shuffle=True, padding=padding, micro_batch=2)

    in_order, at_random = plan(), plan()
    batches = [in_order.batch(step) for step in range(40)]
    for step in [39, 0, 17, 17, 3, 38, 8, 7]:
        assert same(at_random.batch(step), batches[step])
        assert same(plan().batch(step), batches[step])
    assert not all(np.array_equal(plan(6).batch(step).ids, batches[step].ids) for step in range(3))


@pytest.mark.parametrize("make", DATASETS)
@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_every_sample_comes_exactly_once_an_epoch_and_each_epoch_has_its_own_order(make, size: int) -> None:
    dataset: Samples = make()
    n = dataset.num_samples
    plan = BatchPlan(dataset, size, seed=5, shuffle=True)
    ids = np.concatenate([plan.batch(step).ids for step in range(-(-3 * n // size))])
    orders = []
    for epoch in range(3):
        mine = ids[epoch * n : (epoch + 1) * n]
        expected = dataset.ids(np.arange(n), np.full(n, epoch))
        assert sorted(mine.tolist()) == sorted(expected.tolist())
        orders.append(tuple(np.argsort(np.argsort(mine))))
    assert len(set(orders)) == 3


def test_without_shuffling_samples_come_in_order_across_epochs() -> None:
    plan = BatchPlan(windows(8 * 5 + 1, shuffle=False), 3, seed=5, shuffle=False)
    assert [plan.batch(step).ids.tolist() for step in range(3)] == [[0, 8, 16], [24, 32, 0], [8, 16, 24]]


def test_a_batch_holds_the_tokens_of_its_samples_and_a_row_for_each() -> None:
    dataset = documents()
    plan = BatchPlan(dataset, 4, seed=5, shuffle=True)
    for step in range(10):
        batch = plan.batch(step)
        assert batch.ids.dtype == batch.tokens.values.dtype == batch.rows.dtype == batch.epochs.dtype == np.int64
        assert (batch.rows.tolist(), batch.num_rows, batch.width, batch.packed) == ([0, 1, 2, 3], 4, None, False)
        for sample_id, tokens in zip(batch.ids, batch.tokens.split(), strict=True):
            start, size = dataset.documents.starts[sample_id], dataset.documents.lengths[sample_id]
            assert tokens.tolist() == [*range(start + 1, start + size + 1), 999][:7]


@pytest.mark.parametrize(
    ("padding", "width"), [("longest", None), ("max_length", 6), ("bucketed", None), ("packed", 6)]
)
def test_the_width_is_settled_where_it_does_not_depend_on_the_samples(padding: Padding, width: int | None) -> None:
    plan = BatchPlan(documents(), 2, seed=5, shuffle=True, padding=padding)
    assert {plan.batch(step).width for step in range(12)} == {width}


def test_a_sample_knows_its_epoch() -> None:
    plan = BatchPlan(documents(), 4, seed=5, shuffle=True)
    assert np.concatenate([plan.batch(step).epochs for step in range(11)]).tolist() == sorted([0, 1, 2, 3] * 11)


def _joined(shares: list[Batch], whole: Batch) -> Batch:
    """The shares of all ranks as one batch; what is the same in each is taken from the whole."""
    offsets = np.cumsum([0] + [share.num_rows for share in shares])
    return Batch(
        ids=np.concatenate([share.ids for share in shares]),
        epochs=np.concatenate([share.epochs for share in shares]),
        tokens=Ragged.of([part for share in shares if len(share.ids) for part in share.tokens.split()]),
        rows=np.concatenate([share.rows + offset for share, offset in zip(shares, offsets, strict=False)]),
        num_rows=int(offsets[-1]),
        width=whole.width,
        epoch=whole.epoch,
        step=whole.step,
        packed=whole.packed,
        equally_long=whole.equally_long,
    )


@pytest.mark.parametrize("make", DATASETS)
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("total", [None, 29])
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_shares_of_all_ranks_are_the_global_batch(make, world: int, total: int | None, padding: Padding) -> None:
    plan = BatchPlan(make(), 8, seed=5, shuffle=True, total_samples=total, padding=padding, micro_batch=2)
    for step in range(6):
        whole = plan.batch(step)
        shares = [plan.batch(step, rank, world) for rank in range(world)]
        if whole.num_rows == 8:
            assert {share.num_rows for share in shares} == {8 // world}
        assert same(_joined(shares, whole), whole)
        assert {(share.epoch, share.width, share.packed) for share in shares} == {
            (whole.epoch, whole.width, whole.packed)
        }


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_rank_may_get_nothing_of_a_short_step(padding: Padding) -> None:
    plan = BatchPlan(documents(), 4, seed=5, shuffle=True, total_samples=5, padding=padding)
    shares = [plan.batch(1, rank, 4) for rank in range(4)]
    assert [share.num_rows for share in shares] == [1, 0, 0, 0]
    assert len(shares[1].tokens) == len(shares[1].tokens.values) == 0


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=60),
    padding=st.sampled_from(PADDINGS),
    micro=st.integers(1, 5),
    rounds=st.integers(1, 3),
    world=st.integers(1, 3),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_every_document_comes_once_an_epoch_for_any_world_batch_and_order_of_steps(
    lengths: list[int], padding: Padding, micro: int, rounds: int, world: int, seed: int, shuffle: bool, data: Any
) -> None:
    dataset = of_lengths(lengths, Frame(8, prefix=(0,)))
    size = micro * rounds * world
    plan = BatchPlan(dataset, size, seed, shuffle, padding=padding, micro_batch=micro)
    steps = data.draw(st.permutations(range(-(-3 * plan.num_samples // size))))
    seen = [np.zeros(len(lengths), dtype=int) for _ in range(3)]
    for step in steps:
        for rank in range(world):
            batch = plan.batch(step, rank, world)
            for epoch, counts in enumerate(seen):
                np.add.at(counts, batch.ids[batch.epochs == epoch], 1)
            taken = np.bincount(batch.rows, batch.tokens.lengths, minlength=batch.num_rows)
            assert len(taken) == batch.num_rows and taken.max(initial=0) <= 8
            assert (np.diff(batch.rows) >= 0).all()
    assert all((counts == 1).all() for counts in seen)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 50),
    padding=st.sampled_from(PADDINGS),
    first_rounds=st.integers(1, 3),
    rounds=st.integers(1, 4),
    done=st.integers(0, 8),
)
def test_another_batch_size_goes_on_at_the_next_sample(
    count: int, padding: Padding, first_rounds: int, rounds: int, done: int
) -> None:
    """Also in the middle of an epoch: the order does not depend on the size of the batch."""

    def plan(size: int) -> BatchPlan:
        return BatchPlan(documents_of(count), size, 3, True, padding=padding, micro_batch=4)

    before, after, all_along = plan(4 * first_rounds), plan(4 * rounds), plan(1)
    after.shift = before.first_sample(done) - done * after.global_batch_size
    batches = [before.batch(step) for step in range(done)] + [after.batch(step) for step in range(done, done + 5)]
    rows = sum(batch.num_rows for batch in batches)
    together = np.concatenate([batch.ids for batch in batches])
    one_by_one = np.concatenate([all_along.batch(step).ids for step in range(rows)])
    assert together.tolist() == one_by_one.tolist()


def documents_of(count: int) -> TokenDocuments:
    return of_lengths(long_tail(count, most=32), Frame(32))


def _share_of_real_tokens(plan: BatchPlan, micro: int, steps: range) -> float:
    """Positions with a token, of all that are computed."""
    real = computed = 0
    for step in steps:
        batch = plan.batch(step)
        taken = np.bincount(batch.rows, batch.tokens.lengths, minlength=batch.num_rows)
        for start in range(0, batch.num_rows, micro):
            rows = taken[start : start + micro]
            real += rows.sum()
            computed += (batch.width or rows.max()) * len(rows)
    return real / computed


@pytest.mark.parametrize(
    ("padding", "least", "most"), [("longest", 0.2, 0.5), ("bucketed", 0.9, 1), ("packed", 0.95, 1)]
)
@pytest.mark.parametrize("micro", [4, 16])
def test_bucketing_and_packing_leave_little_to_pad(padding: Padding, least: float, most: float, micro: int) -> None:
    """In the second epoch too, which begins in the middle of a micro-batch."""
    dataset = of_lengths(long_tail(4001), Frame(512))
    plan = BatchPlan(dataset, 4 * micro, 1, True, padding=padding, micro_batch=micro)
    each = plan.num_samples // (4 * micro)
    for steps in (range(each), range(each + 1, 2 * each)):
        assert least <= _share_of_real_tokens(plan, micro, steps) <= most


def test_bucketed_orders_differ_between_epochs_and_batches_are_not_sorted() -> None:
    dataset = of_lengths(long_tail(2000), Frame(512))
    plan = BatchPlan(dataset, 32, 1, True, padding="bucketed", micro_batch=4)
    first, second = (
        {frozenset(plan.batch(step).ids.reshape(-1, 4)[0].tolist()) for step in range(start, start + 62)}
        for start in (0, 63)
    )
    assert len(first & second) < 3
    widths = [int(plan.batch(step).tokens.lengths.reshape(-1, 4).max(axis=1)[0]) for step in range(62)]
    assert widths != sorted(widths) and widths != sorted(widths, reverse=True)


def test_packed_rows_stay_the_same_and_their_order_does_not() -> None:
    dataset = of_lengths(long_tail(500), Frame(512))
    plan = BatchPlan(dataset, 1, 1, True, padding="packed")
    n = plan.num_samples
    assert n < 200
    first, second = ([frozenset(plan.batch(e * n + step).ids.tolist()) for step in range(n)] for e in range(2))
    assert set(first) == set(second) and first != second


def test_pairs_are_packed_within_both_limits() -> None:
    rng = np.random.default_rng(0)
    target_lengths = rng.integers(1, 20, 300)
    targets = (np.arange(target_lengths.sum()), np.cumsum(target_lengths) - target_lengths, target_lengths)
    frame = Frame(64, max_target_positions=30, target_suffix=(7,))
    dataset = of_lengths(rng.integers(1, 60, 300), frame, targets=targets)
    plan = BatchPlan(dataset, 5, 1, True, padding="packed")
    for step in range(plan.steps_per_epoch):
        batch = plan.batch(step)
        assert batch.targets is not None
        assert np.bincount(batch.rows, batch.tokens.lengths).max() <= 64
        assert np.bincount(batch.rows, batch.targets.lengths).max() <= 30


def test_labels_and_marks_come_with_their_samples() -> None:
    lengths = long_tail(40, most=16)
    marks = (np.arange(lengths.sum()) % 7).astype(np.int16)
    dataset = of_lengths(lengths, Frame(16, prefix=(0,)), labels=np.arange(40) * 10, marks=marks)
    for padding in PADDINGS:
        batch = BatchPlan(dataset, 8, 1, True, padding=padding).batch(2)
        assert batch.labels is not None and batch.marks is not None
        assert batch.labels.tolist() == (batch.ids * 10).tolist()
        for tokens, own in zip(batch.tokens.split(), batch.marks.split(), strict=True):
            assert own.tolist() == [-1, *((tokens[1:] - 1) % 7)]


def test_what_is_equally_long_needs_neither_buckets_nor_packing() -> None:
    expected = BatchPlan(windows(), 4, 5, True)
    for padding in PADDINGS:
        plan = BatchPlan(windows(), 4, 5, True, padding=padding)
        assert plan.num_samples == expected.num_samples
        for step in range(20):
            assert np.array_equal(plan.batch(step).ids, expected.batch(step).ids)
            assert not plan.batch(step).packed


def test_the_last_planned_step_is_short_and_later_ones_go_on_full() -> None:
    full = BatchPlan(windows(), 4, seed=5, shuffle=True)
    plan = BatchPlan(windows(), 4, seed=5, shuffle=True, total_samples=10)
    assert [len(plan.batch(step).ids) for step in range(5)] == [4, 4, 2, 4, 4]
    assert np.array_equal(plan.batch(2).ids, full.batch(2).ids[:2])
    # They begin where the short one ended, whether or not the plan was told of it in the meantime, as on a resume.
    numbers = [full._indices(np.zeros(4, dtype=int), np.arange(at, at + 4)) for at in (10, 14)]
    assert [list(plan.batch(step).ids) for step in (3, 4)] == [list(full.dataset.ids(n, np.zeros(4))) for n in numbers]
    resumed = BatchPlan(windows(), 4, seed=5, shuffle=True, total_samples=10)
    resumed.shift = 10 - 3 * 4
    assert all(same(resumed.batch(step), plan.batch(step)) for step in (3, 4, 5))
    exact = BatchPlan(windows(), 5, seed=5, shuffle=True, total_samples=10)
    assert [len(exact.batch(step).ids) for step in range(3)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("epochs", "samples", "steps"), [(1, 29, 8), (2, 58, 15), (0.5, 15, 4), (1.25, 36, 9), (0.001, 1, 1)]
)
def test_a_fraction_of_an_epoch_is_the_nearest_number_of_samples(epochs: float, samples: int, steps: int) -> None:
    dataset = windows()
    assert dataset.num_samples == 29
    assert samples_in_epochs(29, epochs) == samples
    plan = BatchPlan(dataset, 4, seed=5, shuffle=True, total_samples=samples)
    assert plan.num_steps(epochs) == steps
    assert sum(len(plan.batch(step).ids) for step in range(steps)) == samples
    assert plan.batch(steps - 1).epoch == samples / 29
    assert plan.steps_per_epoch == 8


def test_a_float_just_below_a_whole_number_does_not_lose_a_sample() -> None:
    assert 0.29 * 100 < 29
    assert samples_in_epochs(100, 0.29) == 29


def test_a_batch_knows_its_step_and_the_epochs_consumed_with_it() -> None:
    plan = BatchPlan(windows(8 * 8 + 1), 4, seed=5, shuffle=True)
    assert [(plan.batch(step).step, plan.batch(step).epoch) for step in range(4)] == [
        (0, 0.5),
        (1, 1.0),
        (2, 1.5),
        (3, 2.0),
    ]


def test_only_the_orders_of_neighbouring_epochs_are_kept() -> None:
    plan = BatchPlan(windows(), 4, seed=5, shuffle=True)
    for step in range(100):
        plan.batch(step)
        assert len(plan._orders) <= 2


def test_sizes_below_one_are_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="global_batch_size must be >= 1, but got 0"):
        BatchPlan(windows(), 0, 5, True)
    with pytest.raises(ValueError, match="total_samples must be >= 1, but got 0"):
        BatchPlan(windows(), 1, 5, True, total_samples=0)


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_evaluation_counts_every_target_once_for_any_batch_and_world(size: int, world: int) -> None:
    dataset = TokenWindows(np.arange(250, dtype=np.uint32), Frame(8, shift=1), evaluation=True)
    counts = np.zeros(250, dtype=int)
    for rank in range(world):
        for batch in eval_batches(dataset, size, rank=rank, world=world):
            for tokens in batch.tokens.split() if len(batch.ids) else []:
                counts[tokens[1:]] += 1
    assert counts.tolist() == [0] + [1] * 249


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("world", [1, 2])
def test_evaluation_sees_samples_from_all_over_the_set_once_each(padding: Padding, world: int) -> None:
    dataset = documents()
    for limit, count in ((None, 11), (6, 6), (600, 11)):
        batches = [list(eval_batches(dataset, 4, limit, rank, world, padding)) for rank in range(world)]
        shared = [np.concatenate([share.ids for share in shares]) for shares in zip(*batches, strict=True)]
        assert [len(ids) for ids in shared] == [4] * (count // 4) + [count % 4]
        spread = [0, 1, 3, 5, 7, 9] if limit == 6 else list(range(11))
        assert sorted(np.concatenate(shared).tolist()) == spread
        assert np.concatenate(shared).tolist() == evaluation_order(dataset, limit, padding).tolist()
        assert {batch.width for batch in batches[0]} == {6 if padding == "max_length" else None}
        assert all((batch.epochs == -1).all() and not batch.packed for batch in batches[0])


def test_evaluation_is_sorted_by_length_unless_all_are_padded_alike() -> None:
    dataset = documents()
    lengths = dataset.lengths(evaluation_order(dataset))
    assert lengths.tolist() == sorted(lengths, reverse=True)
    assert evaluation_order(dataset, padding="max_length").tolist() == list(range(11))
    results = np.empty(11)
    results[evaluation_order(dataset)] = lengths
    assert results.tolist() == dataset.lengths(np.arange(11)).tolist()


def test_windows_are_evaluated_in_order() -> None:
    dataset = TokenWindows(np.arange(250, dtype=np.uint32), Frame(8, shift=1), evaluation=True)
    assert evaluation_order(dataset).tolist() == list(range(dataset.num_samples))
