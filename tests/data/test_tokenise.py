from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainbook.data.documents import load_table
from trainbook.data.sources import Document
from trainbook.data.tokenise import pieces, write_side
from trainbook.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, train_bpe
from trainbook.errors import DataError

DOCUMENTS = [Document("one", "a.txt"), Document("twö", "b.txt", 4), Document("x", "c.jsonl:7", 0)]


def written(
    tmp_path: Path, tokenizer: Tokenizer, documents: list[Document] = DOCUMENTS
) -> tuple[np.ndarray, dict[str, int]]:
    facts = write_side(tmp_path, documents, tokenizer, "uint16", lambda characters: None)
    return np.fromfile(tmp_path / "tokens.bin", dtype=np.uint16), facts


def test_documents_are_separated_by_the_end_of_text_and_listed(tmp_path: Path) -> None:
    tokens, facts = written(tmp_path, ByteTokenizer())
    assert tokens.tolist() == [*b"one", 256, *"twö".encode(), 256, *b"x"]
    assert facts == {"tokens": 10, "documents": 3, "bytes": 8}
    table = load_table(tmp_path, "root/")
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
    parts = list(pieces(text, 50))
    assert "".join(parts) == text
    assert len(parts) > 500
    bpe = train_bpe(iter([text]), 500)
    assert np.concatenate(bpe.encode_many(parts)).tolist() == bpe.encode(text).tolist()


def test_a_long_document_written_in_pieces_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.tokenise.PIECE_CHARACTERS", 10)
    text = "a line\nanother line\n" * 20
    tokens, facts = written(tmp_path, ByteTokenizer(), [Document(text, "a"), Document("end", "b")])
    assert tokens.tolist() == [*text.encode(), 256, *b"end"]
    assert facts["documents"] == 2
    assert load_table(tmp_path, "").lengths.tolist() == [len(text), 3]


def test_a_document_that_cannot_be_encoded_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^b\.txt: the char tokenizer has no token for 't'"):
        written(tmp_path, CharTokenizer("onex", with_end_of_text=False))
