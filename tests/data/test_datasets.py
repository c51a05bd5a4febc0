from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data.samples import base, datasets
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.data.tokenizers.training import train_bpe
from trainbook.errors import DataError

CAUSAL = Frame(8, shift=1)


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
    dataset = TokenWindows(stream(count), CAUSAL, evaluation=True, shuffle=True)
    assert target_counts(dataset, count).tolist() == [0] + [1] * (count - 1)
    assert dataset.num_tokens == count - 1
    assert all(len(dataset.sample(index)) >= 2 for index in range(dataset.num_samples))


@pytest.mark.parametrize(("count", "moves"), [(129, False), (136, False), (137, True), (144, True), (145, True)])
def test_training_gives_up_a_window_to_move_only_where_it_has_more_than_sixteen(count: int, moves: bool) -> None:
    dataset = TokenWindows(stream(count), CAUSAL, shuffle=True, seed=3)
    assert dataset.num_samples == (count - 1) // 8 - moves
    starts = {dataset.offset(epoch) for epoch in range(400)}
    assert starts == (set(range((count - 1) - dataset.num_samples * 8 + 1)) if moves else {0})


def test_every_window_of_every_epoch_is_whole_and_none_overlap() -> None:
    dataset = TokenWindows(stream(150), CAUSAL, shuffle=True, seed=3)
    for epoch in range(50):
        offset = dataset.offset(epoch)
        samples = [dataset.sample(index, epoch).tolist() for index in range(dataset.num_samples)]
        assert samples == [list(range(start, start + 9)) for start in range(offset, offset + 8 * len(samples), 8)]
        assert target_counts(dataset, 150, epoch).sum() == dataset.num_tokens == 8 * dataset.num_samples


def test_the_offset_depends_on_seed_and_epoch() -> None:
    by_seed = [
        [TokenWindows(stream(999), Frame(50, shift=1), shuffle=True, seed=seed).offset(e) for e in range(20)]
        for seed in (1, 1, 2)
    ]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert len(set(by_seed[0])) > 5


def test_without_shuffling_windows_start_at_the_beginning() -> None:
    dataset = TokenWindows(stream(1000), CAUSAL)
    assert dataset.num_samples == 124
    assert [dataset.sample(0, epoch)[0] for epoch in range(20)] == [0] * 20


