"""Whether transformers gives the ids of a run's tokenizer: of tokenizers that cannot write every text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from trainbook.data.tokenizers import load_tokenizer
from trainbook.models.formats.tokenizing import must_survive_export, probe_texts

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "cat", "dog", "fox", "movie", "film", "was", "is", "very", "good", "bad", ",", ".", "!", "?"]


def word_piece(vocabulary: dict[str, int]) -> Any:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def word_level(vocabulary: dict[str, int]) -> Any:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("are_declared", [True, False], ids=["declared special", "in the vocabulary only"])
@pytest.mark.parametrize("make", [word_piece, word_level])
def test_a_tokenizer_of_whole_words_whose_unknown_token_occurs_can_be_exported(
    make: Callable[[dict[str, int]], Any], are_declared: bool, tmp_path: Path
) -> None:
    """A text of unknown words is decoded to the name of the unknown token, which transformers reads as that token and
    a run as the text '[UNK]'."""
    library = make({name: number for number, name in enumerate([*SPECIAL, *WORDS])})
    if are_declared:
        library.add_special_tokens(SPECIAL)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    probes = list(probe_texts(tokenizer))
    assert any("[UNK]" in text for text in probes)
    must_survive_export(tokenizer, "classify", "bert", "mine", probes, None)
