from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from trainbook.data.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.documents import DocumentTable
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.errors import DataError


def stream(count: int) -> np.ndarray:
    """Every token is its own position, so a sample shows where it was cut."""
    return np.arange(count, dtype=np.uint32)


def target_counts(dataset: Samples, count: int, epoch: int = 0) -> np.ndarray:
    counts = np.zeros(count, dtype=int)
    for index in range(dataset.num_samples):
        counts[dataset.sample(index, epoch)[1:]] += 1
    return counts


@pytest.mark.parametrize("count", [2, 7, 8, 9, 15, 16, 17, 18, 100, 113, 114, 1000])
def test_evaluation_predicts_every_token_but_the_first_exactly_once(count: int) -> None:
    dataset = TokenWindows(stream(count), 8, evaluation=True, shuffle=True)
    assert target_counts(dataset, count).tolist() == [0] + [1] * (count - 1)
    assert dataset.num_tokens == count - 1
    assert all(len(dataset.sample(index)) >= 2 for index in range(dataset.num_samples))


@pytest.mark.parametrize(("count", "moves"), [(129, False), (136, False), (137, True), (144, True), (145, True)])
def test_training_gives_up_a_window_to_move_only_where_it_has_more_than_sixteen(count: int, moves: bool) -> None:
    dataset = TokenWindows(stream(count), 8, shuffle=True, seed=3)
    assert dataset.num_samples == (count - 1) // 8 - moves
    starts = {dataset.offset(epoch) for epoch in range(400)}
    assert starts == (set(range((count - 1) - dataset.num_samples * 8 + 1)) if moves else {0})


def test_every_window_of_every_epoch_is_whole_and_none_overlap() -> None:
    dataset = TokenWindows(stream(150), 8, shuffle=True, seed=3)
    for epoch in range(50):
        offset = dataset.offset(epoch)
        samples = [dataset.sample(index, epoch).tolist() for index in range(dataset.num_samples)]
        assert samples == [list(range(start, start + 9)) for start in range(offset, offset + 8 * len(samples), 8)]
        assert target_counts(dataset, 150, epoch).sum() == dataset.num_tokens == 8 * dataset.num_samples


def test_the_offset_depends_on_seed_and_epoch() -> None:
    by_seed = [
        [TokenWindows(stream(999), 50, shuffle=True, seed=seed).offset(e) for e in range(20)] for seed in (1, 1, 2)
    ]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert len(set(by_seed[0])) > 5


def test_without_shuffling_windows_start_at_the_beginning() -> None:
    dataset = TokenWindows(stream(1000), 8)
    assert dataset.num_samples == 124
    assert [dataset.sample(0, epoch)[0] for epoch in range(20)] == [0] * 20


def test_text_shorter_than_a_window_is_one_short_sample() -> None:
    dataset = TokenWindows(stream(5), 8, shuffle=True)
    assert (dataset.num_samples, dataset.num_tokens) == (1, 4)
    assert dataset.sample(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_tokens_are_refused(count: int) -> None:
    with pytest.raises(DataError) as caught:
        TokenWindows(stream(count), 8)
    assert str(caught.value) == (
        f"the text must have at least 2 tokens, to read one and predict the next, but has {count}."
    )


def test_reading_pads_with_zeros_on_the_right() -> None:
    dataset = TokenWindows(stream(12) + 1, 8, evaluation=True)
    rows = dataset.read(np.array([0, 8]), 10)
    assert rows.tolist() == [[*range(1, 10), 0], [9, 10, 11, 12, 0, 0, 0, 0, 0, 0]]
    assert rows.dtype == np.int64


def test_the_id_of_a_window_is_its_start_and_describes_it() -> None:
    text = "first line\nsecond line\nthird line\n"
    table = DocumentTable(np.array([0]), np.array([len(text)]), np.array([1]), ["f.txt"], "data/")
    dataset = TokenWindows(ByteTokenizer().encode(text), 8, documents=table, tokenizer=ByteTokenizer())
    ids = dataset.ids(np.array([0, 3]), np.array([0, 0]))
    assert ids.tolist() == [0, 24]
    assert dataset.describe(24) == {"source": "data/f.txt:3", "text": "hird line"}
    assert TokenWindows(stream(20), 8).describe(8) == {"source": "token 8", "text": ""}


def _documents(max_seq_length: int = 4, truncation: bool = True, end_of_text: int | None = 99) -> TokenDocuments:
    lengths = np.array([3, 1, 6, 4])
    starts = np.array([0, 4, 6, 13])
    table = DocumentTable(starts, lengths, np.array([1, 1, 0, 7]), ["a", "b", "c:5", "d"], "r/")
    return TokenDocuments(stream(17) + 1, table, max_seq_length, truncation, end_of_text=end_of_text)


def test_a_document_is_a_sample_with_its_end_cut_to_the_limit() -> None:
    dataset = _documents()
    assert [dataset.sample(index).tolist() for index in range(4)] == [
        [1, 2, 3, 99],
        [5, 99],
        [7, 8, 9, 10, 11],
        [14, 15, 16, 17, 99],
    ]
    assert dataset.num_tokens == 3 + 1 + 4 + 4
    assert dataset.read(np.array([1, 2]), 6).tolist() == [[5, 99, 0, 0, 0, 0], [7, 8, 9, 10, 11, 0]]


def test_a_document_with_nothing_to_predict_is_left_out_and_ids_stay_document_numbers() -> None:
    dataset = _documents(end_of_text=None)
    assert dataset.ids(np.arange(3), np.zeros(3)).tolist() == [0, 2, 3]
    assert dataset.sample(0).tolist() == [1, 2, 3]
    assert dataset.num_tokens == 2 + 4 + 3


def test_without_truncation_a_long_document_is_named_with_its_length_and_the_law() -> None:
    with pytest.raises(DataError) as caught:
        _documents(truncation=False)
    assert str(caught.value) == (
        "r/c:5: with data.truncation=false a document must have at most "
        "data.max_seq_length + 1 = 5 tokens, but it has 7."
    )
    assert _documents(6, truncation=False).sample(2).tolist() == [7, 8, 9, 10, 11, 12, 99]


def test_a_document_is_described_by_its_origin_and_the_line_if_it_is_a_tail() -> None:
    assert [_documents().describe(document)["source"] for document in range(4)] == ["r/a", "r/b", "r/c:5", "r/d:7"]


def test_documents_of_single_tokens_are_refused() -> None:
    table = DocumentTable(np.array([0]), np.array([1]), np.array([1]), ["a"])
    with pytest.raises(DataError, match="the text must have a document of at least 2 tokens, but has none"):
        TokenDocuments(stream(1), table, 8, True)


def test_a_memory_map_travels_to_workers_as_a_path(tmp_path: Path) -> None:
    np.arange(100_000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    pickled = pickle.dumps(TokenWindows(mapped, 8))
    assert len(pickled) < 2000
    copy = pickle.loads(pickled)
    assert isinstance(copy.tokens, np.memmap)
    assert copy.sample(5).tolist() == list(range(40, 49))
    part = pickle.loads(pickle.dumps(TokenWindows(mapped[1000:2000], 8)))
    assert part.sample(0)[0] == 1000
