from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbook.data.batches import Batch, Ragged
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.span import SpanCollate, corrupt, corrupted_lengths, noise_counts, noise_mask, raw_length

SENTINELS = np.arange(900, 1000)
END, PAD = 800, 801


def test_the_lengths_of_the_first_t5_are_found():
    # 568 tokens become an input of 512 and a target of 114, as published with the model.
    assert raw_length(512, 512, 0.15, 3.0) == 568
    assert corrupted_lengths(568, 0.15, 3.0) == (512, 114)


def test_a_short_target_limits_the_text():
    length = raw_length(512, 60, 0.15, 3.0)
    assert corrupted_lengths(length, 0.15, 3.0)[1] <= 60 < corrupted_lengths(length + 1, 0.15, 3.0)[1]


@given(st.integers(2, 600), st.floats(0.02, 0.9), st.floats(1, 12), st.integers(0, 1000))
def test_the_mask_has_the_counted_tokens_in_the_counted_spans(length: int, ratio: float, mean: float, seed: int):
    noise, spans = noise_counts(length, ratio, mean)
    mask = noise_mask(length, ratio, mean, np.random.default_rng(seed))
    assert len(mask) == length and mask.sum() == noise and 0 < noise < length
    starts = mask & ~np.concatenate(([False], mask[:-1]))
    assert starts.sum() == spans
    assert not mask[0] and mask[-1]


@given(st.integers(2, 200), st.integers(0, 1000))
def test_input_and_target_together_are_the_text(length: int, seed: int):
    tokens = np.random.default_rng(seed).integers(0, 700, length)
    mask = noise_mask(length, 0.15, 3.0, np.random.default_rng(seed))
    inputs, targets = corrupt(tokens, mask, SENTINELS, END)
    assert (len(inputs), len(targets)) == corrupted_lengths(length, 0.15, 3.0)
    assert inputs[-1] == END and targets[-1] == END
    cut: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token >= 900:
            cut[int(token)] = []
        else:
            cut[max(cut)].append(int(token))
    rebuilt = [part for token in inputs[:-1] for part in (cut[int(token)] if token >= 900 else [int(token)])]
    assert rebuilt == tokens.tolist()
    assert list(cut) == SENTINELS[: len(cut)].tolist(), "sentinels come in order, each once"


def test_every_place_but_the_first_is_cut_about_as_often():
    masks = [noise_mask(40, 0.15, 3.0, np.random.default_rng(seed)) for seed in range(4000)]
    share = np.mean(masks, axis=0)
    assert share.mean() == pytest.approx(6 / 40)
    assert share[0] == 0


def collate(rows_each: int = 10) -> SpanCollate:
    return SpanCollate(rows_each, 3, 0.15, 3.0, SENTINELS, END, PAD)


def batch_of(lengths: list[int], epoch: int = 0) -> Batch:
    tokens = Ragged.of([np.arange(length) + 10 * number for number, length in enumerate(lengths)])
    ids = np.arange(len(lengths))
    return Batch(ids, np.full(len(ids), epoch), tokens, ids, len(ids), None, 0.0)


def test_the_decoder_reads_its_target_one_step_late_behind_the_padding_token():
    batch = collate()(batch_of([40, 30]))
    (micro,) = batch.micro_batches
    for read, targets in zip(micro["decoder_input_ids"], micro["targets"], strict=True):
        real = targets[targets != IGNORED]
        assert read[0] == PAD and read[1 : len(real)].tolist() == real[:-1].tolist()
    assert batch.num_targets == int((micro["targets"] != IGNORED).sum())


def test_spans_are_drawn_anew_each_epoch_and_alike_in_each_evaluation():
    first, second = collate()(batch_of([40], 0)), collate()(batch_of([40], 1))
    assert first.micro_batches[0]["input_ids"].tolist() != second.micro_batches[0]["input_ids"].tolist()
    evaluations = [collate()(batch_of([40], -1)).micro_batches[0]["input_ids"].tolist() for _ in range(2)]
    assert evaluations[0] == evaluations[1]


def test_a_text_of_one_token_is_read_whole_and_nothing_is_to_be_written():
    (micro,) = collate()(batch_of([1])).micro_batches
    assert micro["input_ids"].tolist() == [[0, END]] and micro["targets"].tolist() == [[END]]
