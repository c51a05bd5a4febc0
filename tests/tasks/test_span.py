from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.masked import SpanCollate, corrupt, corrupted_lengths, noise_counts, noise_mask, raw_length

SENTINELS = np.arange(900, 1000)
END, PAD = 800, 801


def test_the_lengths_of_the_first_t5_are_found():
    # 568 tokens become an input of 512 and a target of 114, as published with the model.
    assert raw_length(512, 512, 0.15, 3.0) == 568
    assert corrupted_lengths(568, 0.15, 3.0) == (512, 114)


def test_a_short_target_limits_the_text():
    length = raw_length(512, 60, 0.15, 3.0)
    assert corrupted_lengths(length, 0.15, 3.0)[1] <= 60 < corrupted_lengths(length + 1, 0.15, 3.0)[1]


def masks_of(lengths: list[int], ratio: float, mean: float, seed: int) -> list[np.ndarray]:
    scores = np.random.default_rng(seed).random(sum(lengths))
    return Ragged(noise_mask(np.array(lengths), ratio, mean, scores), np.array(lengths)).split()


@given(
    st.lists(st.integers(2, 600), min_size=1, max_size=5),
    st.floats(0.02, 0.9),
    st.floats(1, 12),
    st.integers(0, 1000),
)
def test_the_mask_has_the_counted_tokens_in_the_counted_spans(lengths: list[int], ratio: float, mean: float, seed: int):
    counts = zip(*noise_counts(np.array(lengths), ratio, mean), strict=True)
    for length, (noise, spans), mask in zip(lengths, counts, masks_of(lengths, ratio, mean, seed), strict=True):
        assert len(mask) == length and mask.sum() == noise and 0 < noise < length
        starts = mask & ~np.concatenate(([False], mask[:-1]))
        assert starts.sum() == spans
        assert not mask[0] and mask[-1]


@given(st.lists(st.integers(2, 200), min_size=1, max_size=5), st.integers(0, 1000))
def test_input_and_target_together_are_the_text(lengths: list[int], seed: int):
    tokens = Ragged.of([np.random.default_rng(seed + length).integers(0, 700, length) for length in lengths])
    inputs, targets = corrupt(tokens, np.concatenate(masks_of(lengths, 0.15, 3.0, seed)), SENTINELS, END)
    for text, left, cut_out in zip(tokens.split(), inputs.split(), targets.split(), strict=True):
        assert (len(left), len(cut_out)) == corrupted_lengths(len(text), 0.15, 3.0)
        assert left[-1] == END and cut_out[-1] == END
        cut: dict[int, list[int]] = {}
        for token in cut_out[:-1]:
            if token >= 900:
                cut[int(token)] = []
            else:
                cut[max(cut)].append(int(token))
        rebuilt = [part for token in left[:-1] for part in (cut[int(token)] if token >= 900 else [int(token)])]
        assert rebuilt == text.tolist()
        assert list(cut) == SENTINELS[: len(cut)].tolist(), "sentinels come in order, each once"


def test_every_place_but_the_first_is_cut_about_as_often():
    share = np.mean(masks_of([40] * 4000, 0.15, 3.0, 0), axis=0)
    assert share.mean() == pytest.approx(6 / 40)
    assert share[0] == 0


def test_all_divisions_are_as_likely():
    # 3 of 8 tokens are cut out in 2 spans: 4 ways to divide what stays, and 2 to divide what goes.
    number = 16000
    found = Counter(map(tuple, masks_of([8] * number, 0.375, 1.5, 0)))
    assert len(found) == 8
    assert chisquare(list(found.values())).pvalue > 1e-4


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


def test_a_text_is_cut_alike_whatever_others_are_in_its_batch():
    (together,) = collate()(batch_of([40, 1, 30, 25])).micro_batches
    for number, length in enumerate([40, 1, 30, 25]):
        alone = Batch(
            np.array([number]),
            np.zeros(1, int),
            Ragged.of([np.arange(length) + 10 * number]),
            np.zeros(1, int),
            1,
            None,
            0.0,
        )
        (micro,) = collate()(alone).micro_batches
        for name, fill in (("input_ids", PAD), ("targets", IGNORED)):
            row = together[name][number]
            assert row[: micro[name].shape[1]].tolist() == micro[name][0].tolist()
            assert (row[micro[name].shape[1] :] == fill).all()
