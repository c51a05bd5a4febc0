from __future__ import annotations

import numpy as np
import pytest
import torch

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.tasks.layout import RowLayout, parts


def batch_of(
    lengths: list[int], rows: list[int] | None = None, *, width: int | None = None, packed: bool = False
) -> Batch:
    tokens = Ragged.of([np.arange(100 * number, 100 * number + length) for number, length in enumerate(lengths)])
    row = np.arange(len(lengths)) if rows is None else np.array(rows)
    ids = np.arange(len(lengths))
    return Batch(ids, np.zeros_like(ids), tokens, row, int(row[-1]) + 1, width, 0.0, packed=packed)


def test_each_sample_has_its_row_and_padding_behind_it():
    layout = RowLayout.of(np.array([2, 3]), np.array([0, 1]), 2, None, packed=False)
    assert layout.width == 3
    assert layout.place(np.array([5, 6, 7, 8, 9]), -1).tolist() == [[5, 6, -1], [7, 8, 9]]
    assert layout.document_ids().tolist() == [[1, 1, 0], [1, 1, 1]]


def test_a_packed_row_holds_one_sample_behind_the_other():
    layout = RowLayout.of(np.array([2, 1, 3]), np.array([0, 0, 1]), 2, 4, packed=True)
    assert layout.place(np.arange(6), -1).tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert layout.document_ids().tolist() == [[1, 1, 2, 0], [1, 1, 1, 0]]
    assert layout.positions().tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
    assert layout.first_cells.tolist() == [0, 2, 4]


def test_a_row_without_samples_is_all_padding():
    layout = RowLayout.of(np.array([2]), np.array([1]), 3, 2, packed=True)
    assert layout.document_ids().tolist() == [[0, 0], [1, 1], [0, 0]]


def test_a_row_that_cannot_hold_its_samples_is_refused():
    with pytest.raises(ValueError, match="a row of 4 positions cannot hold 5"):
        RowLayout.of(np.array([2, 3]), np.array([0, 0]), 1, 4, packed=True)


def test_masks_say_only_what_must_be_said():
    full = RowLayout.of(np.array([3, 3]), np.array([0, 1]), 2, None, packed=False, equally_long=True)
    assert full.masks(causal=False) == {} and full.masks(causal=True) == {}
    by_chance = RowLayout.of(np.array([3, 3]), np.array([0, 1]), 2, None, packed=False)
    assert by_chance.masks(causal=False).keys() == {"document_ids"}, "the next batch will need it"
    last = RowLayout.of(np.array([3, 2]), np.array([0, 1]), 2, None, packed=False, equally_long=True)
    assert last.masks(causal=False).keys() == {"document_ids"}, "the last window of an evaluation is shorter"
    padded = RowLayout.of(np.array([2, 3]), np.array([0, 1]), 2, None, packed=False)
    assert padded.masks(causal=True) == {}, "padding on the right is never seen from the left"
    assert padded.masks(causal=False).keys() == {"document_ids"}
    packed = RowLayout.of(np.array([2, 1]), np.array([0, 0]), 1, 3, packed=True)
    for causal in (True, False):
        assert packed.masks(causal=causal).keys() == {"document_ids", "positions"}
    assert packed.masks(causal=True, prefix="decoder_").keys() == {"decoder_document_ids", "decoder_positions"}


@pytest.mark.parametrize("rows_each", [1, 2, 3, 5])
def test_micro_batches_divide_rows_and_lose_no_sample(rows_each: int):
    batch = batch_of([3, 1, 2, 4, 1, 1], rows=[0, 0, 1, 2, 2, 3], width=6, packed=True)
    found = list(parts(batch, rows_each))
    assert sum(part.num_rows for part in found) == 4
    assert np.concatenate([part.ids for part in found]).tolist() == list(range(6))
    values = np.concatenate([part.take(batch.tokens).values for part in found])
    assert np.array_equal(values, batch.tokens.values)
    for part in found:
        assert part.rows.min() >= 0 and part.rows.max() < part.num_rows


def test_the_rectangle_is_made_of_whole_numbers_that_an_embedding_takes():
    layout = RowLayout.of(np.array([2]), np.array([0]), 1, None, packed=False)
    assert layout.place(np.array([1, 2]), 0).dtype is torch.int64
