from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.batches.plan import BatchPlan
from trainbook.data.report.lengths import STRATEGIES, best_strategy, padding_waste
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import TokenDocuments
from trainbook.data.samples.frame import Frame


def samples_of(lengths: np.ndarray, max_positions: int, targets: np.ndarray | None = None, most: int = 0):
    starts = np.cumsum(lengths) - lengths
    table = DocumentTable(starts, lengths, np.zeros_like(lengths), [str(index) for index in range(len(lengths))])
    triple = None
    if targets is not None:
        triple = np.ones(targets.sum(), dtype=np.int64), np.cumsum(targets) - targets, targets
    frame = Frame(max_positions, max_target_positions=most)
    return TokenDocuments(np.ones(lengths.sum(), dtype=np.int64), table, frame, targets=triple)


def waste_of_plan(plan: BatchPlan, micro_batch: int) -> float:
    """Counted on the batches themselves, micro-batch by micro-batch."""
    taken = made = 0
    for step in range(plan.steps_per_epoch):
        batch = plan.batch(step)
        parts = [(batch.tokens, plan.dataset.frame.max_positions)]
        if batch.targets is not None:
            parts.append((batch.targets, plan.dataset.frame.max_target_positions))
        for ragged, widest in parts:
            taken += int(ragged.lengths.sum())
            for first in range(0, batch.num_rows, micro_batch):
                chosen = (batch.rows >= first) & (batch.rows < first + micro_batch)
                num_rows = min(micro_batch, batch.num_rows - first)
                in_rows = np.bincount(batch.rows[chosen] - first, ragged.lengths[chosen], num_rows)
                width = widest if plan.padding in ("max_length", "packed") else int(in_rows.max())
                made += num_rows * width
    return 1 - taken / made


@pytest.mark.parametrize("strategy", ["max_length", "longest", "bucketed", "packed"])
@pytest.mark.parametrize("with_targets", [False, True])
def test_the_waste_is_that_of_the_batches_of_training(strategy, with_targets: bool):
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 90, size=203)
    targets = draw.integers(1, 30, size=203) if with_targets else None
    samples = samples_of(lengths, 64, targets, 24 if with_targets else 0)
    plan = BatchPlan(samples, 16, seed=3, shuffle=True, padding=strategy, micro_batch=8)
    plan.total_samples = plan.num_samples  # the last step is short, so that an epoch is exactly once
    expected = waste_of_plan(plan, 8)
    assert padding_waste(lengths, 64, 8, 3, targets, 24)[strategy] == pytest.approx(expected)


def test_equal_lengths_waste_nothing():
    waste = padding_waste(np.full(64, 32), 32, 8)
    assert waste == dict.fromkeys(STRATEGIES, 0.0)
    assert padding_waste(np.array([], dtype=int), 32, 8) == dict.fromkeys(STRATEGIES, 0.0)


def test_what_wastes_hardly_more_and_is_simpler_is_advised():
    waste = {"max_length": 0.9, "longest": 0.5, "bucketed": 0.2, "packed": 0.01, "windows": 0.0}
    assert best_strategy(waste) == "packed"
    assert best_strategy(waste, can_pack=False) == "bucketed"
    assert best_strategy({**waste, "bucketed": 0.05}) == "bucketed"
    assert best_strategy({**waste, "longest": 0.03}) == "longest"
