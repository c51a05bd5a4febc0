from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainbook.data.prepare.writing import Encoding, learned_marks, word_marks, write_side
from trainbook.data.samples.base import StoredTable
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.records import Document
from trainbook.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, train_bpe
from trainbook.data.tokenizers.cuts import in_pieces
from trainbook.errors import DataError

DOCUMENTS = [Document("one", "a.txt"), Document("twö", "b.txt", 4), Document("x", "c.jsonl:7", 0)]


def written(
    tmp_path: Path, tokenizer: Tokenizer, documents: list[Document] = DOCUMENTS
) -> tuple[np.ndarray, dict[str, int]]:
    facts = write_side(tmp_path, documents, Encoding(tokenizer, "uint16"))
    return np.fromfile(tmp_path / "tokens.bin", dtype=np.uint16), facts


def test_documents_are_separated_by_the_end_of_text_and_listed(tmp_path: Path) -> None:
    tokens, facts = written(tmp_path, ByteTokenizer())
    assert tokens.tolist() == [*b"one", 256, *"twö".encode(), 256, *b"x"]
    assert facts == {"tokens": 10, "documents": 3, "bytes": 8}
    table = StoredTable([tmp_path], [0], "root/")
    assert (table.starts.tolist(), table.lengths.tolist(), table.first_lines.tolist()) == (
        [0, 4, 9],
        [3, 4, 1],
        [1, 4, 0],
    )
    assert [table.origin(document) for document in range(3)] == ["root/a.txt", "root/b.txt", "root/c.jsonl:7"]


def test_without_an_end_of_text_documents_follow_each_other(tmp_path: Path) -> None:
    tokens, _ = written(tmp_path, CharTokenizer("onetwöx", with_end_of_text=False))
    assert len(tokens) == 7


def test_a_text_in_pieces_is_the_text_and_encodes_as_the_whole(long_text: str) -> None:
    text = long_text[:60_000] + "\n\n  indented\n\n\n x\ny\r\nz\n" + long_text[60_000:100_000]
    bpe = train_bpe(iter([text]), 500)
    parts = list(in_pieces([text[:70_000], text[70_000:]], bpe.cuts, 50))
    assert "".join(parts) == text
    assert len(parts) > 500
    ids = [*bpe.encode_many(parts[:1]), *bpe.encode_rest(parts[1:])]
    assert np.concatenate(ids).tolist() == bpe.encode(text).tolist()


def test_a_long_document_written_in_pieces_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 10)
    text = "a line\nanother line\n" * 20
    tokens, facts = written(tmp_path, ByteTokenizer(), [Document(text, "a"), Document("end", "b")])
    assert tokens.tolist() == [*text.encode(), 256, *b"end"]
    assert facts["documents"] == 2
    assert StoredTable([tmp_path], [0], "").lengths.tolist() == [len(text), 3]


def test_a_document_that_cannot_be_encoded_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^b\.txt: the char tokenizer has no token for 't'"):
        written(tmp_path, CharTokenizer("onex", with_end_of_text=False))


def test_targets_have_a_stream_and_a_table_of_their_own(tmp_path: Path) -> None:
    documents = [Document("ab", "1", 0, target="xyz"), Document("c", "2", 0, target="é")]
    facts = write_side(tmp_path, documents, Encoding(ByteTokenizer(), "uint16", FieldSpec("pairs")))
    assert np.fromfile(tmp_path / "tokens.bin", dtype=np.uint16).tolist() == [*b"ab", 256, *b"c"]
    assert np.fromfile(tmp_path / "targets.bin", dtype=np.uint16).tolist() == [*b"xyz", *"é".encode()]
    assert np.load(tmp_path / "targets.npy").tolist() == [[0, 3], [3, 2]]
    assert facts == {"tokens": 4, "documents": 2, "bytes": 3, "target_tokens": 5, "target_bytes": 5}


def test_a_pair_is_one_also_where_its_text_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 10)
    documents = [Document("a line\nanother line\nmore\n" * 5, "1", 0, target=f"{number}") for number in range(3)]
    write_side(tmp_path, documents, Encoding(ByteTokenizer(), "uint16", FieldSpec("pairs")))
    assert np.load(tmp_path / "targets.npy").tolist() == [[0, 1], [1, 1], [2, 1]]
    assert np.load(tmp_path / "documents.npy")[:, 1].tolist() == [len(documents[0].text)] * 3


