from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest

from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    check_vocab_size,
    load_tokenizer,
    tokenizer_config,
    train_bpe,
)
from trainbook.errors import DataError, UserError

ODD_TEXTS = (
    "",
    "plain",
    "é ü ß Ελληνικά 中文 한국어 עברית",
    "👩‍👩‍👧 🇩🇪 e\u0301 \u200d\ufeff",
    "tabs\tand\r\nnewlines\n\n\n  and   spaces   ",
    "\x00\x01\x7f\x85\u2028",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
)


def make(kind: str) -> Tokenizer:
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer("".join(ODD_TEXTS) + "<|endoftext|>", with_end_of_text=True)
    return train_bpe(iter(["the cat sat on the mat, the end\n"] * 20), 280)


@pytest.fixture(params=["byte", "char", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make(request.param)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == "int64"
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_text_that_spells_the_end_of_text_does_not_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("plain<|endoftext|>plain")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == "plain<|endoftext|>plain"


def test_the_end_of_text_is_shown_where_it_stands(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_of_text is not None
    p = list(tokenizer.encode("p"))
    end = tokenizer.end_of_text
    assert tokenizer.decode([*p, end, *p, end]) == "p<|endoftext|>p<|endoftext|>"


def test_ids_beyond_the_vocabulary_say_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*tokenizer.encode("pl"), tokenizer.vocab_size, 10**6]) == "pl"


def test_many_texts_encode_as_each_alone(tokenizer: Tokenizer) -> None:
    for text, ids in zip(ODD_TEXTS, tokenizer.encode_many(ODD_TEXTS), strict=True):
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_saving_gives_the_same_bytes_and_loading_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "one")
    loaded = load_tokenizer(tmp_path / "one")
    loaded.save(tmp_path / "two")
    content = (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == content
    assert loaded.fingerprint == tokenizer.fingerprint == hashlib.sha256(content).hexdigest()
    assert (loaded.vocab_size, loaded.end_of_text) == (tokenizer.vocab_size, tokenizer.end_of_text)
    for copy in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        text = "plain <|endoftext|>" + ODD_TEXTS[2]
        assert copy.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_tokenizers_of_different_kinds_or_alphabets_have_different_fingerprints() -> None:
    made = [ByteTokenizer(), CharTokenizer("ab", True), CharTokenizer("ab", False), CharTokenizer("abc", True)]
    assert len({tokenizer.fingerprint for tokenizer in made}) == 4


def test_bytes_are_utf8_and_the_end_of_text_comes_after_them() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (257, 256)


def test_characters_are_numbered_in_order_with_the_end_of_text_last() -> None:
    tokenizer = CharTokenizer("bca\n", with_end_of_text=True)
    assert tokenizer.encode("\nabc").tolist() == [0, 1, 2, 3]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (5, 4)
    without = CharTokenizer("bca\n", with_end_of_text=False)
    assert (without.vocab_size, without.end_of_text) == (4, None)


@pytest.mark.parametrize(
    ("text", "shown"), [("abé", "'é' (U+00E9)"), ("a👍é", "'👍' (U+1F44D)"), ("\x00", "'\\x00' (U+0000)")]
)
def test_an_unknown_character_is_named(text: str, shown: str) -> None:
    with pytest.raises(UserError) as caught:
        CharTokenizer("abz", with_end_of_text=False).encode(text)
    assert str(caught.value) == (
        f"the char tokenizer has no token for {shown}: it knows the 3 characters of its training data only."
    )


def test_training_bpe_twice_gives_the_same_bytes(long_text: str) -> None:
    text = long_text[:200_000]
    one, two = (train_bpe(iter([text]), 400) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert one.vocab_size == 400
    assert len(one.encode(text)) < len(text) / 1.3
    assert one.decode(one.encode(text)) == text


def test_bpe_on_little_text_has_fewer_tokens_than_asked_for() -> None:
    assert 257 <= train_bpe(iter(["abab"]), 4096).vocab_size < 270


@pytest.mark.parametrize(
    ("name", "meant"), [("bytes", "byte"), ("cahr", "char"), ("sentencpiece", "bpe"), ("BPE", "bpe")]
)
def test_an_unknown_tokenizer_names_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(DataError) as caught:
        tokenizer_config(name, None)
    assert str(caught.value) == (
        f"data.tokenizer: there is no tokenizer '{name}'; it must be byte, char, bpe, "
        f"or the path of a tokenizer.json. Did you mean '{meant}'?"
    )


def test_a_missing_tokenizer_file_names_the_similar_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        tokenizer_config(f"{tmp_path}/tokeniser.json", None)
    assert str(caught.value) == (
        f"data.tokenizer: '{tmp_path}/tokeniser.json' does not exist. Did you mean 'tokenizer.json'?"
    )


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_a_users_mistake(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=f"the tokenizer '{tmp_path}/tokenizer.json' must be a"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_file_is_known_by_its_contents_and_not_by_its_path(tmp_path: Path) -> None:
    tokenizer = make("bpe")
    tokenizer.save(tmp_path / "a")
    tokenizer.save(tmp_path / "b")
    by_folder, by_file = (
        tokenizer_config(str(tmp_path / "a"), None),
        tokenizer_config(f"{tmp_path}/b/tokenizer.json", None),
    )
    assert by_folder["kind"] == by_file["kind"] == "file"
    assert by_folder["sha256"] == by_file["sha256"]


def test_somebody_elses_tokenizer_keeps_its_end_and_admits_what_it_loses(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    library = Library(models.WordLevel({"[UNK]": 0, "[SEP]": 1, "hello": 2, "world": 3, "far": 9}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.enable_truncation(1)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.end_of_text, tokenizer.vocab_size, tokenizer.is_lossless) == (1, 10, False)
    assert tokenizer.encode("hello\nworld").tolist() == [2, 3]


def test_only_bpe_has_a_size_to_choose() -> None:
    with pytest.raises(DataError) as caught:
        tokenizer_config("bpe", 256)
    assert str(caught.value) == (
        "data.vocab_size: must be >= 257 for data.tokenizer=bpe (256 bytes and the end of text), but got 256."
    )
    check_vocab_size("byte", 257, ByteTokenizer())
    check_vocab_size("byte", None, ByteTokenizer())
    with pytest.raises(DataError) as caught:
        check_vocab_size("byte", 4096, ByteTokenizer())
    assert str(caught.value) == (
        "data.vocab_size: only data.tokenizer=bpe can choose its size; "
        "data.tokenizer=byte has 257 tokens, but got 4096."
    )
