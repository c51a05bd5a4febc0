from __future__ import annotations

import numpy as np

from trainbook.data.samples.base import DocumentTable, LineBreaks, excerpt
from trainbook.data.tokenizers import ByteTokenizer

TEXTS = ["one\ntwo\nthree\n", '{"not": "split"}\nx', "tail\nof it"]
TOKENS = np.array([*TEXTS[0].encode(), 256, *TEXTS[1].encode(), 256, *TEXTS[2].encode()], dtype=np.uint16)
LENGTHS = np.array([len(text) for text in TEXTS])
TABLE = DocumentTable(
    np.array([0, LENGTHS[0] + 1, LENGTHS[0] + LENGTHS[1] + 2]),
    LENGTHS,
    np.array([1, 0, 40]),
    ["a.txt", "b.jsonl:9", "c.txt"],
    "here/",
)


def place(position: int) -> str:
    return TABLE.place(position, LineBreaks(TOKENS, ByteTokenizer()))


def test_every_token_has_a_document_and_a_separator_belongs_to_what_it_ends() -> None:
    assert [TABLE.document_at(position) for position in (0, 13, 14, 15, 32, 33, 34, len(TOKENS) - 1)] == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
    ]


def test_a_place_is_the_path_and_the_line_in_the_file() -> None:
    assert [place(position) for position in (0, 3, 4, 8)] == ["here/a.txt:1"] * 2 + ["here/a.txt:2", "here/a.txt:3"]
    assert place(TOKENS.tolist().index(256) + 1 + TEXTS[1].index("x")) == "here/b.jsonl:9"
    assert [place(int(TABLE.starts[2]) + offset) for offset in (0, 5)] == ["here/c.txt:40", "here/c.txt:41"]


def test_without_a_lossless_tokenizer_no_line_is_claimed() -> None:
    assert TABLE.place(8, None) == "here/a.txt"


def test_a_long_excerpt_is_cut() -> None:
    assert excerpt(ByteTokenizer().encode("a" * 300), ByteTokenizer()) == "a" * 200 + "…"
    assert excerpt(ByteTokenizer().encode("abc"), ByteTokenizer()) == "abc"
