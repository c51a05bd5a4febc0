"""Byte-level BPE by a table of words gives the very ids of the `tokenizers` package."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from trainbook.data.tokenizers import word_cache
from trainbook.data.tokenizers.cuts import GPT2_PATTERN, GPT4_PATTERNS
from trainbook.data.tokenizers.library import LibraryBackedTokenizer
from trainbook.data.tokenizers.word_cache import WordCache

PATTERNS = {"gpt2": None, "llama3": GPT4_PATTERNS[0], "qwen2": GPT4_PATTERNS[1]}
SAMPLE = "The cat's tail; they're 1234 of 'em_x, don't we'll  go\n\n\tdef f(x):\n    return x**2"
SAMPLE += "  # ça va été über ½ x² Ⅷ\r\n"
MIXED = st.text(alphabet=st.one_of(st.sampled_from("ab'sZ t1\n\t _.,-\r"), st.characters(exclude_categories=["Cs"])))


@pytest.fixture(autouse=True)
def few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "usable_cores", lambda: 2)


def made(pattern: str | None, **changes: Any) -> LibraryBackedTokenizer:
    tokenizer = library.Tokenizer(models.BPE())
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, of_bytes]) if split else of_bytes  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([SAMPLE] * 20, trainer)
    content = json.loads(tokenizer.to_str())
    for name, value in changes.items():
        content[name] = value
    return LibraryBackedTokenizer(library.Tokenizer.from_str(json.dumps(content)))


TOKENIZERS = {name: made(pattern) for name, pattern in PATTERNS.items()}


def must_agree(tokenizer: LibraryBackedTokenizer, text: str) -> None:
    expected = tokenizer._library_ids([text])[0]
    assert tokenizer.encode(text).tolist() == expected, repr(text)


@pytest.mark.parametrize("kind", PATTERNS)
@settings(max_examples=150, deadline=None)
@given(text=MIXED)
def test_any_text_has_the_tokens_of_the_package(kind: str, text: str) -> None:
    must_agree(TOKENIZERS[kind], text)
    must_agree(TOKENIZERS[kind], text.encode("ascii", "ignore").decode())


def test_every_character_is_divided_as_the_package_does() -> None:
    """Between letters, digits and blanks: the tables of Python and of the package agree, or the text is left to the
    package. Of Han, Hangul and the like, one in sixteen, and none for private use."""
    tokenizer = TOKENIZERS["gpt2"]
    plain = [c for c in map(chr, range(sys.maxunicode + 1)) if word_cache._is_plain(c)]
    assert len(plain) > 200_000 and not {"½", "²", "\x1c", "\ud800"} & {*plain}
    rare = [c for c in plain if unicodedata.category(c) not in ("Co", "Lo")]
    rare += [c for c in plain if unicodedata.category(c) == "Lo"][::16]
    snippets = [f"a{c}1{c} {c}\n" for c in rare]
    texts = ["".join(snippets[at : at + 1000]) for at in range(0, len(snippets), 1000)]
    expected = tokenizer._library_ids(texts)
    for text, found, ids in zip(texts, tokenizer.encode_many(texts), expected, strict=True):
        assert found.tolist() == ids, repr(text)


@pytest.mark.parametrize("kind", PATTERNS)
def test_the_table_is_used(kind: str) -> None:
    tokenizer, asked = TOKENIZERS[kind], []
    words = WordCache.of(json.loads(tokenizer._json), lambda new: asked.append(len(new)) or tokenizer._library_ids(new))
    assert words is not None
    text = "one two one two don't\n" * 50
    first, second = words.encode(text), words.encode(text)
    assert first is not None and second is not None
    assert first.tolist() == second.tolist() == tokenizer._library_ids([text])[0]
    assert len(asked) == 1 and asked[0] < 10


def test_a_full_table_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MOST_CHARACTERS", 40)
    tokenizer = made(None)
    for number in range(50):
        must_agree(tokenizer, f"word{number} and another{number}")
    assert tokenizer._words is not None and len(tokenizer._words._ids) < 20


def test_long_texts_in_one_batch_keep_their_order() -> None:
    tokenizer = TOKENIZERS["llama3"]
    texts = ["plain text", "ça va", "", "more 12345 plain", "é"]
    found = tokenizer.encode_many(texts)
    assert [ids.tolist() for ids in found] == tokenizer._library_ids(texts)
    assert all(ids.dtype == np.int64 and ids.flags.writeable for ids in found)


def added(content: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": 400, "content": content, "special": special, **flags}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [added("the cat", special=False)]},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {**BYTES, "add_prefix_space": True}},
        {"pre_tokenizer": {**BYTES, "use_regex": False}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [DIGITS, BYTES],
            }
        },
    ],
)
def test_what_divides_in_another_way_is_left_to_the_package(changes: dict[str, Any]) -> None:
    tokenizer = made(None, **changes)
    assert tokenizer._words is None
    must_agree(tokenizer, SAMPLE + "the cat The Cat 12")


def test_a_special_token_in_a_text_is_text() -> None:
    tokenizer = made(None, added_tokens=[added("<|endoftext|>", special=True)])
    assert tokenizer._words is not None
    must_agree(tokenizer, "one<|endoftext|>two")


def test_with_many_cores_the_package_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "usable_cores", lambda: 64)
    assert made(None)._words is None


def test_a_copy_for_another_process_gives_the_same(tmp_path: Path) -> None:
    import pickle

    tokenizer = TOKENIZERS["gpt2"]
    copy: Callable[[str], np.ndarray] = pickle.loads(pickle.dumps(tokenizer)).encode
    assert copy(SAMPLE).tolist() == tokenizer.encode(SAMPLE).tolist()
    assert GPT2_PATTERN  # the pattern of ByteLevel by itself