def test_text_shorter_than_a_window_is_one_short_sample() -> None:
    dataset = TokenWindows(stream(5), CAUSAL, shuffle=True)
    assert (dataset.num_samples, dataset.num_tokens) == (1, 4)
    assert dataset.sample(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_tokens_are_refused(count: int) -> None:
    with pytest.raises(DataError) as caught:
        TokenWindows(stream(count), CAUSAL)
    assert str(caught.value) == (
        f"the text must have at least 2 tokens (one to read, one to predict), but has {count}."
    )


def test_windows_are_read_one_behind_the_other() -> None:
    dataset = TokenWindows(stream(12) + 1, CAUSAL, evaluation=True)
    read = dataset.read(np.array([0, 8]))
    assert [part.tolist() for part in read.split()] == [[*range(1, 10)], [9, 10, 11, 12]]
    assert read.values.dtype == read.lengths.dtype == np.int64
    assert dataset.positions(np.array([0, 8])).tolist() == [8, 3]


def test_windows_between_a_prefix_and_a_suffix_leave_room_for_them_and_do_not_overlap() -> None:
    dataset = TokenWindows(stream(20), Frame(8, prefix=(101,), suffix=(102,)), evaluation=True)
    assert [dataset.sample(index).tolist() for index in range(dataset.num_samples)] == [
        [101, *range(0, 6), 102],
        [101, *range(6, 12), 102],
        [101, *range(12, 18), 102],
        [101, 18, 19, 102],
    ]
    assert dataset.num_tokens == 20 + 4 * 2
    moving = TokenWindows(stream(200), Frame(8, prefix=(301,)), shuffle=True, seed=1)
    assert (moving.num_samples, moving.num_tokens) == (200 // 7 - 1, (200 // 7 - 1) * 8)
    for epoch in range(30):
        inside = np.concatenate([moving.sample(index, epoch)[1:] for index in range(moving.num_samples)])
        assert inside.tolist() == list(range(inside[0], inside[0] + 7 * moving.num_samples))


def test_a_window_may_be_longer_than_the_positions_of_the_model() -> None:
    dataset = TokenWindows(stream(100), Frame(8, suffix=(500,), window_length=11), evaluation=True)
    assert dataset.sample(1).tolist() == [*range(11, 22), 500]
    assert dataset.num_samples == 10


def test_one_token_is_enough_where_nothing_is_shifted() -> None:
    assert TokenWindows(stream(1), Frame(8)).sample(0).tolist() == [0]
    with pytest.raises(DataError, match=r"^the text must have at least 1 token, but has 0\.$"):
        TokenWindows(stream(0), Frame(8))


def test_a_frame_without_room_for_a_token_names_the_knob() -> None:
    for make in (
        lambda: TokenWindows(stream(9), Frame(2, prefix=(1,), suffix=(2,))),
        lambda: _documents(Frame(2, prefix=(1,), suffix=(2,))),
    ):
        with pytest.raises(DataError) as caught:
            make()
        assert str(caught.value) == (
            "data.max_seq_length: must be at least 3, so that a token fits beside the 2 special tokens of each "
            "sample, but got 2."
        )


@pytest.mark.parametrize("make", [ByteTokenizer, lambda: train_bpe(iter(["a line\n\n\tof text\r\n" * 20]), 280)])
def test_lines_are_counted_in_stretches_as_in_the_text(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make()
    tokens = tokenizer.encode("one\n\n\ntwo\r\n" * 30 + "\tthree \u00e9\n" * 20)
    monkeypatch.setattr(base, "STRETCH", 16)
    breaks = base.LineBreaks(tokens, tokenizer)
    for start in (0, 5):
        for end in (len(tokens), start, 40, 33, 48, 100):
            assert breaks.between(start, end) == tokenizer.decode(tokens[start:end]).count("\n")


def test_of_a_long_document_each_token_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(np.ndarray):
        seen = 0

        def __getitem__(self, asked: Any) -> Any:
            found = super().__getitem__(asked)
            Counted.seen += np.size(found)
            return found

    monkeypatch.setattr(base, "STRETCH", 100)
    table = DocumentTable(np.array([0]), np.array([10_000]), np.array([1]), ["f.txt"], "data/")
    tokens = ByteTokenizer().encode("line\n" * 2_000).view(Counted)
    dataset = TokenWindows(tokens, CAUSAL, documents=table, tokenizer=ByteTokenizer())
    sources = [dataset.describe(start)["source"] for start in (9_960, 9_000, 9_960, 5_000)]
    assert sources == ["data/f.txt:1993", "data/f.txt:1801", "data/f.txt:1993", "data/f.txt:1001"]
    assert Counted.seen < 11_000
    Counted.seen = 0
    monkeypatch.setattr(datasets, "QUICKLY_COUNTED", 100)
    assert dataset.describe(9_960, is_quick=True)["source"] == "data/f.txt" and Counted.seen < 100
    assert dataset.describe(96, is_quick=True)["source"] == "data/f.txt:20"


def test_the_id_of_a_window_is_its_start_and_describes_it() -> None:
    text = "first line\nsecond line\nthird line\n"
    table = DocumentTable(np.array([0]), np.array([len(text)]), np.array([1]), ["f.txt"], "data/")
    dataset = TokenWindows(ByteTokenizer().encode(text), CAUSAL, documents=table, tokenizer=ByteTokenizer())
    ids = dataset.ids(np.array([0, 3]), np.array([0, 0]))
    assert ids.tolist() == [0, 24]
    assert dataset.describe(24) == {"source": "data/f.txt:3", "text": "hird line"}
    assert TokenWindows(stream(20), CAUSAL).describe(8) == {"source": "token 8", "text": ""}


LENGTHS = np.array([3, 1, 6, 4])
STARTS = np.array([0, 4, 6, 13])
ORIGINS = ["a", "b", "c:5", "d"]


def causal(max_seq_length: int = 4, end_of_text: int | None = 99) -> Frame:
    suffix = () if end_of_text is None else (end_of_text,)
    return Frame(max_seq_length, suffix=suffix, keep_suffix=False, shift=1)


def _documents(frame: Frame | None = None, **knobs: Any) -> TokenDocuments:
    """Documents of 3, 1, 6 and 4 tokens: 1 to 3, 5, 7 to 12 and 14 to 17."""
    table = DocumentTable(STARTS, LENGTHS, np.array([1, 1, 0, 7]), ORIGINS, "r/")
    return TokenDocuments(stream(17) + 1, table, frame or causal(), **knobs)


def samples(dataset: Samples) -> list[list[int]]:
    return [dataset.sample(index).tolist() for index in range(dataset.num_samples)]


def test_a_causal_document_is_a_sample_with_its_end_cut_to_the_limit() -> None:
    dataset = _documents()
    assert samples(dataset) == [[1, 2, 3, 99], [5, 99], [7, 8, 9, 10, 11], [14, 15, 16, 17, 99]]
    assert dataset.num_tokens == 3 + 1 + 4 + 4
    assert (dataset.num_cut, dataset.num_left_out) == (1, 0)
    assert [part.tolist() for part in dataset.read(np.array([1, 2])).split()] == [[5, 99], [7, 8, 9, 10, 11]]


def test_cut_at_the_left_a_document_keeps_its_end() -> None:
    dataset = _documents(truncation_side="left")
    assert samples(dataset) == [[1, 2, 3, 99], [5, 99], [9, 10, 11, 12, 99], [14, 15, 16, 17, 99]]
    assert dataset.num_tokens == 3 + 1 + 4 + 4


@pytest.mark.parametrize(("side", "cut"), [("right", [7, 8]), ("left", [11, 12])])
def test_a_frame_stays_whole_around_a_document_that_is_cut(side: str, cut: list[int]) -> None:
    dataset = _documents(Frame(5, prefix=(50,), suffix=(60, 61)), truncation_side=side)
    whole = [[50, 1, 2, 60, 61], [50, 5, 60, 61], [50, *cut, 60, 61]]
    assert samples(dataset)[1:3] == whole[1:]
    assert dataset.num_tokens == 5 + 4 + 5 + 5
    assert dataset.positions(np.arange(4)).tolist() == dataset.lengths(np.arange(4)).tolist() == [5, 4, 5, 5]
    assert dataset.num_cut == 3


def test_a_document_with_nothing_to_predict_is_left_out_and_ids_stay_document_numbers() -> None:
    dataset = _documents(causal(end_of_text=None))
    assert dataset.ids(np.arange(3), np.zeros(3)).tolist() == [0, 2, 3]
    assert dataset.sample(0).tolist() == [1, 2, 3]
    assert dataset.num_tokens == 2 + 4 + 3
    assert dataset.num_left_out == 1


def test_without_truncation_a_long_document_is_named_with_its_length_and_the_law() -> None:
    with pytest.raises(DataError) as caught:
        _documents(truncation=False)
    assert str(caught.value) == (
        "r/c:5: with data.truncation=false, a document must have at most data.max_seq_length + 1 = 5 tokens, but this "
        "one has 7."
    )
    assert _documents(causal(6), truncation=False).sample(2).tolist() == [7, 8, 9, 10, 11, 12, 99]
    with pytest.raises(DataError) as caught:
        _documents(Frame(7, prefix=(1,), suffix=(2,)), truncation=False)
    assert str(caught.value) == (
        "r/c:5: with data.truncation=false, a document must have at most data.max_seq_length = 7 tokens, but this "
        "one has 8."
    )


def test_a_document_is_described_by_its_origin_and_the_line_if_it_is_a_tail() -> None:
    assert [_documents().describe(document)["source"] for document in range(4)] == ["r/a", "r/b", "r/c:5", "r/d:7"]


def test_a_pair_is_described_by_both_of_its_texts() -> None:
    tokens, targets = ByteTokenizer().encode("question"), ByteTokenizer().encode("answers")
    table = DocumentTable(np.array([0]), np.array([8]), np.array([0]), ["q:1"])
    dataset = TokenDocuments(
        tokens,
        table,
        Frame(4, max_target_positions=6),
        targets=(targets, np.array([0]), np.array([7])),
        tokenizer=ByteTokenizer(),
    )
    assert dataset.describe(0) == {"source": "q:1", "text": "ques", "target": "answer"}


def test_documents_of_single_tokens_are_refused() -> None:
    table = DocumentTable(np.array([0]), np.array([1]), np.array([1]), ["a"])
    with pytest.raises(DataError, match="the text must have a document of at least 2 tokens, but has none"):
        TokenDocuments(stream(1), table, CAUSAL)


TARGETS = (stream(20) + 201, np.array([0, 4, 5, 5]), np.array([4, 1, 0, 12]))


def test_pairs_have_targets_in_a_frame_of_their_own() -> None:
    frame = Frame(8, suffix=(99,), target_suffix=(98,), max_target_positions=6)
    dataset = _documents(frame, targets=TARGETS)
    ids = np.array([3, 1, 2, 0])
    targets = dataset.read_targets(ids)
    assert targets is not None
    # The third target is empty: there is still its end to predict. The first one is cut: it does not end there.
    expected = [[*range(206, 212)], [205, 98], [98], [201, 202, 203, 204, 98]]
    assert [part.tolist() for part in targets.split()] == expected
    assert dataset.target_lengths(ids).tolist() == [6, 2, 1, 5]  # type: ignore[union-attr]
    assert dataset.num_targets_cut == 1
    tight = _documents(replace(frame, max_target_positions=4), targets=TARGETS)
    assert [part.tolist() for part in tight.read_targets(ids[[3]]).split()] == [[201, 202, 203, 204]]  # type: ignore[union-attr]
    assert tight.num_targets_cut == 2, "one that has no room for its end has not ended either"
    assert dataset.sample(0).tolist() == [1, 2, 3, 99]
    bare = _documents(replace(frame, target_suffix=()), targets=TARGETS)
    assert bare.ids(np.arange(3), np.zeros(3)).tolist() == [0, 1, 3]


def test_a_target_that_is_too_long_is_named_where_nothing_may_be_cut() -> None:
    frame = Frame(8, target_suffix=(98,), max_target_positions=6)
    with pytest.raises(DataError) as caught:
        _documents(frame, targets=TARGETS, truncation=False)
    assert str(caught.value) == (
        "r/d: with data.truncation=false, a target must have at most data.max_target_length = 6 tokens, but this "
        "one has 13."
    )
    with pytest.raises(DataError, match=r"data\.max_target_length: must be at least 2, but got 1"):
        _documents(replace(frame, max_target_positions=1), targets=TARGETS)


def test_labels_follow_their_documents_and_an_empty_text_keeps_its_label() -> None:
    table = DocumentTable(np.array([0, 3, 3]), np.array([3, 0, 2]), np.ones(3), ["a", "b", "c"])
    dataset = TokenDocuments(stream(5), table, Frame(8, prefix=(50,)), labels=np.array([2, 0, 1]))
    assert samples(dataset) == [[50, 0, 1, 2], [50], [50, 3, 4]]
    assert dataset.labels(np.array([2, 0, 2])).tolist() == [1, 2, 1]  # type: ignore[union-attr]
    many = TokenDocuments(stream(5), table, Frame(8, prefix=(50,)), labels=np.eye(3, dtype=np.float32))
    assert many.labels(np.array([1])).tolist() == [[0, 1, 0]]  # type: ignore[union-attr]
    assert TokenDocuments(stream(5), table, Frame(8, prefix=(50,))).num_samples == 2


def marks_of(dataset: Samples) -> list[list[int]]:
    marks = dataset.read_marks(dataset.ids(np.arange(dataset.num_samples), np.zeros(dataset.num_samples)))
    assert marks is not None
    return [part.tolist() for part in marks.split()]


def test_tags_stand_beside_their_tokens_and_nothing_around_them_has_one() -> None:
    tags = np.array([0, -1, 2, -1, 1, -1, 3, -1, -1, 0, -1, 2, -1, 1, 1, 1, 1], dtype=np.int16)
    frame = Frame(6, prefix=(50,), suffix=(60,))
    assert marks_of(_documents(frame, marks=tags)) == [
        [-1, 0, -1, 2, -1],
        [-1, 1, -1],
        [-1, 3, -1, -1, 0, -1],
        [-1, 1, 1, 1, 1, -1],
    ]
    assert marks_of(_documents(frame, marks=tags, truncation_side="left"))[2] == [-1, -1, 0, -1, 2, -1]


def test_the_end_of_a_learned_text_is_learned_unless_the_text_was_cut() -> None:
    learned = np.full(17, -1, dtype=np.int16)
    learned[[1, 2, 8, 9, 10, 11, 14]] = 1
    dataset = _documents(marks=learned)
    # The second document has nothing to learn. The last one goes on behind what is learned, so its end is not.
    assert dataset.ids(np.arange(3), np.zeros(3)).tolist() == [0, 2, 3]
    assert marks_of(dataset) == [[-1, 1, 1, 1], [-1, -1, 1, 1, 1], [-1, 1, -1, -1, -1]]
    assert marks_of(_documents(marks=learned, truncation_side="left"))[1] == [1, 1, 1, 1, 1]


def test_what_is_learned_must_be_in_sight_and_not_the_first_token() -> None:
    learned = np.full(17, -1, dtype=np.int16)
    learned[[0, 11, 14]] = 1
    assert _documents(marks=learned).ids(np.arange(1), np.zeros(1)).tolist() == [3]
    with_prefix = _documents(replace(causal(), prefix=(77,)), marks=learned)
    assert with_prefix.ids(np.arange(2), np.zeros(2)).tolist() == [0, 3]
    learned[:] = -1
    with pytest.raises(DataError, match="must have a document with a target in its first 4 positions"):
        _documents(marks=learned)


def test_a_memory_map_travels_to_workers_as_a_path(tmp_path: Path) -> None:
    np.arange(100_000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    pickled = pickle.dumps(TokenWindows(mapped, CAUSAL))
    assert len(pickled) < 2000
    copy = pickle.loads(pickled)
    assert isinstance(copy.tokens, np.memmap)
    assert copy.sample(5).tolist() == list(range(40, 49))
    part = pickle.loads(pickle.dumps(TokenWindows(mapped[1000:2000], CAUSAL)))
    assert part.sample(0)[0] == 1000


def test_targets_and_marks_travel_as_paths_too(tmp_path: Path) -> None:
    maps = {}
    for name, dtype in (("tokens", np.uint16), ("targets", np.uint16), ("marks", np.int16)):
        np.arange(60_000).astype(dtype).tofile(tmp_path / name)
        maps[name] = np.memmap(tmp_path / name, dtype=dtype, mode="r")
    table = DocumentTable(np.array([5]), np.array([3]), np.array([1]), ["a"])
    targets = (maps["targets"], np.array([7]), np.array([2]))
    frame = Frame(8, max_target_positions=8)
    dataset = TokenDocuments(maps["tokens"], table, frame, targets=targets, marks=maps["marks"])
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 4000
    copy = pickle.loads(pickled)
    assert copy.sample(0).tolist() == [5, 6, 7]
    assert copy.read_targets(np.array([0])).values.tolist() == [7, 8]
    assert marks_of(copy) == [[5, 6, 7]]