def test_classes_are_numbers_and_several_are_flags(tmp_path: Path) -> None:
    one = [Document("a", "1", label="x"), Document("b", "2", label="y"), Document("c", "3", label="x")]
    encoding = Encoding(ByteTokenizer(), "uint16", FieldSpec("labelled", "class"), ("x", "y"))
    write_side(tmp_path, one, encoding)
    labels = np.load(tmp_path / "labels.npy")
    assert (labels.tolist(), labels.dtype) == ([0, 1, 0], np.int64)
    several = [Document("a", "1", label=("x", "y")), Document("b", "2", label=()), Document("c", "3", label=("y",))]
    write_side(tmp_path, several, Encoding(ByteTokenizer(), "uint16", FieldSpec("labelled", "classes"), ("x", "y")))
    flags = np.load(tmp_path / "labels.npy")
    assert (flags.tolist(), flags.dtype) == ([[1, 1], [0, 0], [0, 1]], np.float32)
    numbers = [Document("a", "1", label=0.5), Document("b", "2", label=-2.0)]
    write_side(tmp_path, numbers, Encoding(ByteTokenizer(), "uint16", FieldSpec("labelled", "number")))
    values = np.load(tmp_path / "labels.npy")
    assert (values.tolist(), values.dtype) == ([0.5, -2.0], np.float32)


def test_a_class_that_training_does_not_have_is_named_with_its_place(tmp_path: Path) -> None:
    encoding = Encoding(ByteTokenizer(), "uint16", FieldSpec("labelled", "class"), ("x", "y"))
    with pytest.raises(DataError) as caught:
        write_side(tmp_path, [Document("a", "v.csv:3", label="z")], encoding, root="here/")
    assert str(caught.value) == (
        "here/v.csv:3: the class 'z' is not in the training data, so the model cannot learn it; the training data "
        "has 'x', 'y'."
    )


WORDS = ("New", "York", "é", "x-ray", "z")


def test_a_tag_stands_at_the_first_token_of_its_word(tmp_path: Path, long_text: str) -> None:
    text = " ".join(WORDS)
    numbers = [1, 2, 0, 3, 1]
    firsts = [text.index(word) for word in WORDS]
    for tokenizer in (ByteTokenizer(), CharTokenizer(text, False), train_bpe(iter([text * 50, long_text]), 400)):
        ids, starts = tokenizer.encode_with_starts([text])[0]
        marks = word_marks(starts, WORDS, numbers)
        assert marks[marks >= 0].tolist() == numbers
        assert starts[marks >= 0].tolist() == firsts
        for position in np.flatnonzero(marks >= 0):  # no token before it is of the same word
            assert position == 0 or starts[position - 1] < starts[position]
        decoded = [tokenizer.decode(part).strip() for part in np.split(ids, np.flatnonzero(marks >= 0))[1:]]
        assert decoded == list(WORDS)


def test_a_word_of_which_nothing_is_kept_has_no_mark() -> None:
    # The second of three words, at 2, has no token.
    assert word_marks(np.array([0, 4]), ("a", "b", "c"), [5, 6, 7]).tolist() == [5, 7]
    assert word_marks(np.array([0]), ("a", "b"), [5, 6]).tolist() == [5]
    # Nor does the blank behind it, a token of its own, stand for it.
    assert word_marks(np.array([0, 1, 3, 4]), ("a", "b", "c"), [5, 6, 7]).tolist() == [5, -1, -1, 7]


def test_tags_are_written_beside_the_tokens(tmp_path: Path) -> None:
    documents = [
        Document("ab c", "1", words=("ab", "c"), tags=("Y", "X")),
        Document("d", "2", words=("d",), tags=("X",)),
    ]
    facts = write_side(tmp_path, documents, Encoding(ByteTokenizer(), "uint16", FieldSpec("tagged"), ("X", "Y")))
    assert np.fromfile(tmp_path / "tokens.bin", dtype=np.uint16).tolist() == [*b"ab c", 256, *b"d"]
    assert np.fromfile(tmp_path / "marks.bin", dtype=np.int16).tolist() == [1, -1, -1, 0, -1, 0]
    assert facts["marked_tokens"] == 3


def test_a_token_is_learned_where_it_begins_in_what_is_learned() -> None:
    starts = np.array([0, 2, 2, 5, 7])
    assert learned_marks(starts, ((2, 6), (7, 8))).tolist() == [-1, 1, 1, 1, 1]
    assert learned_marks(starts, ((1, 2), (6, 7))).tolist() == [-1, -1, -1, -1, -1]
    assert learned_marks(starts, None).tolist() == [1, 1, 1, 1, 1]
