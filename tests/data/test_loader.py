from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.documents import DocumentTable
from trainbook.data.loader import Batch, BatchPlan, eval_batches, samples_in_epochs


def windows(count: int = 8 * 30 + 5, shuffle: bool = True) -> TokenWindows:
    return TokenWindows(np.arange(count, dtype=np.uint32), 8, shuffle=shuffle, seed=11)


def documents() -> TokenDocuments:
    lengths = np.array([3, 1, 6, 4, 2, 9, 5, 8, 7, 2, 3])
    starts = np.cumsum(lengths) - lengths
    table = DocumentTable(starts, lengths, np.ones_like(lengths), [str(i) for i in range(len(lengths))])
    return TokenDocuments(np.arange(1, lengths.sum() + 1, dtype=np.uint16), table, 6, True, end_of_text=999)


DATASETS = [pytest.param(windows, id="windows"), pytest.param(documents, id="documents")]


def same(one: Batch, two: Batch) -> bool:
    arrays = ((one.ids, two.ids), (one.tokens, two.tokens), (one.lengths, two.lengths))
    return all(np.array_equal(a, b) for a, b in arrays) and (one.epoch, one.step) == (two.epoch, two.step)


@pytest.mark.parametrize("make", DATASETS)
def test_a_batch_is_a_function_of_seed_and_step_alone(make) -> None:
    in_order = BatchPlan(make(), 4, seed=5, shuffle=True)
    batches = [in_order.batch(step) for step in range(40)]
    at_random = BatchPlan(make(), 4, seed=5, shuffle=True)
    for step in [39, 0, 17, 17, 3, 38, 8, 7]:
        assert same(at_random.batch(step), batches[step])
        assert same(BatchPlan(make(), 4, seed=5, shuffle=True).batch(step), batches[step])
    other = BatchPlan(make(), 4, seed=6, shuffle=True)
    assert not all(np.array_equal(other.batch(step).ids, batches[step].ids) for step in range(3))


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


def test_a_batch_holds_the_tokens_of_its_samples_padded_to_its_longest() -> None:
    dataset = documents()
    plan = BatchPlan(dataset, 4, seed=5, shuffle=True)
    for step in range(10):
        batch = plan.batch(step)
        assert batch.tokens.shape == (4, batch.lengths.max())
        assert batch.ids.dtype == batch.tokens.dtype == batch.lengths.dtype == np.int64
        for sample_id, row, length in zip(batch.ids, batch.tokens, batch.lengths, strict=True):
            start, size = dataset.documents.starts[sample_id], dataset.documents.lengths[sample_id]
            whole = [*range(start + 1, start + size + 1), 999][:7]
            assert row.tolist() == whole + [0] * (len(row) - len(whole))
            assert length == len(whole)


def test_max_length_pads_to_one_more_than_the_sequence() -> None:
    plan = BatchPlan(documents(), 2, seed=5, shuffle=True, padding="max_length")
    assert {plan.batch(step).tokens.shape for step in range(12)} == {(2, 7)}


@pytest.mark.parametrize("make", DATASETS)
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("total", [None, 29])
def test_the_shares_of_all_ranks_are_the_global_batch(make, world: int, total: int | None) -> None:
    plan = BatchPlan(make(), 8, seed=5, shuffle=True, total_samples=total)
    for step in range(6):
        whole = plan.batch(step)
        shares = [plan.batch(step, rank, world) for rank in range(world)]
        if len(whole.ids) == 8:
            assert {len(share.ids) for share in shares} == {8 // world}
        for name in ("ids", "tokens", "lengths"):
            assert np.array_equal(np.concatenate([getattr(share, name) for share in shares]), getattr(whole, name))
        assert {share.epoch for share in shares} == {whole.epoch}


def test_a_rank_may_get_nothing_of_a_short_step() -> None:
    plan = BatchPlan(documents(), 4, seed=5, shuffle=True, total_samples=5)
    shares = [plan.batch(1, rank, 4) for rank in range(4)]
    assert [len(share.ids) for share in shares] == [1, 0, 0, 0]
    assert len({share.tokens.shape[1] for share in shares}) == 1


def test_the_last_planned_step_is_short_and_later_ones_go_on_full() -> None:
    full = BatchPlan(windows(), 4, seed=5, shuffle=True)
    plan = BatchPlan(windows(), 4, seed=5, shuffle=True, total_samples=10)
    assert [len(plan.batch(step).ids) for step in range(5)] == [4, 4, 2, 4, 4]
    assert np.array_equal(plan.batch(2).ids, full.batch(2).ids[:2])
    assert same(plan.batch(3), full.batch(3))
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
    dataset = TokenWindows(np.arange(250, dtype=np.uint32), 8, evaluation=True)
    counts = np.zeros(250, dtype=int)
    for rank in range(world):
        for batch in eval_batches(dataset, size, rank=rank, world=world):
            for row, length in zip(batch.tokens, batch.lengths, strict=True):
                counts[row[1:length]] += 1
    assert counts.tolist() == [0] + [1] * 249


def test_evaluation_goes_in_order_and_stops_where_told() -> None:
    dataset = documents()
    sizes = [len(batch.ids) for batch in eval_batches(dataset, 4)]
    assert sizes == [4, 4, 3]
    assert np.concatenate([batch.ids for batch in eval_batches(dataset, 4)]).tolist() == list(range(11))
    assert [len(batch.ids) for batch in eval_batches(dataset, 4, max_samples=6)] == [4, 2]
    assert len(list(eval_batches(dataset, 4, max_samples=600))) == 3
