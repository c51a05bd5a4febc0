"""A text in pieces encodes to the tokens of the whole, whatever the text and whatever the tokenizer."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.tokenizer_kinds import KINDS, make_kind, sample_text

from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    LibraryBackedTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    train_bpe,
)
from trainbook.data.tokenizers.cuts import CannotCut, in_pieces
from trainbook.data.tokenizers.training import training_pieces

HOSTILE = [
    *(" ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x0b"),
    *("a", "I", "don't", "they'll", "'s", "'S", "cat", "the cat", "end", "x", "1", "12345", "２", "²"),
    *(
        "\u0301",
        "e\u0301",
        "é",
        "ﬁ",
        "İ",
        "ß",
        "Σ",
        "ς",
        "각",
        "\u1100\u1161\u11a8",
        "\u0e33",
        "का",
        "\u200d",
        "\ufeff",
    ),
    *("🙂", "👩\u200d👩\u200d👧", "🇩🇪", "東京", "。", "，", "「", "\ufffd", "\x00", "\x7f"),
    *(
        "<|endoftext|>",
        "<mark>",
        "<s>",
        "</s>",
        "<unk>",
        "[UNK]",
        "▁",
        "▁▁",
        "<0x0A>",
        "Ġ",
        "##",
        ".",
        "...",
        "!?",
        "--",
    ),
]
texts = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=60).map("".join)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    if name == "bpe":
        return train_bpe(iter([sample_text()]), 600)
    if name == "byte":
        return ByteTokenizer()
    return LibraryBackedTokenizer(make_kind(name))


def in_pieces_of(tokenizer: Tokenizer, chunks: Sequence[str], length: int) -> tuple[list[int], int]:
    parts = list(in_pieces(chunks, tokenizer.cuts, length))
    assert "".join(parts) == "".join(chunks)
    if not parts:
        return [], 0
    ids = [*tokenizer.encode_many(parts[:1])] + (tokenizer.encode_rest(parts[1:]) if len(parts) > 1 else [])
    return np.concatenate(ids).tolist(), len(parts)


@pytest.mark.parametrize("name", ["byte", "bpe", *KINDS])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(text=texts, length=st.integers(1, 8), at=st.integers(0, 200))
def test_hostile_texts_in_pieces_have_the_tokens_of_the_whole(name: str, text: str, length: int, at: int) -> None:
    tokenizer = tokenizer_of(name)
    found, _ = in_pieces_of(tokenizer, [text[:at], text[at:]], length)
    assert found == tokenizer.encode(text.encode("utf-8", "replace").decode()).tolist()


@pytest.mark.parametrize("name", ["byte", "bpe", *KINDS])
def test_an_ordinary_text_is_cut_into_many_pieces(name: str) -> None:
    tokenizer, text = tokenizer_of(name), sample_text()
    found, count = in_pieces_of(tokenizer, [text], 200)
    assert found == tokenizer.encode(text).tolist()
    assert count > len(text) / 1000


@pytest.mark.parametrize("name", ["bpe", "llama_3", "bert"])
def test_a_text_without_blanks_is_cut_at_its_punctuation(name: str) -> None:
    tokenizer = tokenizer_of(name)
    text = "東京都は、日本の首都。人口が多い，とても！" * 300
    found, count = in_pieces_of(tokenizer, [text], 100)
    assert found == tokenizer.encode(text).tolist()
    assert count > 20


@pytest.mark.parametrize("name", ["bpe", "gpt_2", "llama_3"])
def test_a_text_of_letters_and_digits_alone_is_cut_before_digits(name: str) -> None:
    tokenizer = tokenizer_of(name)
    text = base64.b64encode(random.Random(0).randbytes(9000)).decode().translate({ord("+"): "x", ord("/"): "y"})
    found, count = in_pieces_of(tokenizer, [text], 100)
    assert found == tokenizer.encode(text).tolist()
    assert count > 80


def test_a_bpe_without_words_is_cut_between_characters_that_no_token_joins() -> None:
    tokenizer = tokenizer_of("llama_2")
    found, count = in_pieces_of(tokenizer, ["東東京都は、" * 2000], 100)
    assert found == tokenizer.encode("東東京都は、" * 2000).tolist()
    assert count > 20


def test_one_huge_word_is_not_cut_and_not_held_without_end() -> None:
    tokenizer = tokenizer_of("bpe")
    found, count = in_pieces_of(tokenizer, ["a" * 3000, "a" * 3000], 100)
    assert (found, count) == (tokenizer.encode("a" * 6000).tolist(), 1)
    with pytest.raises(CannotCut, match="6,000 characters"):
        list(in_pieces(["a" * 3000, "a" * 3000], tokenizer.cuts, 100, longest=5000))


def test_a_trained_bpe_is_cut_in_the_same_way_when_it_is_loaded_again(tmp_path: Path) -> None:
    bpe = tokenizer_of("bpe")
    bpe.save(tmp_path)
    again, text = load_tokenizer(tmp_path), sample_text()
    assert again.cuts is not None and bpe.cuts is not None
    parts = list(in_pieces([text], again.cuts, 100))
    assert len(parts) > 50
    assert parts == list(in_pieces([text], bpe.cuts, 100))


def test_words_and_characters_are_cut_as_they_are(long_text: str) -> None:
    text = long_text[:20_000]
    for tokenizer in (CharTokenizer(text, True), WordTokenizer(text.split(), True)):
        found, count = in_pieces_of(tokenizer, [text], 100)
        assert found == tokenizer.encode(text).tolist()
        assert count > 100


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from(["a\n", "\n", "bb", " c\n", "dddddd"]), max_size=400).map("".join),
    sizes=st.integers(1, 97),
)
def test_a_bpe_is_trained_on_the_same_pieces_however_a_text_is_read(text: str, sizes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbook.data.tokenizers.training.PIECE_CHARACTERS", 30)
        patch.setattr("trainbook.data.tokenizers.training.LONGEST_WORD", 10)
        bounded = [
            [part[at : at + 10] for part in training_pieces(chunks) for at in range(0, len(part), 10)]
            for chunks in ([text], [text[at : at + sizes] for at in range(0, len(text), sizes)])
        ]
    assert bounded[0] == bounded[1]
