"""Spoilt samples: which are, in what way, and that nothing else is."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainbook.data.batches.feed import prefetch
from trainbook.data.batches.plan import BatchPlan
from trainbook.data.prepare.hashes import generator
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.data.tokenizers.plain import ByteTokenizer
from trainbook.loop.faults.faults import LOOKED_AT, Patched, draw_labels, repeat_tokens

CAUSAL = Frame(8, shift=1)
BOTH_WAYS = Frame(8, prefix=(900,), suffix=(901,))
EVERY_WAY = pytest.mark.parametrize("spoil", [repeat_tokens, draw_labels])


def draw(seed: int = 0) -> np.random.Generator:
    return generator("test", seed)


def windows(frame: Frame = CAUSAL, tokens: np.ndarray | None = None) -> TokenWindows:
    """Unless told otherwise every token is its own place, so that nothing can be mistaken for anything else."""
    tokens = np.arange(250, dtype=np.uint16) if tokens is None else tokens
    return TokenWindows(tokens, frame, shuffle=True, seed=3)


def documents(frame: Frame = CAUSAL, **more: Any) -> TokenDocuments:
    lengths = np.array([3, 6, 0, 4, 2, 12, 5, 8, 7, 2, 3, 6])
    starts = np.cumsum(lengths) - lengths
    table = DocumentTable(starts, lengths, np.ones_like(lengths), [str(i) for i in range(len(lengths))])
    return TokenDocuments(np.arange(lengths.sum(), dtype=np.uint16), table, frame, **more)


def all_ids(samples: Samples, epoch: int = 0) -> np.ndarray:
    count = samples.num_samples
    return samples.ids(np.arange(count), np.full(count, epoch))


def inner(samples: Samples, tokens: np.ndarray) -> np.ndarray:
    """Without what the frame puts around them."""
    return tokens[len(samples.frame.prefix) : len(tokens) - len(samples.frame.suffix)]


@pytest.mark.parametrize("frame", [CAUSAL, BOTH_WAYS], ids=["causal", "both ways"])
def test_a_window_is_one_of_its_tokens_over_and_over(frame: Frame):
    clean = windows(frame)
    ids = all_ids(clean)[[2, 9, 20]]
    spoilt = repeat_tokens(clean, ids, draw())
    for before, after in zip(clean.read(ids).split(), spoilt.read(ids).split(), strict=True):
        assert len(before) == len(after)
        own, repeated = (inner(clean, tokens)[frame.shift : clean.stride] for tokens in (before, after))
        assert len(set(repeated.tolist())) == 1 and repeated[0] in own and len(own) >= 6
        assert before[0] == after[0] and before[-1] == after[-1], "the frame, or what neighbours share, stays"


def test_a_document_is_one_of_its_tokens_over_and_over():
    clean = documents(BOTH_WAYS)
    spoilt = repeat_tokens(clean, np.array([1, 5]), draw())
    for sample in all_ids(clean):
        before, after = clean.read(np.array([sample])).values, spoilt.read(np.array([sample])).values
        assert len(before) == len(after) and before[0] == after[0] == 900 and before[-1] == after[-1] == 901
        if sample in (1, 5):
            assert len(set(after[1:-1].tolist())) == 1 and after[1] in before[1:-1]
        else:
            assert np.array_equal(before, after)


@EVERY_WAY
def test_a_text_without_tokens_stays_empty(spoil):
    clean = documents(BOTH_WAYS, labels=np.arange(12))
    spoilt = spoil(clean, np.array([2, 11]), draw())
    assert spoilt.read(np.array([2])).values.tolist() == [900, 901]
    alone = documents(BOTH_WAYS)
    alone.tokens = alone.tokens[: alone._body_starts[2]]  # so that nothing follows it
    assert len(spoil(alone, np.array([2]), draw()).tokens[:]) == 9


@EVERY_WAY
def test_a_window_of_another_epoch_reads_the_spoilt_tokens_where_it_overlaps(spoil):
    clean = windows()
    ids = all_ids(clean)[[4, 12]]
    spoilt = spoil(clean, ids, draw())
    changed = np.flatnonzero(spoilt.tokens[:] != clean.tokens)
    begins, ends = clean.extent(ids)
    assert len(changed) > 8 and all(((begins <= place) & (place < ends)).any() for place in changed)
    assert clean.offset(0) != clean.offset(1)
    other = all_ids(clean, epoch=1)
    differs = [
        not np.array_equal(before, after)
        for before, after in zip(clean.read(other).split(), spoilt.read(other).split(), strict=True)
    ]
    reads_changed = [((changed >= start) & (changed <= start + clean.stride)).any() for start in other]
    assert differs == reads_changed and 2 <= sum(differs) <= 4


@EVERY_WAY
@pytest.mark.parametrize("make", [windows, documents])
@pytest.mark.parametrize("padding", ["longest", "packed"])
def test_what_is_kept_out_is_gone(spoil, make: Callable[[], Samples], padding: Any):
    clean = make()
    plan = BatchPlan(clean, 3, seed=1, shuffle=True, padding=padding)
    ids = plan.batch(1).ids
    plan.dataset = spoil(clean, ids, draw())
    assert not np.array_equal(plan.batch(1).tokens.values, clean.read(ids).values)
    plan.keep_out(ids)
    for step in range(4 * plan.steps_per_epoch):
        batch = plan.batch(step)
        assert np.array_equal(batch.tokens.values, clean.read(batch.ids).values)


@EVERY_WAY
@pytest.mark.parametrize("make", [windows, documents])
def test_the_same_seed_spoils_in_the_same_way_and_leaves_the_clean_samples_alone(spoil, make):
    clean = make()
    ids = all_ids(clean)[[1, 4]]
    before = clean.read(all_ids(clean)).values
    one, same, other = (spoil(clean, ids, draw(seed)).read(ids).values for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert np.array_equal(clean.read(all_ids(clean)).values, before)


def test_random_tokens_are_those_that_occur():
    tokens = np.random.default_rng(0).choice(np.array([5, 50, 500], dtype=np.uint16), size=250)
    clean = windows(tokens=tokens)
    ids = all_ids(clean)
    read = draw_labels(clean, ids, draw()).read(ids)
    assert set(read.values.tolist()) == {5, 50, 500}
    assert (read.values != clean.read(ids).values).mean() == pytest.approx(2 / 3 * 7 / 9, abs=0.08)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 2, 0, 2, 7, 7, 0, 2, 7, 0, 2, 7]),
        np.linspace(-1, 1, 12, dtype=np.float32),
        np.random.default_rng(0).integers(2, size=(12, 5)).astype(np.float32),
    ],
    ids=["class", "number", "classes"],
)
def test_random_labels_are_those_that_occur_and_the_text_stays(labels: np.ndarray):
    clean = documents(BOTH_WAYS, labels=labels)
    ids = np.array([0, 1, 2, 5, 8])
    spoilt = draw_labels(clean, ids, draw())
    everything = all_ids(clean)
    assert np.array_equal(spoilt.read(everything).values, clean.read(everything).values)
    drawn, rest = spoilt.labels(ids), np.setdiff1d(everything, ids)
    assert drawn is not None and drawn.dtype == labels.dtype and drawn.shape == labels[ids].shape
    assert not np.array_equal(drawn, labels[ids])
    assert {row.tobytes() for row in drawn} <= {row.tobytes() for row in labels}
    assert np.array_equal(spoilt.labels(rest), labels[rest])  # pyright: ignore


def pairs() -> TokenDocuments:
    lengths = np.arange(1, 13)
    starts = np.cumsum(lengths) - lengths
    targets = (np.arange(500, 500 + lengths.sum(), dtype=np.uint16), starts, lengths)
    frame = Frame(8, target_prefix=(800,), target_suffix=(801,), max_target_positions=9)
    return documents(frame, targets=targets)


def test_of_pairs_the_text_to_produce_is_random_and_the_other_stays():
    clean, ids = pairs(), np.array([3, 7])
    spoilt = draw_labels(clean, ids, draw())
    everything = all_ids(clean)
    assert np.array_equal(spoilt.read(everything).values, clean.read(everything).values)
    assert np.array_equal(spoilt.target_lengths(everything), clean.target_lengths(everything))  # pyright: ignore
    for sample in everything:
        before, after = (each.read_targets(np.array([sample])).values for each in (clean, spoilt))  # pyright: ignore
        assert before[0] == after[0] == 800
        assert np.array_equal(before, after) == (sample not in ids)
        assert set(after.tolist()) <= {800, 801, *range(500, 600)}


def test_of_pairs_both_texts_are_repeated():
    clean, ids = pairs(), np.array([3])
    spoilt = repeat_tokens(clean, ids, draw())
    targets = spoilt.read_targets(ids)
    assert targets is not None and len(set(targets.values[1:-1].tolist())) == 1
    assert len(set(spoilt.read(ids).values.tolist())) == 1


def test_tags_are_random_where_there_are_tags():
    marks = np.random.default_rng(1).integers(-1, 4, size=58)
    clean = documents(BOTH_WAYS, marks=marks)
    ids = np.array([5, 7])
    before, after = clean.read_marks(ids), draw_labels(clean, ids, draw()).read_marks(ids)
    assert before is not None and after is not None
    assert np.array_equal(before.values < 0, after.values < 0) and not np.array_equal(before.values, after.values)
    assert set(after.values.tolist()) <= {-1, 0, 1, 2, 3}


def test_of_a_conversation_the_tokens_are_random_and_what_is_learned_stays():
    marks = np.where(np.arange(58) % 3 == 0, 1, -1)
    clean = documents(CAUSAL, marks=marks)
    ids = np.array([5, 7])
    spoilt = draw_labels(clean, ids, draw())
    marks_before, marks_after = clean.read_marks(ids), spoilt.read_marks(ids)
    assert marks_before is not None and marks_after is not None
    assert np.array_equal(marks_after.values, marks_before.values)
    assert not np.array_equal(spoilt.read(ids).values, clean.read(ids).values)


def test_samples_can_be_spoilt_in_two_ways():
    clean = documents(BOTH_WAYS, labels=np.arange(12))
    once = repeat_tokens(clean, np.array([1]), draw())
    twice = draw_labels(draw_labels(once, np.array([5]), draw()), np.array([6]), draw())
    assert len(set(twice.read(np.array([1])).values[1:-1].tolist())) == 1
    labels = twice.labels(np.arange(12))
    assert labels is not None and set(np.flatnonzero(labels != np.arange(12))) == {5, 6}


@EVERY_WAY
@pytest.mark.parametrize("make", [windows, documents])
def test_a_pickled_copy_is_the_same_and_has_no_copy_of_a_mapped_file(spoil, make, tmp_path):
    clean = make()
    file = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="w+", shape=(10**6,))
    file[: len(clean.tokens)] = clean.tokens
    file.flush()
    clean.tokens = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    spoilt = spoil(clean, all_ids(clean)[[1, 4]], draw())
    pickled = pickle.dumps(spoilt)
    assert len(pickled) < 50_000
    ids = all_ids(clean)
    assert np.array_equal(pickle.loads(pickled).read(ids).values, spoilt.read(ids).values)


def test_a_data_worker_reads_the_same_spoilt_batch():
    plan = BatchPlan(windows(), 3, seed=1, shuffle=True)
    plan.dataset = repeat_tokens(plan.dataset, plan.batch(1).ids, draw())
    in_worker = list(prefetch(plan, lambda batch: batch.tokens.values, 0, 3, num_workers=1))
    assert [values.tolist() for values in in_worker] == [plan.batch(step).tokens.values.tolist() for step in range(3)]
    assert len(set(plan.batch(1).tokens.values[1:8].tolist())) == 1


def test_the_description_shows_the_spoilt_text_and_the_place_in_the_true_one():
    tokenizer = ByteTokenizer()
    text = "".join(f"line {number}\n" for number in range(40))
    tokens = np.array(tokenizer.encode(text), dtype=np.uint16)
    table = DocumentTable(np.array([0]), np.array([len(tokens)]), np.array([1]), ["lines.txt"])
    clean = TokenWindows(tokens, CAUSAL, documents=table, tokenizer=tokenizer)
    ids = all_ids(clean)
    spoilt = repeat_tokens(clean, ids[3:9], draw())
    shown = spoilt.describe(int(ids[6]))
    assert len(set(shown["text"][1:8])) == 1
    assert [spoilt.describe(int(id))["source"] for id in ids] == [clean.describe(int(id))["source"] for id in ids]


def test_a_patched_array_is_read_by_slices_and_by_places():
    base = np.arange(10)
    patched = Patched(base, np.array([7, 2, 2]), np.array([70, 20, 21]))
    assert patched[:].tolist() == [0, 1, 20, 3, 4, 5, 6, 70, 8, 9] and len(patched) == 10
    assert patched[2:8:5].tolist() == [20, 70] and patched[np.array([[9, 7], [2, 0]])].tolist() == [[9, 70], [20, 0]]
    assert base[2] == 2 and Patched(base, np.empty(0, int), np.empty(0, int))[:].tolist() == base.tolist()
    assert LOOKED_AT > 10**6


def test_a_patch_over_a_patch_is_one_layer_in_which_the_last_counts():
    base = np.arange(10)
    first = Patched(base, np.array([2, 7]), np.array([20, 70]))
    second = Patched(first, np.array([7, 1]), np.array([71, 11]))  # pyright: ignore[reportArgumentType]
    assert second[:].tolist() == [0, 11, 20, 3, 4, 5, 6, 71, 8, 9] and second.base is base


def test_after_forty_faults_a_sample_is_still_described_by_the_clean_text_alone():
    clean = windows()
    spoilt: Samples = clean
    for number in range(40):
        spoilt = draw_labels(spoilt, all_ids(clean)[[number % 25]], draw(number))
    assert vars(spoilt)["clean"] is clean
    assert vars(spoilt)["tokens"].base is clean.tokens
